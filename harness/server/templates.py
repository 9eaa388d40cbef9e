"""Whether a chat template compiles, as transformers would compile it; nothing of it is rendered.

Place in the flow: under the pre-flight check and the doctor. Imports `contracts.rendering`, which
imports jinja2 only when it is used.

SGLang 0.5.23 boots with a template that does not compile: `/generate` works, and every chat request fails.
"""

from __future__ import annotations

from contracts.rendering import environment


def template_fault(text: str) -> str | None:
    """Say why a chat template does not compile, with its line; None where it does."""
    from jinja2 import TemplateSyntaxError

    try:
        environment().compile(text, raw=True)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deep"
    return None
