"""Whether a chat template compiles, as transformers would compile it; nothing of it is rendered.

Place in the flow: under the pre-flight check and the doctor. Imports the standard library; jinja2 only inside
a function.

SGLang 0.5.23 boots with a template that does not compile: `/generate` works, and every chat request fails.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def _environment() -> Environment:
    from jinja2 import nodes, pass_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}`, by which transformers marks what the assistant says."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 has it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    @pass_context
    def as_it_is(context: object, value: object) -> object:
        return value

    # Constants would be computed while compiling, and a template may have "x" * 10**10: so not optimised, and
    # with a last step that asks for the context, which only rendering has.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=as_it_is,
        extensions=[Generation, loopcontrols],
    )


def template_fault(text: str) -> str | None:
    """Say why a chat template does not compile, with its line; None where it does."""
    from jinja2 import TemplateSyntaxError

    try:
        _environment().compile(text, raw=True)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deep"
    return None
