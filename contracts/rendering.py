"""A chat template rendered as the engine renders it: what the prompt of a row must be.

Place in the flow: beside the shard, under the prompt rules. Imports `contracts.given`; jinja2 in
functions. The environment is that of transformers' `apply_chat_template`: sandboxed, blocks trimmed,
loop controls, `raise_exception`, `strftime_now`, and a `tojson` that keeps characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from contracts.given import Template

if TYPE_CHECKING:
    from jinja2 import Environment

Messages = Sequence[Mapping[str, Any]]


class Unrenderable(ValueError):
    """The template does not render these messages; the message says why."""


def renderings(
    template: Template,
    messages: Messages,
    tools: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
    time: datetime | None = None,
) -> Iterator[str]:
    """Yield the texts that engines make of a prompt, each once, the usual one first.

    They differ in whether a template is handed call arguments as objects or as the texts that they came as,
    tools as the request has them or as the engine writes them out (`_declarations`), and an empty content
    beside calls as "" or as none. `time` is what
    templates that name the day are told.

    Raises:
        Unrenderable: no form of the messages can be rendered.
    """
    seen: set[str] = set()
    failed = ""
    whole = list(tools) if tools else None
    called = any(message.get("tool_calls") for message in messages)
    forms = product(_declarations(whole), (True, False) if called else (True,), (True, False))
    for declared, parsed, empty in forms:
        if not empty and not called:
            continue
        try:
            given = [_message(message, parsed, empty) for message in messages]
            text = render(template, given, declared, kwargs, time)
        except Unrenderable as error:
            failed = failed or str(error)
            continue
        if text not in seen:
            seen.add(text)
            yield text
    if not seen:
        raise Unrenderable(failed)


def _declarations(tools: list[Any] | None) -> list[list[Any] | None]:
    """Return the forms in which engines hand declared tools to a template, each once.

    SGLang fills in what its own types have and the request has not: 0.5.23 a `defer_loading` of null behind
    each tool (seen on a running server), releases before it also the keys of a function in their own order
    and `strict` (sglang 0.5.3 to 0.5.18, `Function.model_dump()`).
    """
    if not tools or not all(isinstance(tool, Mapping) for tool in tools):
        return [tools]
    functions = [tool.get("function", tool) for tool in tools]
    forms: list[list[Any] | None] = [tools, functions]
    if all(isinstance(function, Mapping) for function in functions):
        forms.append([{**tool, "defer_loading": tool.get("defer_loading")} for tool in tools])
        for strict in (False, None):
            dumped = [
                {
                    "type": "function",
                    "function": {
                        "description": function.get("description"),
                        "name": function.get("name"),
                        "parameters": function.get("parameters"),
                        "strict": function.get("strict", strict),
                    },
                }
                for function in functions
            ]
            forms.append(dumped)
    seen: list[list[Any] | None] = []
    for form in forms:
        if not any(json.dumps(form) == json.dumps(other) for other in seen):
            seen.append(form)
    return seen


def render(
    template: Template,
    messages: Messages,
    tools: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
    time: datetime | None = None,
) -> str:
    """Render messages with the generation prompt.

    Raises:
        Unrenderable: the template does not compile, or refuses them.
    """
    compiled = _compiled(template.source)
    given = {
        **dict(template.tokens),
        **kwargs,
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": True,
    }
    given.setdefault("strftime_now", lambda form: (time or datetime.now()).strftime(form))
    try:
        return str(compiled.render(**given))
    except Exception as error:  # a template is a program: it can fail in any way
        raise Unrenderable(f"{type(error).__name__}: {str(error)[:200]}") from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    from jinja2 import TemplateError

    try:
        return environment().from_string(source)
    except TemplateError as error:
        raise Unrenderable(f"the template does not compile: {error}") from error


@cache
def environment() -> Environment:
    """Return the environment in which transformers compiles chat templates; jinja2 is imported only now."""
    from jinja2 import TemplateError, nodes, pass_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `{% generation %}` marks what the assistant said; it renders as its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)

    @pass_context
    def as_it_is(context: object, value: object) -> object:
        return value

    # Constants would be computed while compiling, and a template may have "x" * 10**10: so not optimised, and
    # with a last step that asks for the context, which only rendering has.
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=as_it_is,
        extensions=[Generation, loopcontrols],
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    return made


def _message(message: Mapping[str, Any], parsed: bool, empty: bool) -> dict[str, Any]:
    """Return a shard's message as an engine hands it to the template: no nulls, calls as a list."""
    out = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in out:
        try:
            calls = json.loads(out["tool_calls"])
        except ValueError as error:
            raise Unrenderable("tool calls are no JSON") from error
        if not empty and not out.get("content"):
            out["content"] = None
        out["tool_calls"] = [_call(call, parsed) for call in calls] if isinstance(calls, list) else calls
    return out


def _call(call: Any, parsed: bool) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not parsed or not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
