"""The answers in each mode, plain and streamed: is all there that the server itself gives?

Place in the flow: one half of `harness.gateway.compare`. Imports `harness.modes`, `harness.gateway.facts` and
`way`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.records import Mode, Prompt
from harness.gateway.facts import Told, excerpt, follows_the_sample, lost, take
from harness.gateway.way import Answer, Way
from harness.modes import chat_body, generate_body

MODE_TOKENS = 24
"""Length of an unscripted answer in a mode."""

TRIES = 3
"""How often a difference must show before it counts."""

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
        },
    },
}


PROMPT = Prompt(
    name="gateway",
    messages=({"role": "user", "content": "What is two and two? Answer in a word."},),
    tools=(_TOOL,),
)
"""What the modes ask where the caller names no prompt."""


class Answers:
    """The answers of one comparison."""

    def __init__(self, way: Way, prompt: Prompt | None) -> None:
        self._way = way
        self._prompt = prompt or PROMPT

    async def all(self) -> None:
        """Compare every mode."""
        bodies = [one for one in self._bodies() if self._way.wanted(f"answers: {one[0]}")]
        for number, (path, body) in enumerate(bodies):
            facts = {"message": f"answers: {path}", "done": number, "total": len(bodies)}
            self._way.on_event("gateway", facts)
            await self._exchange(path, body)

    def _bodies(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the modes' requests, plain and streamed, without the fields that the gateway loses."""
        lost_in = {name: self._way.broken[name] for name in ("chat", "generate")}
        script = None if lost_in["chat"] & {"custom_params", "custom_logit_processor"} else self._way.script
        prompt = self._prompt
        # A script has its own length.
        limit = {"max_tokens": max(MODE_TOKENS, len(self._way.script.ids) if self._way.script else 0)}
        sampling = {**prompt.sampling, "temperature": 0, **limit}
        prompt = Prompt(prompt.name, prompt.messages, prompt.tools, sampling)
        found: list[tuple[str, dict[str, Any]]] = []
        for mode in Mode:
            for stream in (False, True):
                body = chat_body(
                    prompt,
                    mode,
                    model=self._way.model,
                    prompt_token_ids=None,
                    scripted=script,
                    stream=stream,
                )
                if mode is Mode.REASONING and not stream:
                    body |= {"logprobs": True, "return_meta_info": True}
                if mode is Mode.TOOLS and script is None:
                    body |= {"tool_choice": "required"}
                found.append((f"{mode}, streamed" if stream else str(mode), body))
        if not self._way.absent("/generate") and self._way.places["$ids"]:
            script = (
                None
                if lost_in["generate"] & {"sampling_params.custom_params", "custom_logit_processor"}
                else self._way.script
            )
            for stream in (False, True):
                body = generate_body(
                    prompt,
                    prompt_token_ids=self._way.places["$ids"],
                    scripted=script,
                    stream=stream,
                    logprobs=True,
                )
                if "input_ids" in lost_in["generate"]:
                    body["text"] = "Hi there"
                found.append(("generate, streamed" if stream else "generate", body))
        for path, body in found:
            for name in lost_in["generate" if path.startswith("generate") else "chat"]:
                take(body, name)
        return found

    async def _exchange(self, path: str, body: Mapping[str, Any]) -> None:
        """Compare one request's answers; a difference counts when it shows in every try."""
        first = await self._way.ask(self._way.direct, path, body)
        if first.status != 200:
            self._way.unseen.append((f"answers: {path}", f"the server itself refuses: {first.says}"))
            return
        self._way.checked.append(f"answers: {path}")
        missing: set[str] | None = None
        changed: dict[str, tuple[Any, Any]] | None = None
        problems: set[str] | None = None
        for _ in range(TRIES):
            direct = await self._way.ask(self._way.direct, path, body)
            through = await self._way.ask(self._way.through, path, body)
            if through.status != 200:
                told = Told("this mode can't be asked for at all", "ask the server itself", needed=True)
                refused = f"refused with {through.status or 'no answer'}: {through.says}"
                self._way.find(f"mode-refused: {path}", "answer", "answered", refused, told)
                return
            stable = {name: direct.found[name] for name in first.found.keys() & direct.found.keys()}
            gone = set(lost(stable, through.found))
            other = {
                name: (values, through.found[name])
                for name, values in stable.items()
                if first.found[name] == values and through.found.get(name, values) != values
                if self._counts(name)
            }
            wrong = _frame_problems(direct, through)
            missing = gone if missing is None else missing & gone
            changed = other if changed is None else {k: v for k, v in changed.items() if k in other}
            problems = wrong if problems is None else problems & wrong
            if not (missing or changed or problems):
                return
        self._tell(path, first, missing or set(), changed or {}, problems or set())

    def _tell(
        self,
        path: str,
        first: Answer,
        missing: set[str],
        changed: Mapping[str, tuple[Any, Any]],
        problems: set[str],
    ) -> None:
        for name in sorted(problems):
            if not self._way.named(f"stream: {name}"):
                told = self._way.table.streams[name]
                self._way.find(f"stream: {name}", "stream", "as it should be", path, told)
        if "no-stream" in problems:
            return
        transport = "generate " if path.startswith("generate") else ""
        for name in sorted(missing):
            title = f"answer-dropped: {transport}{name}"
            if not self._way.named(title):
                told = self._way.table.told_of(name)
                was = excerpt(next(v for k, v in first.found.items() if k.startswith(name)))
                self._way.find(title, "answer", was, f"absent ({path})", told)
        for name, (was, now) in sorted(changed.items()):
            title = f"answer-altered: {transport}{name.removesuffix('[]')}"
            if not self._way.named(title):
                told = self._way.table.told_of(name)
                self._way.find(title, "answer", excerpt(was), excerpt(now), told)

    def _counts(self, path: str) -> bool:
        """Whether another value at this path means something."""
        key = path.rstrip("[]").rpartition(".")[2]
        return key not in self._way.table.volatile and (self._way.same or not follows_the_sample(path))


def _frame_problems(direct: Answer, through: Answer) -> set[str]:
    found = set(through.problems) - set(direct.problems)
    if not found and direct.events >= 6 and 0 < through.events <= 2:
        found.add("merged")
    return found
