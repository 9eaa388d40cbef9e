"""Who may answer in a run: servers of the same model, weights, flags, tokenizer and template.

Place in the flow: between the runner and the fleet. Imports `contracts`, `harness.client`, and rendering,
serving and settings of this package.

The URLs are no part of it: replicas are interchangeable, and come and go between two starts of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.records import Json, Prompt, ServerFacts
from contracts.tokens import Codec
from harness.client import Client
from harness.recording import rendering
from harness.recording.serving import OtherServer
from harness.recording.settings import differences, served_by
from harness.wire_errors import ClientError, HttpStatusError

TEMPLATE = "chat template"
_UNTOLD = (TEMPLATE, "flag remote_code_sha256")
"""What only a server on this machine tells: it is no difference that another one does not."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_ASKED = ({"role": "user", "content": "Hello, 你好! What is 1 + 1?"},)


class Identity:
    """What the servers of one run have in common.

    `mine` are the settings that the plan itself makes, `before` those that the run was begun with (none yet:
    empty). `known` gives the client of a server that works, another one than that of the URL it is given.
    """

    def __init__(
        self,
        mine: Mapping[str, Json],
        *,
        before: Mapping[str, Json],
        known: Callable[[str], Client | None],
        folder: Path,
        codec: Codec,
        fmt: Format,
        renderer: rendering.Renderer | None,
        api_key: Callable[[], str | None],
    ) -> None:
        self._mine = dict(mine)
        self._folder = folder
        self._codec = codec
        self._format = fmt
        self._renderer = renderer
        self._api_key = api_key
        self._known = known
        self.pinned: dict[str, Json] = dict(before)

    def recorded(self, told: ServerFacts) -> ServerFacts:
        """Return a server's facts as its rows record them."""
        told = replace(told, tokenizer_sha256=told.tokenizer_sha256 or self._codec.sha256)
        # Over `generate` the server's own template takes no part: the one used is the one recorded.
        if self._renderer is not None:
            return replace(told, chat_template_sha256=self._renderer.template_sha256)
        known = self.pinned.get(TEMPLATE)
        if told.chat_template_sha256 is None and isinstance(known, str):
            return replace(told, chat_template_sha256=known)
        return told

    def settings(self, told: ServerFacts) -> dict[str, Json]:
        """Return all that a run under this server is pinned to."""
        now = {**self._mine, **served_by(told, self._format.name)}
        for name in _UNTOLD:
            if now.get(name) is None and self.pinned.get(name) is not None:
                now[name] = self.pinned[name]
        return now

    async def begin(self, told: ServerFacts) -> ServerFacts:
        """Take the first server as the one that others are held to; returns its facts to record.

        Raises:
            ShardgateError: the tokenizer is not this server's.
        """
        await self._same_tokenizer(told)
        told = self.recorded(told)
        self.pinned = self.settings(told)
        return told

    async def adopt(self, told: ServerFacts) -> ServerFacts:
        """Check that a server is the same as the first; returns its facts to record.

        Raises:
            OtherServer: it is not; says what differs.
            ClientError: it does not answer.
        """
        told = self.recorded(told)
        now = self.settings(told)
        for name in _UNTOLD:
            if self.pinned.get(name) is None:
                now.pop(name, None)
        why = "; ".join(differences({name: self.pinned.get(name) for name in {**now, **self.pinned}}, now))
        try:
            if not why:
                await self._same_tokenizer(told)
        except ShardgateError as error:
            why = f"{error.what}: {error.why}"
        why = why or await self._prompts_differ(told)
        if why:
            raise OtherServer(
                what="another server answers than the one that the run was begun with",
                where=told.base_url,
                why=why,
                remedy="start it as it was, then give the same command to go on; or leave its URL out",
            )
        return told

    async def _same_tokenizer(self, told: ServerFacts) -> None:
        await asyncio.to_thread(rendering.refuse_foreign, self._folder, self._codec, told, self._api_key())

    async def _prompts_differ(self, told: ServerFacts) -> str:
        """Return what differs where two servers make two prompts of the same words; over chat alone."""
        known = self._known(told.base_url)
        if self._renderer is not None or known is None:
            return ""
        async with Client(told.base_url, facts=told, api_key=self._api_key()) as client:
            for tools in (None, (_TOOL,)):
                asked = Prompt(name="same", messages=_ASKED, tools=tools)
                theirs = await _rendered(client, asked)
                try:
                    ours = await _rendered(known, asked)  # now, and not kept: a template may name the day
                except (ClientError, RuntimeError):
                    return ""  # it has just gone: nobody to compare with
                if theirs != ours:
                    kind = "with tools" if tools else "without tools"
                    return f"{TEMPLATE}: a prompt {kind} gets other token ids than at {known.base_url}"
        return ""


async def _rendered(client: Client, prompt: Prompt) -> tuple[int, ...] | str:
    try:
        return await client.render(prompt)
    except HttpStatusError as error:
        return f"status {error.status}"
