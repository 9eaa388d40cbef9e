"""The request fields: does each arrive at the server, or is it lost, refused or altered on the way?

Place in the flow: one half of `harness.gateway.compare`. Imports `harness.gateway.facts` and `way`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from harness.gateway.facts import (
    CHAT,
    GENERATE,
    STREAM,
    Lacking,
    RequestField,
    Told,
    fill,
    put,
    seen,
    shown,
    take,
)
from harness.gateway.way import Answer, Way

Body = dict[str, Any]

BAD = [[1]]
"""A value that none of chat's fields takes: SGLang's request model refuses it before anything runs."""


class Fields:
    """The request fields of one comparison."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def all(self) -> None:
        """Probe every field that is wanted; those that rest on others after those."""
        way = self._way
        wanted = [one for one in way.table.requests if way.wanted(one.name)]
        if way.absent("/generate"):
            wanted = [one for one in wanted if one.path != GENERATE]
        # What shows by the greedy answer goes alone: in a batch a near tie may fall the other way.
        rest = [one for one in wanted if one.rests_on or one.greedy]
        await asyncio.gather(*(self._field(one) for one in wanted if one not in rest))
        for number, one in enumerate(rest):
            way.on_event("gateway", {"message": one.name, "done": number, "total": len(rest)})
            await self._field(one)

    async def _field(self, one: RequestField) -> None:
        lost = self._way.broken[_transport(one)] & set(one.rests_on)
        if lost:
            return await self._by_refusal(one, f"it shows only with {', '.join(sorted(lost))}, which is lost")
        if one.greedy and not self._way.same:
            return await self._by_refusal(one, "it shows only where both give the same tokens")
        try:
            without, given = self._pair(one)
        except Lacking as place:
            return await self._by_refusal(one, f"nothing to fill {place} with here")
        if not one.watch:
            return await self._by_refusal(one, "it has no effect that an answer shows")
        plain, effect = await asyncio.gather(
            self._way.ask(self._way.direct, one.path, without),
            self._way.ask(self._way.direct, one.path, given),
        )
        if effect.status != 200 or plain.status != 200:
            says = effect.says if effect.status != 200 else plain.says
            return await self._by_refusal(one, f"the server itself refuses the probe: {says}")
        expected = seen(one.watch, effect.found)
        if expected == seen(one.watch, plain.found):
            return await self._by_refusal(one, "it has no effect on this server")
        got = await self._way.ask(self._way.through, one.path, given)
        if got.status == 200 and seen(one.watch, got.found) == expected:
            self._way.checked.append(one.name)
            return None
        # Once more on both sides: what changes by itself proves nothing.
        again, got = await asyncio.gather(
            self._way.ask(self._way.direct, one.path, given),
            self._way.ask(self._way.through, one.path, given),
        )
        if got.status == 200 and seen(one.watch, got.found) == expected:
            self._way.checked.append(one.name)
            return None
        if seen(one.watch, again.found) != expected:
            return await self._by_refusal(one, "its effect changes from answer to answer")
        return await self._judge(one, (without, given), plain, effect, got)

    async def _judge(
        self, one: RequestField, pair: tuple[Body, Body], plain: Answer, effect: Answer, got: Answer
    ) -> None:
        """The effect is another through the gateway: say whether the request or the answer loses it."""
        without, given = pair
        direct = shown(one.watch, effect.found)
        if got.status != 200:
            bare = {**given}
            take(bare, one.field)
            refused = await self._way.ask(self._way.direct, one.path, bare)
            # Refused as the server refuses a request that lacks the field: it was dropped.
            same = refused.status == got.status and refused.says == got.says
            words = f"refused with {got.status or 'no answer'}: {got.says}"
            self._lose("field-dropped" if same else "field-refused", one, direct, words)
            return
        arrives = await self._arrives(one)
        if arrives:
            self._way.checked.append(one.name)
            return  # the answer loses it; the comparison of answers names it
        shows = seen(one.watch, got.found)
        dropped = arrives is False or shows == seen(one.watch, plain.found)
        for body in () if dropped else (without, given):
            # The same without the field, or another each time, as samples are: no effect of the field.
            again = seen(one.watch, (await self._way.ask(self._way.through, one.path, body)).found)
            dropped = dropped or (again == shows) == (body is without)
        kind = "field-dropped" if dropped else "field-altered"
        self._lose(kind, one, direct, shown(one.watch, got.found))

    async def _by_refusal(self, one: RequestField, why: str) -> None:
        """Judge a field by a value that SGLang refuses, where it has no effect to see."""
        arrives = await self._arrives(one)
        if arrives is None:
            self._way.unseen.append((one.name, why))
        elif arrives:
            self._way.checked.append(one.name)
        else:
            self._lose("field-dropped", one, "a wrong value is refused", "a wrong value is accepted")

    def _lose(self, kind: str, one: RequestField, direct: str, through: str) -> None:
        self._way.checked.append(one.name)
        self._way.broken[_transport(one)].add(one.field)
        told = Told(one.consequence, one.remedy, one.needed)
        self._way.find(f"{kind}: {one.name}", "request", direct, through, told)

    async def _arrives(self, one: RequestField) -> bool | None:
        """Whether a wrong value of the field is refused by the server through the gateway.

        None where that tells nothing: not over chat, not refused by the server, or refused by the gateway.
        """
        if one.path not in (CHAT, STREAM) or not one.bad:
            return None
        body = self._way.base(one.path)
        put(body, one.field, BAD)
        refused = await self._way.ask(self._way.direct, one.path, body)
        if not 400 <= refused.status < 500:
            return None
        got = await self._way.ask(self._way.through, one.path, body)
        if got.status == 200:
            return False
        start = refused.says[:60]
        return True if start and start in got.says else None

    def _pair(self, one: RequestField) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two bodies, without the field and with it."""
        without = self._way.base(one.path)
        for name, value in one.with_.items():
            put(without, name, fill(value, self._way.places))
        given = dict(without)
        for name in one.without:
            take(given, name)
        put(given, one.field, fill(one.value, self._way.places))
        return without, given


def _transport(one: RequestField) -> str:
    return GENERATE if one.path == GENERATE else CHAT
