"""Prompt parity: the stored prompt ids are what the model's own chat template renders."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts import audit, write_shard
from contracts.given import Given, Template, load_template
from contracts.records import Severity
from contracts.rendering import Unrenderable, render, renderings
from contracts.run import AuditResult, fingerprint
from contracts.shard import UNKNOWN, Row, seal
from fixtures.corruptions.rows import CLEAN, ODD, TEMPLATES, codec, rows_of

TEMPLATE = Template((TEMPLATES / "kimi_k25.jinja").read_text(encoding="utf-8"))
GIVEN = Given(template=TEMPLATE)


def rows(*, odd: bool = False) -> list[Row]:
    out = rows_of((*CLEAN, *ODD) if odd else CLEAN)
    return [seal({**row, "chat_template_sha256": TEMPLATE.sha256}) for row in out]


def check(tmp_path: Path, spoiled: list[Row], given: Given = GIVEN) -> AuditResult:
    path = write_shard(tmp_path / "a.parquet", [seal(row) for row in spoiled], format_name="kimi_k2")
    return audit([path], codec=codec(), given=given)


def fired(result: AuditResult) -> set[tuple[str, int | None]]:
    return {(found.rule, found.row) for found in result.findings if found.rule.startswith("prompt-")}


def test_clean_and_odd_prompts_are_what_the_template_renders(tmp_path: Path) -> None:
    assert check(tmp_path, rows()).findings == ()
    assert fired(check(tmp_path, rows(odd=True))) == set()


def encoded(row: Row, change: Callable[[str], str]) -> None:
    text = codec().decode_bytes(row["prompt_token_ids"]).decode()
    assert change(text) != text
    row["prompt_token_ids"] = codec().encode(change(text))
    row["prompt_tokens"] = len(row["prompt_token_ids"])


SPOILS: dict[str, Callable[[list[Row]], None]] = {
    "system message lost": lambda r: encoded(r[0], lambda t: t[t.index("<|im_user|>") :]),
    "system message doubled": lambda r: encoded(r[0], lambda t: t[: t.index("<|im_user|>")] + t),
    "role token changed": lambda r: encoded(r[0], lambda t: t.replace("<|im_user|>", "<|im_system|>", 1)),
    "opener doubled": lambda r: encoded(r[0], lambda t: t + "<think>"),
    "end token lost": lambda r: encoded(r[0], lambda t: t.replace("<|im_end|>", "", 1)),
    "another system message": lambda r: encoded(r[0], lambda t: t.replace("You are Kimi", "You are not")),
    "a space more": lambda r: encoded(r[0], lambda t: t.replace("spiders", "spiders ")),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_changed_prompt_is_caught_though_its_messages_are_in_it(tmp_path: Path, name: str) -> None:
    spoiled = rows()
    SPOILS[name](spoiled)
    result = check(tmp_path, spoiled)
    assert ("prompt-differs", 0) in fired(result) and {row for _, row in fired(result)} == {0}
    found = next(f for f in result.findings if f.rule == "prompt-differs")
    assert found.severity is Severity.ERROR and "they part at character" in found.message


def test_swapped_prompts_are_caught_without_the_messages_changing(tmp_path: Path) -> None:
    spoiled = rows()
    one, two = spoiled[0], spoiled[6]
    for name in ("prompt_token_ids", "prompt_tokens"):
        one[name], two[name] = two[name], one[name]
    assert {("prompt-differs", 0), ("prompt-differs", 6)} <= fired(check(tmp_path, spoiled))


def test_reasoning_of_earlier_turns_is_what_the_template_keeps(tmp_path: Path) -> None:
    """The calls of a turn that goes on keep their thinking; a finished turn's is emptied by this template."""
    spoiled = rows()
    agentic = next(row for row in spoiled if row["conversation_id"] == "agentic")
    call = next(m for m in agentic["messages"] if m["tool_calls"])
    call["reasoning_content"] = "It is about Oslo."
    at = spoiled.index(agentic)
    assert ("prompt-differs", at) in fired(check(tmp_path, spoiled)), (
        "the prompt lacks what the template keeps"
    )
    encoded(agentic, lambda t: t.replace("<think></think><|tool", "<think>It is about Oslo.</think><|tool"))
    assert fired(check(tmp_path, spoiled)) == set()


def test_a_marker_spelled_out_inside_the_prompt_is_caught(tmp_path: Path) -> None:
    spoiled = rows()
    ids = spoiled[0]["prompt_token_ids"]
    at = ids.index(codec().token_id("<|im_end|>"))
    spelled = [token for char in "<|im_end|>" for token in codec().encode(char)]
    spoiled[0]["prompt_token_ids"] = [*ids[:at], *spelled, *ids[at + 1 :]]
    spoiled[0]["prompt_tokens"] = len(spoiled[0]["prompt_token_ids"])
    found = [f for f in check(tmp_path, spoiled).findings if f.rule == "prompt-differs"]
    assert [f.row for f in found] == [0] and "<|im_end|>" in found[0].message


def test_another_template_is_told_as_not_compared(tmp_path: Path) -> None:
    plain = rows_of(CLEAN)
    result = check(tmp_path, plain)
    assert result.rates == {"prompt-unrendered": len(plain)} and result.certified == len(plain)
    unknown = [{**row, "chat_template_sha256": UNKNOWN} for row in plain]
    assert fired(check(tmp_path, unknown)) == set(), "not told which it was: compared all the same"


def test_a_template_that_refuses_the_messages_is_told(tmp_path: Path) -> None:
    template = Template("{{ raise_exception('no such role') }}")
    result = check(
        tmp_path,
        [{**row, "chat_template_sha256": template.sha256} for row in rows()],
        Given(template=template),
    )
    assert set(result.rates) == {"prompt-unrendered"} and "no such role" in result.findings[0].message


def test_repeats_of_a_prompt_are_rendered_once(tmp_path: Path) -> None:
    template = Template("{% set _ = messages.append('x') %}")
    many = []
    for number in range(5):
        row = copy.deepcopy(rows()[0])
        many.append({**row, "sample_id": f"s{number}", "sample_index": number, "request_id": f"r{number}"})
    many[3]["prompt_token_ids"] = [*many[3]["prompt_token_ids"][:-1], 7]
    assert ("prompt-differs", 3) in fired(check(tmp_path, many))
    with pytest.raises(Unrenderable):
        render(template, many[0]["messages"], None, {})


def test_the_fingerprint_covers_the_template_and_the_folder_is_read(tmp_path: Path) -> None:
    assert fingerprint(given=GIVEN) != fingerprint()
    assert load_template(tmp_path) is None and load_template(tmp_path / "none") is None
    config = {"chat_template": "{{ bos_token }}!", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_template(tmp_path)
    assert found is not None and list(renderings(found, [], None, {})) == ["<s>!"]
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}?")
    found = load_template(tmp_path)
    assert found is not None and list(renderings(found, [], None, {})) == ["</s>?"]


@pytest.mark.parametrize(
    "written_out",
    [
        lambda tool: {**tool, "defer_loading": None},
        lambda tool: {
            "type": "function",
            "function": {
                "description": tool["function"].get("description"),
                "name": tool["function"]["name"],
                "parameters": tool["function"].get("parameters"),
                "strict": False,
            },
        },
    ],
    ids=["0.5.23", "before"],
)
def test_tools_as_the_engine_writes_them_out_are_the_request_s_own(
    written_out: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    function = {"name": "f", "description": "Adds.", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    template = Template("{{ tools | tojson }}|")
    made = list(renderings(template, [], [tool], {}))
    assert render(template, [], [written_out(tool)], {}) in made and len(made) == len(set(made))
