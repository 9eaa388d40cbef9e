"""The request bodies of the three modes and two transports. Imports `harness.modes`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contracts.records import Mode, Prompt
from harness.modes import RESERVED, Scripted, chat_body, generate_body, render_body
from harness.wire_errors import RequestRefused

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
PROMPT = Prompt(
    name="p",
    messages=({"role": "user", "content": "Hi"},),
    tools=(TOOL,),
    sampling={"temperature": 0.5, "max_tokens": 9, "tool_choice": "auto"},
    template_kwargs={"thinking": True},
)
IDS = (3, 4, 5)
SCRIPT = Scripted(ids=(7, 8, 9, 2), processor="pickled", params={"ids": [7, 8, 9, 2]})


def body(mode: Mode, prompt: Prompt = PROMPT, **changes: Any) -> dict[str, Any]:
    return chat_body(prompt, mode, model="m", prompt_token_ids=IDS, **changes)


def test_every_mode_sends_the_same_prompt_ids_messages_and_sampling() -> None:
    bodies = [body(mode) for mode in Mode]
    for name in ("input_ids", "messages", "temperature", "max_tokens", "chat_template_kwargs", "model"):
        assert all(b[name] == bodies[0][name] for b in bodies)
    assert bodies[0]["input_ids"] == [3, 4, 5]


def test_only_the_tools_mode_declares_tools() -> None:
    assert body(Mode.TOOLS)["tools"] == [TOOL]
    assert body(Mode.TOOLS)["tool_choice"] == "auto"
    for mode in (Mode.RAW, Mode.REASONING):
        assert not {"tools", "tool_choice"} & body(mode).keys()
    plain = replace(PROMPT, tools=None)
    assert not {"tools", "tool_choice"} & body(Mode.TOOLS, plain).keys()


def test_only_the_raw_mode_turns_the_parser_and_the_trimming_off() -> None:
    raw = body(Mode.RAW)
    assert raw["separate_reasoning"] is False and raw["no_stop_trim"] is True
    for mode in (Mode.REASONING, Mode.TOOLS):
        parsed = body(mode)
        assert parsed.get("separate_reasoning", True) is True
        assert parsed.get("no_stop_trim", False) is False
    assert all(body(mode)["skip_special_tokens"] is False for mode in Mode)


def test_stream_and_whole_ask_for_ids_by_their_own_switch() -> None:
    for mode in Mode:
        whole, stream = body(mode), body(mode, stream=True)
        assert whole["return_token_ids"] is True and not whole.get("stream")
        assert stream["stream"] is True and stream["return_output_ids_in_sglext"] is True
        # SGLang refuses the non-stream switches in a stream.
        assert not {"return_token_ids", "return_prompt_token_ids"} & stream.keys()


def test_without_prompt_ids_the_server_renders() -> None:
    assert "input_ids" not in chat_body(PROMPT, Mode.TOOLS, model="m", prompt_token_ids=None)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_prompt_can_t_set_what_the_mode_sets(name: str) -> None:
    prompt = replace(PROMPT, sampling={name: 2})
    with pytest.raises(RequestRefused, match=name):
        body(Mode.RAW, prompt)
    with pytest.raises(RequestRefused, match=name):
        generate_body(prompt, prompt_token_ids=IDS)


def test_one_sample_is_allowed_to_say_so() -> None:
    assert "n" not in body(Mode.RAW, replace(PROMPT, sampling={"n": 1}))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 4),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 2, "max_tokens": 9}, 2),
        ({"max_tokens": 100}, 4),
    ],
)
def test_a_script_ends_with_its_last_id_or_at_the_prompt_s_limit(
    limits: dict[str, int], expected: int
) -> None:
    prompt = replace(PROMPT, sampling=limits)
    forced = body(Mode.TOOLS, prompt, scripted=SCRIPT)
    assert forced["max_tokens"] == expected and "max_completion_tokens" not in forced
    assert (forced["custom_logit_processor"], forced["custom_params"]) == ("pickled", {"ids": [7, 8, 9, 2]})
    raw = generate_body(prompt, prompt_token_ids=IDS, scripted=SCRIPT)
    assert raw["sampling_params"]["max_new_tokens"] == expected
    assert raw["custom_logit_processor"] == "pickled"
    assert raw["sampling_params"]["custom_params"] == {"ids": [7, 8, 9, 2]}


def test_generate_trims_and_skips_nothing_and_speaks_the_engine_s_names() -> None:
    sampling = {
        "max_tokens": 5,
        "min_tokens": 1,
        "seed": 3,
        "top_p": 0.9,
        "stop": ["x"],
        "tool_choice": "auto",
    }
    got = generate_body(replace(PROMPT, sampling=sampling), prompt_token_ids=IDS)
    params = got["sampling_params"]
    assert got["input_ids"] == [3, 4, 5]
    assert params == {
        "max_new_tokens": 5,
        "min_new_tokens": 1,
        "sampling_seed": 3,
        "top_p": 0.9,
        "stop": ["x"],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def test_generate_has_no_hidden_limit() -> None:
    params = generate_body(replace(PROMPT, sampling={}), prompt_token_ids=IDS)["sampling_params"]
    assert "max_new_tokens" in params and params["max_new_tokens"] is None


def test_generate_constrains_by_schema_and_asks_for_logprobs() -> None:
    schema = {"type": "object"}
    sampling = {
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        "logprobs": True,
    }
    got = generate_body(replace(PROMPT, sampling=sampling), prompt_token_ids=IDS)
    assert got["sampling_params"]["json_schema"] == '{"type": "object"}'
    assert got["return_logprob"] is True


@pytest.mark.parametrize(
    "sampling",
    [{"tool_choice": "required"}, {"unheard_of": 1}, {"response_format": {"type": "structural_tag"}}],
)
def test_generate_refuses_what_it_can_t_say(sampling: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match=next(iter(sampling))):
        generate_body(replace(PROMPT, sampling=sampling), prompt_token_ids=IDS)


def test_rendering_declares_the_tools_and_generates_one_token() -> None:
    got = render_body(PROMPT, model="m")
    assert got["tools"] == [TOOL] and got["max_tokens"] == 1
    assert got["chat_template_kwargs"] == {"thinking": True}
    assert "temperature" not in got
