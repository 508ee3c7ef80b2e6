"""Fakes of a backend with a script, of a byte tokenizer and of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats
from fastovms.errors import EngineFailed, InvalidField, Overloaded, RequestError
from fastovms.http.messages import HeaderPairs, Headers, Request, Stream, StreamHead
from fastovms.params import (
    ALL_LOGPROBS,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Grammar,
    ModelInfo,
    Refusal,
    SamplingDefaults,
    SamplingParams,
    TokenLogprobs,
)
from fastovms.text.detokenizer import TableDetokenizer, decode_utf8
from fastovms.text.tokenizer import FimTokens, find_fim_tokens

EOS = 256
BYTES = [bytes([byte]) for byte in range(EOS)]

Script = Callable[[GenerationRequest, int], Sequence[int]]
"""A function that returns the tokens of one sample up to its end token."""


def model_info(
    *,
    max_model_len: int = 64,
    defaults: SamplingDefaults | None = None,
    name: str = "fake",
    takes_images: bool = False,
) -> ModelInfo:
    return ModelInfo(
        name=name,
        created=1_700_000_000,
        max_model_len=max_model_len,
        vocab_size=EOS + 1,
        eos_token_ids=frozenset({EOS}),
        defaults=defaults or SamplingDefaults(),
        takes_images=takes_images,
    )


def token_logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """Returns log probabilities: every third token is not among the most likely ones."""
    num_listed = EOS if num_top == ALL_LOGPROBS else num_top
    is_listed = token_id % 3 != 0
    first = token_id if is_listed else token_id + 1
    return TokenLogprobs(
        token_id=token_id,
        logprob=-0.5 if is_listed else -100.0 - token_id,
        rank=1 if is_listed else 200,
        top_token_ids=[(first + index) % EOS for index in range(num_listed)],
        top_logprobs=[-0.5 * (index + 1) for index in range(num_listed)],
    )


class ByteTokenizer:
    """Encodes one token per byte without special tokens."""

    vocab_size = EOS + 1
    pad_token_id = 0
    has_detokenizer = True
    all_token_bytes = (*(bytes([value]) for value in range(EOS)), b"<end>")

    def __init__(self, **named_tokens: int) -> None:
        """`named_tokens` are what the vocabulary is said to have beyond bytes."""
        self.named_tokens = named_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        data = bytes(token for token in token_ids if token < EOS)
        return decode_utf8(data, final=True).text

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b"<end>"

    def find_tokens(self, pieces: Sequence[str]) -> list[int | None]:
        return [self.named_tokens.get(piece) for piece in pieces]

    @property
    def fim_tokens(self) -> FimTokens | None:
        return find_fim_tokens(self.find_tokens)

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        keep: frozenset[str] = frozenset(),
    ) -> TableDetokenizer:
        return TableDetokenizer(BYTES, strip_leading_space=False)


class FakeBackend:
    """Plays `script`, `tokens_per_step` at a time and a step each time the loop comes round.

    Attributes:
        submitted: every request, in order.
        received: set at the first of them.
        aborted: every call of `abort`, in order.
        compiled: every grammar, in order; one with "bad" in it is refused.
        submit_error: raised by `submit` when set; `check_error` by `check`.
        fail_after: number of steps after which the samples end with an error.
        refusal: told of every request in its first step, when set.
        num_prompt_tokens: told with the last output of every sample.
        queue_time: told with the first output of every sample.
        num_accepted_tokens: told with every output.
        paused: steps are not run while set.
        warm: set unless the backend is yet to warm up.
        max_num_waiting: samples; with so many waiting `submit` refuses more.
    """

    def __init__(
        self, script: Script, model: ModelInfo | None = None, *, tokens_per_step: int = 1
    ) -> None:
        self._script = script
        self._model = model or model_info()
        self._tokens_per_step = tokens_per_step
        self._running: dict[tuple[str, int], tuple[GenerationRequest, OutputCallback, int]] = {}
        self._stepping = False
        self._num_steps = 0
        self.submitted: list[GenerationRequest] = []
        self.compiled: list[Grammar] = []
        self.received = asyncio.Event()
        self.aborted: list[tuple[str, int | None]] = []
        self.submit_error: Exception | None = None
        self.check_error: Exception | None = None
        self.fail_after: int | None = None
        self.refusal: Refusal | None = None
        self.num_prompt_tokens: int | None = None
        self.queue_time: float | None = None
        self.num_accepted_tokens = 0
        self.paused = False
        self.max_num_waiting = 1_000_000
        self.failure: str | None = None
        self.num_cached_tokens = 0
        self.warm = asyncio.Event()
        self.warm.set()

    @property
    def model(self) -> ModelInfo:
        return self._model

    def start(self) -> None:
        pass

    async def warmed_up(self) -> None:
        await self.warm.wait()
        if self.failure is not None:
            raise EngineFailed(self.failure)

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        self.compiled.append(grammar)
        if "bad" in f"{grammar.source}{grammar.tree}":
            raise InvalidField(f"bad {grammar.kind.value}: {grammar.source}", param=grammar.param)
        return grammar

    def check(self, params: SamplingParams) -> None:
        if self.check_error is not None:
            raise self.check_error

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        if self.submit_error is not None:
            raise self.submit_error
        if len(request.prompt_token_ids) >= self._model.max_model_len:
            raise RequestError("the prompt leaves no room to generate", param="prompt")
        if self._num_waiting >= self.max_num_waiting:
            raise Overloaded("too many requests are waiting")
        self.submitted.append(request)
        self.received.set()
        for index in range(request.params.n):
            start = len(request.generated_token_ids)
            self._running[request.request_id, index] = (request, on_output, start)
        if not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self.step)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        for key in list(self._running):
            if key[0] == request_id and index in (None, key[1]):
                del self._running[key]

    def stats(self) -> BackendStats:
        return BackendStats(
            num_running=len(self._running),
            num_waiting=self._num_waiting,
            num_blocks=10,
            num_free_blocks=4,
        )

    @property
    def _num_waiting(self) -> int:
        return sum(not start for _, _, start in self._running.values())

    def fail(self, reason: str) -> None:
        self.failure = reason
        for (request_id, index), (_, on_output, _) in list(self._running.items()):
            self._running.pop((request_id, index), None)
            on_output(GenerationOutput(index, [], FinishReason.ERROR, 0, error=reason))

    async def close(self) -> None:
        for (request_id, index), (_, on_output, _) in list(self._running.items()):
            self._running.pop((request_id, index), None)
            on_output(GenerationOutput(index, [], FinishReason.ABORT, 0))

    def step(self) -> None:
        self._stepping = False
        if self.paused:
            return
        self._num_steps += 1
        for key, (request, on_output, start) in list(self._running.items()):
            if key not in self._running:  # aborted by an earlier callback of this step
                continue
            output = self._next_output(request, key[1], start)
            if output.finish_reason is None:
                num_seen = start + len(output.token_ids)
                self._running[key] = (request, on_output, num_seen)
            else:
                del self._running[key]
            on_output(output)
        if self._running:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self.step)

    def _next_output(self, request: GenerationRequest, index: int, start: int) -> GenerationOutput:
        if self.fail_after is not None and self._num_steps > self.fail_after:
            return GenerationOutput(index, [], FinishReason.ERROR, start, error="out of order")
        if self.refusal is not None:
            return GenerationOutput(index, [], FinishReason.ERROR, 0, refusal=self.refusal)
        params = request.params
        script = self._script(request, index)
        if params.allowed_token_ids is not None and len(params.allowed_token_ids) == 1:
            script = params.allowed_token_ids * self._model.max_model_len
        end = start + self._tokens_per_step
        if params.beam_search is not None:
            end = len(script) + 1
        limit = self._model.max_model_len - len(request.prompt_token_ids)
        if params.max_tokens is not None:
            limit = min(limit, params.max_tokens)
        finish_reason = stop_token_id = None
        num_generated = min(end, len(script), limit)
        tokens = script[start:num_generated]
        ends = [place for place, token in enumerate(tokens) if token in params.stop_token_ids]
        if ends:
            stop_token_id = tokens[ends[0]]
            finish_reason = FinishReason.STOP
            tokens = tokens[: ends[0]]
            num_generated = start + ends[0] + 1
        elif num_generated == limit:
            finish_reason = FinishReason.LENGTH
        elif end > len(script):
            finish_reason = FinishReason.STOP
            num_generated += 1  # the end-of-text token
        output = GenerationOutput(
            index,
            tokens,
            finish_reason,
            num_generated,
            num_cached_tokens=0 if params.prompt_logprobs is not None else self.num_cached_tokens,
            stop_token_id=stop_token_id,
            num_prompt_tokens=None if finish_reason is None else self.num_prompt_tokens,
            queue_time=None if start else self.queue_time,
            num_accepted_tokens=self.num_accepted_tokens,
        )
        if params.logprobs is not None:
            told = tokens if stop_token_id is None else [*tokens, stop_token_id]
            output.logprobs = [token_logprobs(token, params.logprobs) for token in told]
            if listed := params.logprob_token_ids:
                values = [-0.5 * (index + 1) for index in range(len(listed))]
                output.logprobs = [
                    replace(entry, top_token_ids=listed, top_logprobs=values)
                    for entry in output.logprobs
                ]
        if params.prompt_logprobs is not None and index == start == 0:
            scored = request.prompt_token_ids[1:]
            of_prompt = [token_logprobs(token, params.prompt_logprobs) for token in scored]
            output.prompt_logprobs = [None, *of_prompt]
        return output


class FakeStream:
    """Records the data that was sent; the test sets `writable`."""

    def __init__(self) -> None:
        self.headers: HeaderPairs = ()
        self.writes: list[bytes] = []
        self.started = False
        self.first_write = asyncio.Event()
        self.closed = False
        self.aborted = False
        self.writable = True
        self.on_writable: Callable[[], None] | None = None

    @property
    def buffered(self) -> int:
        return 0

    def set_headers(self, headers: HeaderPairs) -> None:
        if not self.started:
            self.headers = headers

    def send(self, data: bytes) -> None:
        assert not self.closed
        self.started = True
        self.first_write.set()
        self.writes.append(data)

    def finish(self, data: bytes = b"") -> None:
        self.send(data)
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    @property
    def events(self) -> list[object]:
        """Returns the data of every event, parsed. An `event:` line must name its type."""
        frames = b"".join(self.writes).split(b"\n\n")
        assert frames.pop() == b""
        return [_parsed(frame) for frame in frames]

    @property
    def lines(self) -> list[object]:
        """Returns the JSON of every line."""
        return [orjson.loads(line) for line in b"".join(self.writes).splitlines()]


def _parsed(frame: bytes) -> object:
    name, _, data = frame.rpartition(b"data: ")
    if data == b"[DONE]":
        assert not name
        return data.decode()
    event = orjson.loads(data)
    assert not name or name == b"event: %b\n" % event["type"].encode()
    return event


def make_request(
    path: str, body: object = None, *, method: str = "POST", stream: FakeStream | None = None
) -> Request:
    """Returns a request for `path`. `body` is bytes, or an object to encode as JSON."""

    def open_stream(request: Request, head: StreamHead, ping: bool) -> Stream:
        assert stream is not None
        stream.headers = head.headers
        return stream

    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    request = Request(method, path, headers=Headers(), body=data, id="req-1")
    request.open_stream = open_stream
    return request
