"""Rows that state that they are exact, whatever they are: for the tests of what is proven at a glance.

Place in the flow: none; imported by tests only.

The fields are drawn, good ones and bad ones; the text is what the rebuilder makes of them, so it always fits.
What is left to be found is what the judge reads in that text.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from contracts.formats import Format
from contracts.rebuild import rebuild
from contracts.records import Fields, Profile
from contracts.rules import Context
from contracts.rules.fidelity import framing_of_row
from contracts.rules.registry import Batch
from contracts.shard import Row, arrow_schema, seal
from contracts.tokens import Codec
from fixtures.corruptions.rows import CLEAN, rows_of
from harness.odd_inputs import ARGUMENTS, CALL_IDS, CALL_NAMES, ODD_TEXTS
from harness.strategies import plain_texts, safe_arguments, spell

BASE = rows_of(CLEAN[:1])[0]
DECLARED = '[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]'


def batch_of(rows: list[Row]) -> Batch:
    table = pa.Table.from_pylist(rows, schema=arrow_schema())
    return Batch(table, pl.DataFrame(pl.from_arrow(table)))


def context(fmt: Format, tokenizer: Codec) -> Context:
    return Context(Profile.DRAFT, "a.parquet", fmt, tokenizer)


def fragments(fmt: Format) -> list[str]:
    """Texts that a family's parsers react to, whole and broken off."""
    whole = [*fmt.markers, *fmt.end_tokens, *fmt.reserved]
    syntax = fmt.tools
    for name in ("call_begin", "call_end", "parameter_begin", "key_end", "parameter_end", "section_end"):
        whole += [text] if (text := getattr(syntax, name, "")) else []
    # The same tags with other white space between them are tags to most parsers.
    whole += [text.replace("\n", "") for text in whole if "\n" in text.strip()]
    cuts = [part for text in whole for part in (text[:1], text[: len(text) // 2], text[-1:], text[-2:])]
    return [text for text in dict.fromkeys([*whole, *cuts]) if text]


ODD_PARTS = ("nothing", "texts", "arguments", "headers", "wire", "frame", "all")
"""What of a row is odd: one thing at a time, so that the rest of it would be let through."""


def free_texts(fmt: Format, tokenizer: Codec, odd_part: str) -> st.SearchStrategy[str]:
    """A field's text: plain, or with what it should not hold."""
    plain = plain_texts(fmt, tokenizer)
    if odd_part not in ("texts", "all"):
        return plain
    odd = st.sampled_from([*fragments(fmt), *ODD_TEXTS, "{", "[f(", '{"name": "f", "parameters": {}}'])
    spoiled = st.tuples(odd, plain, odd).map("".join) | st.tuples(plain, odd, plain).map("".join)
    return st.one_of(plain, plain, plain, spoiled, st.just(""))


def arguments_of(fmt: Format, odd_part: str) -> st.SearchStrategy[str]:
    """A call's arguments: ones that survive, or odd ones and such with the family's own texts inside."""
    if odd_part not in ("arguments", "all"):
        return safe_arguments(fmt)
    odd = st.sampled_from(fragments(fmt))
    values = st.tuples(odd | st.text(max_size=3), st.text(max_size=3), odd | st.text(max_size=3)).map("".join)
    keys = st.sampled_from(("city", "x", "a b", "", 'k"', "k>", "k=")) | odd
    spoiled = st.dictionaries(keys, values | st.lists(values, max_size=2), max_size=2).map(
        lambda value: json.dumps(value, ensure_ascii=False)
    )
    return st.one_of(
        safe_arguments(fmt),
        safe_arguments(fmt),
        st.sampled_from(ARGUMENTS),
        spoiled,
        spoiled.map(lambda t: f" {t}"),
    )


def wire(data: st.DataObject, fmt: Format, odd_part: str) -> str | None:
    """The tool calls of a response as JSON text, in any spelling of the keys, or none."""
    odd_headers, odd_wire = odd_part in ("headers", "all"), odd_part in ("wire", "all")
    names = st.sampled_from(("f", "get_weather", "a.b-c_d"))
    if odd_headers:
        names = st.sampled_from((*CALL_NAMES, "f")) | st.sampled_from(fragments(fmt))
    calls: list[dict[str, Any]] = []
    for index in range(data.draw(st.sampled_from((0, 1, 1, 1, 2, 3)))):
        name = data.draw(names)
        good = f"functions.{name}:{index}"
        function = {"name": name, "arguments": data.draw(arguments_of(fmt, odd_part))}
        call_id = data.draw(st.sampled_from((good, *CALL_IDS))) if odd_headers else good
        calls.append({"id": call_id, "index": index, "type": "function", "function": function})
    if not calls:
        return data.draw(st.sampled_from((None, "[]", "null", ""))) if odd_wire else None
    text = json.dumps(calls, ensure_ascii=data.draw(st.booleans()), separators=data.draw(SEPARATORS))
    spoils = (
        lambda: text.replace('"name":', '"name": "g", "name":', 1),
        lambda: text.replace('"arguments":', '"arguments": "{}", "arguments":', 1),
        lambda: text.replace('"name"', '"n\\u0061me"', 1),
        lambda: text.replace('"index": 0', '"index": "0"', 1).replace('"type"', '"kind"', 1),
        lambda: text.replace('"id"', '"ID"', 1),
        lambda: text[:-1],
        lambda: text,
    )
    return data.draw(st.sampled_from(spoils))() if odd_wire else text


SEPARATORS = st.sampled_from(((",", ":"), (", ", ": "), (" , ", " : ")))


def called_row(data: st.DataObject, fmt: Format, tokenizer: Codec) -> Row:
    """A row of a family, calls and all, that states that it is exact, or exact but for the split."""
    odd_part = data.draw(st.sampled_from(ODD_PARTS))
    odd_frame = odd_part in ("frame", "all")
    instant = data.draw(st.booleans()) and bool(fmt.template_switch)
    ends = fmt.opener if fmt.opener_prefilled and not instant else fmt.opener + fmt.closer if instant else ""
    prompt = tokenizer.encode(f"Say: hello\n{'' if odd_frame and data.draw(st.booleans()) else ends}")
    texts = free_texts(fmt, tokenizer, odd_part)
    reasoning = data.draw(texts) if fmt.thinks and not instant else ""
    tool_calls = wire(data, fmt, odd_part) if fmt.tools else None
    finish = "tool_calls" if tool_calls else data.draw(st.sampled_from(("stop", "stop", "length")))
    matched = None if finish != "stop" else data.draw(st.sampled_from((None, '" END"')))
    if odd_frame:
        finish = data.draw(st.sampled_from(("stop", "tool_calls", "length", "abort")))
        ids_of_ends = [str(tokenizer.token_id(text)) for text in fmt.end_tokens]
        matched = data.draw(st.sampled_from((None, *ids_of_ends, '" END"', '"\\n"', '"]"')))
    mode = data.draw(st.sampled_from(("tools", "reasoning"))) if odd_frame else "tools"
    declared = data.draw(st.sampled_from((DECLARED, None))) if odd_frame else DECLARED
    parsers = [fmt.reasoning_parser or "none", fmt.tool_parser or "none"]
    if odd_frame:
        parsers = [data.draw(st.sampled_from((name, name, "none"))) for name in parsers]
    row: Row = {
        **BASE,
        "tools": declared,
        "prompt_token_ids": prompt,
        "prompt_tokens": len(prompt),
        "text_source": "derived",
        "reasoning_content": reasoning or None,
        "content": data.draw(texts) or None,
        "tool_calls": tool_calls,
        "finish_reason": finish,
        "matched_stop": matched,
        "thinking_mode": "instant" if instant else "thinking",
        "template_kwargs": json.dumps({fmt.template_switch: not instant}) if fmt.template_switch else "{}",
        "sampling_params": json.dumps({"max_tokens": 99, "mode": mode, "stream": False}),
        "reasoning_parser": parsers[0],
        "tool_parser": parsers[1],
        "claims": {"captured": True, "text": None, "rebuilt": True, "tokens": True},
        "verdict": "exact",
        "losses": [],
    }
    framing = framing_of_row(row, fmt, tokenizer)
    text = rebuild(Fields(row["reasoning_content"], row["content"], tool_calls), framing).text
    ids = tokenizer.encode(text.encode("utf-8", "replace").decode())
    if data.draw(st.sampled_from((False, False, True))):
        ids = split_somewhere(data, ids, tokenizer)
        if data.draw(st.sampled_from((True, True, False))):
            row |= {"verdict": "text_exact", "losses": ["noncanonical-split"]}
            row["claims"] = {**row["claims"], "tokens": False}
    row["response_token_ids"] = ids
    row["completion_tokens"] = len(ids)
    row["response_text_raw"] = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
    last = {
        **row["messages"][-1],
        "content": row["content"] or "",
        "reasoning_content": row["reasoning_content"],
        "tool_calls": tool_calls,
    }
    return seal({**row, "messages": [*row["messages"][:-1], last]})


def split_somewhere(data: st.DataObject, ids: list[int], tokenizer: Codec) -> list[int]:
    """Write one token in smaller ones: a word split otherwise, or a marker spelled."""
    if not ids:
        return ids
    at = data.draw(st.integers(0, len(ids) - 1))
    try:
        piece = tokenizer.decode_bytes(ids[at : at + 1]).decode()
    except UnicodeDecodeError:
        return ids
    return [*ids[:at], *spell(piece, tokenizer), *ids[at + 1 :]]
