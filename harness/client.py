"""The client: prompts in, captures out, over both transports of an SGLang server.

Place in the flow: between the server and the capture's judge. Imports `contracts.records`, `harness.modes`,
`harness.wire` and `harness.http`; no torch, no sglang, no transformers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from contracts.records import Capture, Mode, Prompt, ServerFacts, Transport
from harness.http import HttpSession
from harness.modes import Scripted, chat_body, generate_body, render_body
from harness.wire import (
    WireResponse,
    parse_chat,
    parse_chat_stream,
    parse_generate,
    parse_generate_stream,
)
from harness.wire_errors import ClientError, HttpStatusError, MalformedResponse, RequestRefused
from harness.wire_json import json_object

CHAT = "/v1/chat/completions"
GENERATE = "/generate"

_PARSERS: Mapping[tuple[Transport, bool], Callable[[bytes], WireResponse]] = {
    (Transport.CHAT, False): parse_chat,
    (Transport.CHAT, True): parse_chat_stream,
    (Transport.GENERATE, False): parse_generate,
    (Transport.GENERATE, True): parse_generate_stream,
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server was seen to do; each answer comes from a request, none from a version number.

    chat_ids                 the field in which a chat answer carries its token ids, None: it carries none
    prompt_ids               a chat answer tells the prompt's ids
    stream_ids               a streamed chat answer ends with the token ids
    chat_input_ids           chat takes `input_ids` in place of its own rendering
    generate_ids             `/generate` is there and returns `output_ids`
    custom_logit_processor   scripted generation is switched on, as `/server_info` reports it
    tokenize, detokenize     the endpoints are there and keep markers
    """

    chat_ids: str | None
    prompt_ids: bool
    stream_ids: bool
    chat_input_ids: bool
    generate_ids: bool
    custom_logit_processor: bool
    tokenize: bool
    detokenize: bool


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """One generation to ask for. `prompt_token_ids` (n,) None: the server renders the prompt."""

    prompt: Prompt
    mode: Mode
    transport: Transport = Transport.CHAT
    stream: bool = False
    prompt_token_ids: tuple[int, ...] | None = None
    scripted: Scripted | None = None
    sample_index: int = 0
    logprobs: bool = False


