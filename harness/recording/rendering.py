"""The prompt's token ids, made here: the model's own chat template and tokenizer.

Place in the flow: before the client, for the transport `generate`. Imports `contracts` and
`harness.server.families`; transformers inside functions.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.given import Template
from contracts.records import Json, Prompt, ServerFacts
from contracts.tokens import Codec, load_codec


class CantRender(ShardgateError):
    """The chat template refuses a prompt."""


def tokenizer_folder(given: Path | None, facts: ServerFacts) -> Path:
    """Return the folder of the model's tokenizer: the given one, or the model's where it is on this machine.

    Raises:
        ShardgateError: it is not here.
    """
    if given is not None:
        return given
    told = facts.flags.get("tokenizer_path") or facts.model
    if Path(str(told)).is_dir():
        return Path(str(told))
    from harness.server.families import local_file

    found = local_file(str(told), "tokenizer_config.json", facts.revision)
    if found is None:
        raise ShardgateError(
            what="the model's tokenizer is not on this machine",
            where=str(told),
            why="prompts are rendered and answers judged with it",
            remedy="give its folder: --tokenizer PATH",
        )
    return found.parent


class Renderer:
    """Renders prompts as the model's tokenizer does, `add_generation_prompt` on."""

    def __init__(self, folder: Path, codec: Codec, *, template: Path | None, trust_remote_code: bool) -> None:
        """Load the tokenizer; `template` is a Jinja file in place of its own chat template.

        Raises:
            ShardgateError: the tokenizer can't be loaded, or has no chat template.
        """
        logging.getLogger("transformers").setLevel(logging.ERROR)
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code
            )
        except Exception as error:
            raise ShardgateError(
                what="the tokenizer can't be loaded",
                where=str(folder),
                why=str(error).splitlines()[0] if str(error) else type(error).__name__,
                remedy="pass the model's folder; a tokenizer with code of its own needs --trust-remote-code",
            ) from error
        self._codec = codec
        if template is not None:
            self._tokenizer.chat_template = template.read_text("utf-8")
        if not self._tokenizer.chat_template:
            raise ShardgateError(
                what="the tokenizer has no chat template",
                where=str(folder),
                why="a prompt's token ids are made by it",
                remedy="give one: --chat-template FILE; or record over chat: --transport chat",
            )

    @property
    def template(self) -> Template | None:
        """Return the template and the special tokens that it names; None where there are several."""
        source = self._tokenizer.chat_template
        if not isinstance(source, str):
            return None
        tokens = self._tokenizer.special_tokens_map.items()
        return Template(source, tuple(sorted((name, text) for name, text in tokens if isinstance(text, str))))

    @property
    def template_sha256(self) -> str:
        """Return SHA-256 (hex) of the template's text; of several, of all of them."""
        template = self._tokenizer.chat_template
        text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's token ids (n,).

        Raises:
            CantRender: the template refuses the prompt.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                [_as_the_server(message) for message in prompt.messages],
                tools=[dict(tool) for tool in prompt.tools] if prompt.tools else None,
                add_generation_prompt=True,
                tokenize=False,
                **prompt.template_kwargs,
            )
        except Exception as error:  # a template is a program and raises what it likes
            raise CantRender(
                what="the chat template refuses the prompt", where=prompt.name, why=str(error)[:300]
            ) from error
        return tuple(self._codec.encode(text))


def _as_the_server(message: Mapping[str, Json]) -> dict[str, Json]:
    """Return a message as SGLang hands it to the template: a call's arguments decoded."""
    out = dict(message)
    calls = []
    for call in message.get("tool_calls") or ():
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            try:
                decoded = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                decoded = None
            if isinstance(decoded, dict):
                function["arguments"] = decoded
        calls.append({**call, "function": function})
    if calls:
        out["tool_calls"] = calls
    return out


def load(folder: Path, *, trust_remote_code: bool) -> Codec:
    """Return the codec of a tokenizer folder; see `contracts.tokens.load_codec`."""
    return load_codec(folder, trust_remote_code=trust_remote_code)


CHECK_TEXT = "Hello, world! 你好 <think>1 + 1 = 2</think>\n"


def refuse_foreign(folder: Path, codec: Codec, facts: ServerFacts, api_key: str | None) -> None:
    """Compare the tokenizer with the server's: by fingerprint, or by how both encode one text.

    A server that has no `/tokenize` to compare with is let pass: each answer's text is compared later.

    Raises:
        ShardgateError: it is another one.
    """
    theirs: object
    if facts.tokenizer_sha256 is not None and codec.sha256 is not None:
        ours, theirs = codec.sha256, facts.tokenizer_sha256
    else:
        from harness.server_codec import ServerCodec

        served = ServerCodec(facts.base_url, api_key=api_key)
        try:
            ours, theirs = str(codec.encode(CHECK_TEXT)), str(served.encode(CHECK_TEXT))
        except ShardgateError:
            return
        finally:
            served.close()
    if ours != theirs:
        raise ShardgateError(
            what="the tokenizer is not the server's",
            where=str(folder),
            why="the fingerprints differ, or the same text gives other token ids on the server",
            remedy="give the tokenizer folder of the model that the server serves",
        )
