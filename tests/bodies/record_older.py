"""Record what an older SGLang answers: its own chat endpoint's code, given a text, builds the response body.

Place in the flow: run by hand, in the older SGLang's own import path; writes one file of `fixtures/older/`.
Imports that SGLang, and of this repository the formats and the test vocabulary.

    uv pip install --no-deps --only-binary :all: --target OLDER sglang==0.5.12
    PYTHONPATH=OLDER:. python tests/bodies/record_older.py fixtures/older/0.5.12.json

No model runs and no server: the scheduler's part, `text` and `output_ids`, is given, and
`OpenAIServingChat._build_chat_response` does the rest. Two things are put in its way so that an old release
imports beside new libraries: GPU kernels are stubbed (no parser calls one), and model classes that
transformers has learnt since may be registered twice.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from contracts.formats import format_named
from contracts.framing import request_framing
from contracts.judgement import judge_fields
from contracts.records import Judgement, Mode
from harness.models import codec_for
from harness.wire import parse_chat, parse_generate

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
QWEN_CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
WROTE: tuple[tuple[str, str, bool, str], ...] = (
    ("kimi_k2", "r</think>C<|im_end|>", True, "stop"),
    ("kimi_k2", "\nr\n</think>\n\nC\n<|im_end|>", True, "stop"),
    ("kimi_k2", " r </think> C <|im_end|>", True, "stop"),
    ("kimi_k2", "\n</think>C<|im_end|>", True, "stop"),
    ("kimi_k2", "r</think>\n<|im_end|>", True, "stop"),
    ("kimi_k2", "\nLet me think ", True, "length"),
    ("kimi_k2", " C \n<|im_end|>", False, "stop"),
    ("kimi_k2", f"r</think>{BEGIN}{CALL}{END}<|im_end|>", True, "stop"),
    ("kimi_k2", f"\nr\n</think>\nC\n{BEGIN}{CALL}{END}<|im_end|>", True, "stop"),
    ("kimi_k2", f"C {BEGIN}{CALL}{END}<|im_end|>", False, "stop"),
    ("kimi_k2", f"r{BEGIN}{CALL}{END}<|im_end|>", True, "stop"),
    ("kimi_k2", "<think>r</think>C<|im_end|>", True, "stop"),
    ("qwen3", "<think>r</think>C<|im_end|>", True, "stop"),
    ("qwen3", "<think>\nr\n</think>\n\nC<|im_end|>", True, "stop"),
    ("qwen3", "<think>\n\n</think>\n\nC<|im_end|>", True, "stop"),
    ("qwen3", "Hello \n<|im_end|>", False, "stop"),
    ("qwen3", f"<think>\nr\n</think>\n\n{QWEN_CALL}<|im_end|>", True, "stop"),
    ("qwen3", f"C\n{QWEN_CALL}<|im_end|>", False, "stop"),
    ("deepseek_r1", "\nr\n</think>\n\nC<｜end▁of▁sentence｜>", True, "stop"),
    ("deepseek_v31", "C \n<｜end▁of▁sentence｜>", False, "stop"),
)
"""(format, what the model generates, thinking, finish reason)."""


class _Kernels:
    """Finds `sgl_kernel` and everything in it, as modules whose every name is a mock."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "sgl_kernel":
            return None
        return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _mocked  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _mocked(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()


def _import_server() -> Any:
    warnings.simplefilter("ignore")
    import transformers

    register = transformers.AutoConfig.register

    def again(*arguments: Any, exist_ok: bool = False, **named: Any) -> None:
        register(*arguments, exist_ok=True, **named)

    transformers.AutoConfig.register = staticmethod(again)
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.meta_path.append(_Kernels())  # type: ignore[arg-type]
    from sglang.srt.entrypoints.openai import protocol, serving_chat

    logging.disable(logging.CRITICAL)
    return SimpleNamespace(chat=serving_chat.OpenAIServingChat, protocol=protocol)


def main(target: Path) -> None:
    """Record every text of `WROTE` whose parsers this SGLang has."""
    from importlib.metadata import distributions

    sg = _import_server()
    import sglang
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    home = Path(sglang.__file__).resolve().parents[1]
    version = next(d.version for d in distributions(path=[str(home)]) if d.metadata["Name"] == "sglang")
    answers = []
    for name, text, thinking, reason in WROTE:
        fmt = format_named(name)
        assert fmt is not None
        tools = "tool_call" in text
        if fmt.reasoning_parser not in ReasoningParser.DetectorMap:
            continue
        if tools and fmt.tool_parser not in FunctionCallParser.ToolCallParserEnum:
            continue
        codec = codec_for(fmt)
        ids = codec.encode(text)
        prompt = codec.encode(fmt.opener if thinking and fmt.opener_prefilled else "assistant")
        matched = ids[-1] if reason == "stop" else None
        shown = text.removesuffix(fmt.end_tokens[0]) if reason == "stop" else text
        finish = {"type": reason, **({"matched": matched} if reason == "stop" else {"length": len(ids)})}
        generated = {
            "text": shown,
            "output_ids": ids,
            "prompt_token_ids": prompt,
            "index": 0,
            "meta_info": {
                "id": "recorded",
                "finish_reason": finish,
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "weight_version": "default",
            },
        }
        body = _chat(sg, fmt, generated, thinking, tools)
        answer = {
            "format": name,
            "generated": text,
            "thinking": thinking,
            "tools": tools,
            "chat": body,
            # `/generate` has no parser and, asked with no_stop_trim, keeps the end.
            "generate": json.dumps({**generated, "text": text}, ensure_ascii=False),
        }
        found = judged(answer, with_generate=True)
        losses = [loss.name for loss in found.losses]
        answers.append({**answer, "verdict": str(found.verdict), "losses": losses})
    record = {"sglang": version, "answers": answers}
    target.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def judged(answer: dict[str, Any], *, with_generate: bool) -> Judgement:
    """Judge a recorded chat answer, by its own ids or by those that `/generate` tells for the same prompt."""
    fmt = format_named(answer["format"])
    assert fmt is not None
    codec = codec_for(fmt)
    chat, generated = parse_chat(answer["chat"].encode()), parse_generate(answer["generate"].encode())
    framing = request_framing(
        fmt,
        codec=codec,
        mode=Mode.TOOLS if answer["tools"] else Mode.REASONING,
        prompt_ids=generated.prompt_token_ids if with_generate else chat.prompt_token_ids,
        finish_reason=chat.finish_reason,
        matched_stop=chat.matched_stop,
        template_kwargs={fmt.template_switch: answer["thinking"]} if fmt.template_switch else {},
        reasoning_parser=fmt.reasoning_parser,
        tool_parser=fmt.tool_parser,
        tools=answer["tools"],
        constrained=False,
    )
    return judge_fields(
        generated.response_token_ids if with_generate else chat.response_token_ids,
        chat.fields,
        codec=codec,
        framing=framing,
        finish_reason=chat.finish_reason,
        matched_stop=chat.matched_stop,
    )


def _chat(sg: Any, fmt: Any, generated: dict[str, Any], thinking: bool, tools: bool) -> str:
    """Return the JSON text of the chat answer that this SGLang builds."""
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "separate_reasoning": True,
        "chat_template_kwargs": {fmt.template_switch: thinking} if fmt.template_switch else {},
    }
    known = sg.protocol.ChatCompletionRequest.model_fields
    asked |= {
        flag: True
        for flag in ("return_token_ids", "return_prompt_token_ids", "return_meta_info")
        if flag in known
    }
    if tools:
        asked["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    request = sg.protocol.ChatCompletionRequest(**asked)
    server = object.__new__(sg.chat)
    server.reasoning_parser, server.tool_call_parser = fmt.reasoning_parser, fmt.tool_parser
    server.chat_encoding_spec = None
    server.is_gpt_oss = server.is_gemma = False
    server._get_reasoning_from_request = lambda _request: fmt.forced(fmt.asked(asked["chat_template_kwargs"]))
    server.template_manager = SimpleNamespace(force_reasoning=False, reasoning_config=None)
    flags = SimpleNamespace(
        enable_cache_report=False, tool_call_parser=fmt.tool_parser, reasoning_parser=fmt.reasoning_parser
    )
    server.tokenizer_manager = SimpleNamespace(
        server_args=flags, tokenizer=None, model_config=SimpleNamespace(hf_config=None)
    )
    answer = server._build_chat_response(request, [generated], 0)
    if inspect.isawaitable(answer):
        answer = asyncio.run(_awaited(answer))
    text: str = answer.model_dump_json()
    return text


async def _awaited(answer: Any) -> Any:
    return await answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