class Client:
    """An asynchronous client of one server; use it as an async context manager.

    `facts` go into every capture. `timeout` is in seconds and covers one whole request. Requests are never
    repeated. `api_key` is sent and never kept in a capture.
    """

    def __init__(
        self,
        base_url: str,
        *,
        facts: ServerFacts,
        concurrency: int = 8,
        timeout: float = 600.0,
        api_key: str | None = None,
    ) -> None:
        self._http = HttpSession(base_url, concurrency=concurrency, timeout=timeout, api_key=api_key)
        self.base_url = self._http.base_url
        self.facts = facts

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def render(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt ids (n,) that the server makes of the prompt with its tools.

        Raises:
            ClientError: the server can't be asked, or tells prompt ids nowhere.
        """
        body = render_body(prompt, model=self.facts.model)
        ids = parse_chat(await self._http.post(CHAT, body)).prompt_token_ids
        if ids is not None:
            return ids
        for name in ("max_tokens", "return_token_ids", "return_prompt_token_ids"):
            body.pop(name)
        try:
            tokens = json_object(await self._http.post("/tokenize", body)).get("tokens")
        except (HttpStatusError, MalformedResponse):
            tokens = None
        if isinstance(tokens, list) and tokens and all(type(token_id) is int for token_id in tokens):
            return tuple(tokens)
        raise MalformedResponse(
            what="the server tells the prompt's token ids nowhere",
            where=self.base_url,
            why="neither chat with return_token_ids nor /tokenize with messages gave them",
            remedy="render the prompt with the model's tokenizer (--tokenizer PATH) and give its ids",
        )

    async def capture(
        self,
        prompt: Prompt,
        mode: Mode,
        *,
        transport: Transport = Transport.CHAT,
        stream: bool = False,
        prompt_token_ids: Iterable[int] | None = None,
        scripted: Scripted | None = None,
        sample_index: int = 0,
        logprobs: bool = False,
    ) -> Capture:
        """Ask for one generation and return it as it came over the wire.

        Where no prompt ids are given, they are rendered first if the request alone would not lead the server
        to the prompt with its tools.

        Raises:
            ClientError: see `harness.wire_errors`; an error status carries the server's status and body.
        """
        ids = None if prompt_token_ids is None else tuple(prompt_token_ids)
        return await self.capture_one(
            CaptureRequest(prompt, mode, transport, stream, ids, scripted, sample_index, logprobs)
        )

    async def capture_one(self, request: CaptureRequest) -> Capture:
        """Do what `capture` does, on a request record."""
        prompt, ids, generate = (
            request.prompt,
            request.prompt_token_ids,
            request.transport is Transport.GENERATE,
        )
        self._check(request)
        if ids is None and (generate or (prompt.tools and request.mode is not Mode.TOOLS)):
            ids = await self.render(prompt)
        body: dict[str, Any]
        if generate:
            body = generate_body(
                prompt,
                prompt_token_ids=ids or (),
                scripted=request.scripted,
                stream=request.stream,
                logprobs=request.logprobs,
            )
        else:
            body = chat_body(
                prompt,
                request.mode,
                model=self.facts.model,
                prompt_token_ids=ids,
                scripted=request.scripted,
                stream=request.stream,
            )
            if request.logprobs:
                body["logprobs"] = True
        path = GENERATE if generate else CHAT
        payload = await self._http.post(path, body)
        try:
            parsed = _PARSERS[request.transport, request.stream](payload)
        except ClientError as error:
            error.where = error.where or f"{self.base_url}{path}, prompt {prompt.name!r}, {request.mode} mode"
            raise
        return self._capture(request, ids, body, payload, parsed)

    async def capture_many(self, requests: Iterable[CaptureRequest]) -> list[Capture | ClientError]:
        """Ask for many generations, at most `concurrency` at once; answers in the requests' order.

        A request that failed gives its error in its place; the others go on.
        """

        async def one(request: CaptureRequest) -> Capture | ClientError:
            try:
                return await self.capture_one(request)
            except ClientError as error:
                return error

        return list(await asyncio.gather(*(one(request) for request in requests)))

    async def get(self, path: str) -> bytes:
        """Return the body of what the server answers to a GET; raises as `capture`."""
        return await self._http.get(path)

    async def capabilities(self) -> Capabilities:
        """Find out by asking what the server can do.

        Raises:
            ServerGone, ServerTimeout: there is no server to ask. What it refuses is an answer, not an error.
        """
        prompt = Prompt(
            name="capabilities",
            messages=({"role": "user", "content": "Hi"},),
            sampling={"max_tokens": 1, "temperature": 0},
        )
        body = chat_body(prompt, Mode.RAW, model=self.facts.model, prompt_token_ids=None)
        plain = await self._ask(CHAT, body)
        choice = _first_choice(plain)
        wanted = [1] * (_prompt_tokens(plain) + 3)
        stream_body = chat_body(prompt, Mode.RAW, model=self.facts.model, prompt_token_ids=None, stream=True)
        given = await self._ask(CHAT, {**body, "input_ids": wanted})
        streamed = await self._ask_stream(CHAT, stream_body)
        generated = await self._ask(GENERATE, generate_body(prompt, prompt_token_ids=[1]))
        tokens = await self._ask("/tokenize", {"prompt": "Hi", "add_special_tokens": False})
        text = await self._ask("/detokenize", {"tokens": [1], "skip_special_tokens": False})
        info = await self._server_info()
        named = [name for name in ("response_token_ids", "token_ids") if isinstance(choice.get(name), list)]
        return Capabilities(
            chat_ids=named[0] if named else None,
            prompt_ids=isinstance(choice.get("prompt_token_ids"), list),
            stream_ids=streamed is not None and streamed.response_token_ids is not None,
            chat_input_ids=_prompt_tokens(given) == len(wanted),
            generate_ids=isinstance(generated.get("output_ids"), list),
            custom_logit_processor=info.get("enable_custom_logit_processor") is True,
            tokenize=isinstance(tokens.get("tokens"), list),
            detokenize=isinstance(text.get("text"), str),
        )

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return json_object(await self._http.post(path, body))
        except (HttpStatusError, MalformedResponse):
            return {}

    async def _ask_stream(self, path: str, body: Mapping[str, Any]) -> WireResponse | None:
        try:
            return parse_chat_stream(await self._http.post(path, body))
        except (HttpStatusError, MalformedResponse):
            return None

    async def _server_info(self) -> dict[str, Any]:
        for path in ("/server_info", "/get_server_info"):
            try:
                return json_object(await self._http.get(path))
            except (HttpStatusError, MalformedResponse):
                continue
        return {}

    def _check(self, request: CaptureRequest) -> None:
        if request.transport is Transport.GENERATE and request.mode is not Mode.RAW:
            raise RequestRefused(
                what=f"/generate has no {request.mode} mode",
                where=f"prompt {request.prompt.name!r}",
                why="no parser runs on this transport: what it gives is the raw text",
                remedy="ask for raw mode, or use the chat transport",
            )
        scripted = request.scripted
        if scripted is None:
            return
        if not is_loopback(self.base_url):
            raise RequestRefused(
                what="scripted generation is for a server on this machine's loopback address",
                where=self.base_url,
                why="the logit processor is pickled code",
                remedy="boot the server here, or use a sampled prompt",
            )
        vocabulary = self.facts.vocab_size
        bad = [i for i in scripted.ids if i < 0 or (vocabulary is not None and i >= vocabulary)]
        if bad or not scripted.ids:
            raise RequestRefused(
                what=f"the script holds the token id {bad[0]}" if bad else "the script is empty",
                where=f"prompt {request.prompt.name!r}",
                why=f"the model has {vocabulary} ids, and one beyond them kills the server" if bad else "",
                remedy="correct the script",
            )

    def _capture(
        self,
        request: CaptureRequest,
        sent_ids: tuple[int, ...] | None,
        body: Mapping[str, Any],
        payload: bytes,
        parsed: WireResponse,
    ) -> Capture:
        fields, prompt_ids = parsed.fields, parsed.prompt_token_ids
        if prompt_ids is None and sent_ids is not None:
            # No echo: the engine's count of the prompt is what says that it took them.
            took = parsed.usage is not None and parsed.usage.prompt_tokens == len(sent_ids)
            prompt_ids = sent_ids if took else None
        raw = parsed.text
        if request.transport is Transport.CHAT and request.mode is Mode.RAW:
            parsers_ran = bool(fields.reasoning_content) or fields.tool_calls is not None
            raw = None if parsers_ran else fields.content
        return Capture(
            prompt=request.prompt,
            mode=request.mode,
            transport=request.transport,
            stream=request.stream,
            server=self.facts,
            request=body,
            response_body=payload,
            fields=fields,
            raw_text=raw,
            prompt_token_ids=prompt_ids,
            response_token_ids=parsed.response_token_ids,
            finish_reason=parsed.finish_reason,
            matched_stop=parsed.matched_stop,
            usage=parsed.usage,
            request_id=parsed.request_id,
            created_at=datetime.now(UTC),
            output_logprobs=parsed.output_logprobs,
            scripted_ids=None if request.scripted is None else request.scripted.ids,
            sample_index=request.sample_index,
        )


def requests_for(
    prompt: Prompt,
    prompt_token_ids: tuple[int, ...],
    *,
    scripted: Scripted | None = None,
    stream: bool = False,
) -> tuple[CaptureRequest, ...]:
    """Return a prompt's requests that one comparison needs: `/generate`, then chat in each mode, same ids."""
    base = CaptureRequest(prompt, Mode.RAW, Transport.GENERATE, False, prompt_token_ids, scripted)
    chats = tuple(replace(base, mode=mode, transport=Transport.CHAT, stream=stream) for mode in Mode)
    return (base, *chats)


def is_loopback(base_url: str) -> bool:
    """Say whether a URL's host is this machine's loopback address."""
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _first_choice(data: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _prompt_tokens(data: Mapping[str, Any]) -> int:
    usage = data.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int else 0
