"""Both sides of a comparison: the server itself and the gateway, what they are asked, what was found so far.

Place in the flow: under the comparison of fields and of answers. Imports the client's modules and
`harness.gateway.facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import FORMATS
from harness.client import CHAT, GENERATE
from harness.gateway.facts import (
    GENERATE as OVER_GENERATE,
)
from harness.gateway.facts import (
    STREAM,
    Endpoint,
    Leaves,
    Table,
    Told,
    frame,
    leaves,
    stream_leaves,
    table,
)
from harness.http import HttpSession
from harness.modes import Scripted
from harness.outcomes import GatewayFinding
from harness.wire_errors import HttpStatusError, MalformedResponse, ServerGone
from harness.wire_json import json_object

TOKENS = 6
"""Length of the answers that probe a field."""

ORDINARY_TEXT = "a"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer taken apart; `status` is 200 or what refused (0: no answer), `says` the refusal's words."""

    status: int
    found: Leaves
    says: str = ""
    problems: tuple[str, ...] = ()
    events: int = 0


class Way:
    """One comparison under way. `broken` has, by transport, the request fields that don't arrive."""

    def __init__(
        self,
        direct: HttpSession,
        through: HttpSession,
        *,
        script: Scripted | None,
        only: Collection[str] | None,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.direct, self.through = direct, through
        self.script = script
        self.on_event = on_event
        self.table: Table = table()
        self.findings: list[GatewayFinding] = []
        self.checked: list[str] = []
        self.unseen: list[tuple[str, str]] = []
        self.broken: dict[str, set[str]] = {"chat": set(), "generate": set()}
        self.places: dict[str, Any] = {}
        self.model = ""
        self.same = False
        self._only = only

    def wanted(self, name: str) -> bool:
        """Whether the caller asked for this part."""
        return self._only is None or name in self._only

    def absent(self, path: str) -> bool:
        """Whether an endpoint was found not to be there."""
        return self.named(f"endpoint-absent: {path}")

    def named(self, name: str) -> bool:
        """Whether a finding of this name was told already."""
        return any(one.name == name for one in self.findings)

    def find(self, name: str, side: str, direct: str, through: str, told: Told) -> None:
        """Keep a finding."""
        consequence, remedy, needed = told.consequence, told.remedy, told.needed
        self.findings.append(GatewayFinding(name, side, direct, through, consequence, remedy, needed))

    async def get_ready(self) -> None:
        """Learn the model's name and the places' values; see whether both sides sample alike."""
        models = await json_of(self.direct, "/v1/models")
        listed = models.get("data")
        self.model = str(listed[0].get("id")) if isinstance(listed, list) and listed else "default"
        ids = await self._encode(ORDINARY_TEXT)
        plain = await self.ask(self.direct, OVER_GENERATE, self.base(OVER_GENERATE))
        sampled = plain.found.get("output_ids[]", ())
        special = await self._end_token()
        self.places = {
            "$ordinary": ids[-1] if ids else None,
            "$special": special,
            "$third": sampled[2] if len(sampled) > 2 and sampled[2] not in sampled[:2] else None,
            "$text": ORDINARY_TEXT * 2,
            "$ids": [ids[-1]] * 5 if ids else None,
            "$processor": self.script.processor if self.script else None,
            "$params": dict(self.script.params) if self.script else None,
        }
        body = {**self.base("chat"), "return_token_ids": True}
        direct = [await self.ask(self.direct, "chat", body) for _ in range(2)]
        if direct[0].status != 200:
            raise ShardgateError(
                "the server itself answers no chat request",
                where=self.direct.base_url,
                why=direct[0].says,
                remedy="give the URL of an SGLang server that is ready (--direct)",
            )
        through = [await self.ask(self.through, "chat", body) for _ in range(2)]
        if through[0].status != 200:
            raise ShardgateError(
                "the gateway answers no chat request",
                where=self.through.base_url + CHAT,
                why=through[0].says,
                remedy="check its URL, its workers and its log",
            )
        self.same = len({_sample(one.found, through[0].found) for one in (*direct, *through)}) == 1
        if not self.same:
            self.unseen.append(
                ("generated values", "the two don't give the same tokens at temperature 0; not compared")
            )

    async def _encode(self, text: str) -> list[int]:
        answer = await json_of(self.direct, "/tokenize", {"prompt": text, "add_special_tokens": False})
        ids = answer.get("tokens")
        return [one for one in ids if type(one) is int] if isinstance(ids, list) else []

    async def _end_token(self) -> int | None:
        """An id at which this server ends an answer over both transports, found by forcing each known one.

        A vocabulary may have the end tokens of several families. Where none ends (no bias arrives, perhaps):
        the first.
        """
        known = [ids[0] for text in _end_tokens() if len(ids := await self._encode(text)) == 1]
        for one in known:
            generate, chat = self.base(OVER_GENERATE), self.base("chat")
            for sampling in (generate["sampling_params"], chat):
                sampling["logit_bias"] = {str(one): 100}
            answers = [await self.ask(self.direct, OVER_GENERATE, generate)]
            answers.append(await self.ask(self.direct, "chat", chat))
            lengths = ("meta_info.completion_tokens", "usage.completion_tokens")
            if all(two.found.get(path) == (1,) for two, path in zip(answers, lengths, strict=True)):
                return one
        return known[0] if known else None

    def base(self, path: str) -> dict[str, Any]:
        if path == OVER_GENERATE:
            return {"text": "Hi there", "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS}}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hi there"}],
            "temperature": 0,
            "max_tokens": TOKENS,
        }
        return {**body, "stream": True} if path == STREAM else body

    async def ask(self, side: HttpSession, path: str, body: Mapping[str, Any]) -> Answer:
        """Ask once; a refusal is an answer, and so is a gateway that hangs up. A server that does is gone."""
        url = GENERATE if path.startswith("generate") else CHAT
        try:
            payload = await side.post(url, body)
        except HttpStatusError as error:
            return Answer(error.status, {}, error.why)
        except (MalformedResponse, ServerGone) as error:
            if side is self.direct:
                raise
            return Answer(0, {}, f"{error.what}: {error.why}")
        if body.get("stream"):
            objects, problems = frame(payload)
            return Answer(200, stream_leaves(objects), problems=problems, events=len(objects))
        try:
            return Answer(200, leaves(json_object(payload)))
        except MalformedResponse as error:
            return Answer(0, {}, f"{error.what}: {error.why}")

    async def endpoint(self, endpoint: Endpoint) -> None:
        name = endpoint.paths[0]
        answers = []
        for side in (self.direct, self.through):
            found = False
            for path in endpoint.paths:
                found = found or endpoint.key in await json_of(side, path, endpoint.body)
            answers.append(found)
        if not answers[0]:
            self.unseen.append((name, "the server itself does not have it"))
            return
        self.checked.append(name)
        if not answers[1]:
            direct, through = f"answers with {endpoint.key!r}", "not there, or it answers something else"
            self.find(f"endpoint-absent: {name}", "endpoint", direct, through, endpoint.told)


def _end_tokens() -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for form in FORMATS.values() for text in form.end_tokens))


async def json_of(side: HttpSession, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a path answers, empty where it is not there or says no."""
    try:
        return json_object(await (side.get(path) if body is None else side.post(path, body)))
    except (HttpStatusError, MalformedResponse):
        return {}


def _sample(found: Leaves, like: Leaves) -> tuple[Any, ...]:
    """What tells one sample from another: the ids where both sides have them, the texts otherwise."""
    ids = "choices[].response_token_ids[]"
    if ids in like:
        return found.get(ids, ())
    texts = ("choices[].message.content", "choices[].message.reasoning_content")
    return tuple(found.get(one, ()) for one in texts)
