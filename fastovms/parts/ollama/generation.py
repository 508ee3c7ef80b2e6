"""Ollama's endpoints `/api/chat` and `/api/generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import orjson

from fastovms.api.answer import AnswerWriter, Run, finish_word, write_answer
from fastovms.api.context import ContextHandlers
from fastovms.api.dialect import Dialect, last_frames
from fastovms.api.endpoint import warning_headers
from fastovms.api.fields import TokenReport
from fastovms.api.generate import DeltaCallback, SampleDelta, TextGeneration, Usage
from fastovms.api.logprobs import chat_logprobs
from fastovms.api.prepare import prepare
from fastovms.api.served import KnownModel, ServedModel
from fastovms.api.typed_body import hold_model, read_named
from fastovms.errors import InvalidField
from fastovms.http.messages import HeaderPairs, Request, Response
from fastovms.json_types import on_one_line
from fastovms.params import FinishReason, GenerationOutput, Task
from fastovms.parts.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    named_as_given,
    reader_of,
)
from fastovms.parts.several_models.model_pool import UnloadOutcome, unload_outcome
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)


def timestamp(seconds: float) -> str:
    """Returns a Unix time in RFC 3339 format with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nanoseconds(seconds: float) -> int:
    """Returns a duration in nanoseconds, as in Ollama's API."""
    return round(seconds * 1e9)


JSON_LINES: Final = "application/x-ndjson"

_MARK: Final = "\0"
"""A placeholder for the text in a stream line whose other members are encoded only once."""

Members = dict[str, Any]


@dataclass(slots=True)
class AnswerPart:
    """The content of one part of an answer: text, reasoning and complete tool calls."""

    content: str = ""
    thinking: str = ""
    calls: list[Members] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether the part has text only."""
        return not self.thinking and not self.calls


class AnswerCollector:
    """Converts the deltas of one answer to parts. `new_call_id` returns a new id for a tool
    call."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._num_calls = 0
        self._name = ""
        self._arguments: list[str] = []

    def take(self, delta: SampleDelta) -> AnswerPart:
        """Returns the content that a delta adds. Incomplete tool calls are dropped, because agents
        could not run them."""
        part = AnswerPart(delta.text)
        for piece in delta.pieces:
            self._add(piece, part)
        return part

    def _add(self, piece: Piece, part: AnswerPart) -> None:
        match piece:
            case Content(text=text):
                part.content += text
            case Reasoning(text=text):
                part.thinking += text
            case CallBegin(name=name):
                self._name, self._arguments = name, []
            case CallArguments(text=text):
                self._arguments.append(text)
            case CallEnd(complete=True):
                part.calls.append(self._call())

    def _call(self) -> Members:
        # The arguments are not parsed, which would change the digits of large numbers. Line breaks,
        # which would end a line of the stream, are never within strings.
        text = "".join(self._arguments).replace("\n", " ").replace("\r", " ") or "{}"
        arguments = msgspec.Raw(text.encode())
        function = {"index": self._num_calls, "name": self._name, "arguments": arguments}
        self._num_calls += 1
        return {"id": self._new_call_id(), "function": function}


def chat_members(part: AnswerPart) -> Members:
    """Returns the JSON members for a part of an answer to `/api/chat`."""
    message: Members = {"role": "assistant", "content": part.content}
    if part.thinking:
        message["thinking"] = part.thinking
    if part.calls:
        message["tool_calls"] = part.calls
    return {"message": message}


def generate_members(part: AnswerPart) -> Members:
    """Returns the JSON members for a part of an answer to `/api/generate`, without tool calls."""
    members: Members = {"response": part.content}
    if part.thinking:
        members["thinking"] = part.thinking
    return members


def part_head(model: str, clock: Callable[[], float]) -> Members:
    """Returns the first JSON members of every part of an answer."""
    return {"model": model, "created_at": timestamp(clock())}


@dataclass(frozen=True, slots=True)
class OllamaAnswer:
    """Formats one answer.

    Attributes:
        model: the client's name for the model.
        clock: returns the Unix time for `created_at`.
        members: returns the members of a part, for `/api/chat` or `/api/generate`.
        collector: converts the deltas.
        report: the token details to report.
        usage: returns the usage so far.
        total_time: returns the seconds since the request arrived; thread-safe.
        load_time: the seconds that the request waited for its model.
        context: returns the token ids of prompt and answer, once the answer is complete; None = not
            reported.
    """

    model: str
    clock: Callable[[], float]
    members: Callable[[AnswerPart], Members]
    collector: AnswerCollector
    report: TokenReport
    usage: Callable[[], Usage]
    total_time: Callable[[], float]
    load_time: float
    context: Callable[[], Sequence[int]] | None

    def whole(self, sample: SampleDelta) -> bytes:
        """Returns the answer as one JSON object. `sample` holds the whole text."""
        members = self.members(self.collector.take(sample))
        body = {**self.head, **members, **self._end(sample.finish_reason), **self.logprobs(sample)}
        return msgspec.json.encode(body)

    def last_line(self, reason: FinishReason | None) -> bytes:
        """Returns the JSON object that ends a stream."""
        return self._line({**self.head, **self.members(AnswerPart()), **self._end(reason)})

    def line(self, part: AnswerPart, sample: SampleDelta) -> bytes:
        """Returns the JSON object for a line of a stream."""
        line = {**self.head, **self.members(part), "done": False, **self.logprobs(sample)}
        return self._line(line)

    @property
    def head(self) -> Members:
        """The first members of each part: the model and the time."""
        return part_head(self.model, self.clock)

    def logprobs(self, sample: SampleDelta) -> Members:
        """Returns the log probabilities of a part's tokens; empty if the request does not ask for
        them."""
        num_top = self.report.num_logprobs
        if num_top is None or not sample.tokens:
            return {}
        return {"logprobs": chat_logprobs(sample.tokens, num_top, self.report.names)}

    @staticmethod
    def _line(members: Members) -> bytes:
        return on_one_line(msgspec.json.encode(members) + b"\n")

    def _end(self, reason: FinishReason | None) -> Members:
        """Returns the additional members of the last object. Times are in nanoseconds."""
        usage = self.usage()
        timings = usage.timings
        end: Members = {
            "done": True,
            "done_reason": finish_word(reason or FinishReason.STOP),
            "total_duration": nanoseconds(self.total_time()),
            "load_duration": nanoseconds(self.load_time),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": 0 if timings is None else nanoseconds(timings.prefill),
            "eval_count": usage.completion_tokens,
            "eval_duration": 0 if timings is None else nanoseconds(timings.decode),
        }
        if self.context is not None:
            end["context"] = list(self.context())
        return end


class AnswerLines:
    """Encodes one stream (`answer.Frames`). If only text is reported, each line costs only the
    encoding of its text."""

    def __init__(self, form: OllamaAnswer, dialect: Dialect) -> None:
        self._form = form
        self._dialect = dialect
        self._reason: FinishReason | None = None
        # The model's name cannot be confused with the timestamp, which is in quotes.
        line = replace(form, clock=lambda: 0.0).line(AnswerPart(_MARK), SampleDelta(0, ""))
        before, _, self._after = line.rpartition(orjson.dumps(_MARK))
        self._begin, _, self._middle = before.rpartition(orjson.dumps(timestamp(0.0)))

    def delta(self, delta: SampleDelta) -> bytes:
        self._reason = delta.finish_reason
        part = self._form.collector.take(delta)
        has_logprobs = bool(delta.tokens) and self._form.report.num_logprobs is not None
        if not part.is_plain or has_logprobs:
            return self._form.line(part, delta)
        if not part.content:
            return b""
        now = timestamp(self._form.clock()).encode()
        content = on_one_line(orjson.dumps(part.content))
        return b'%b"%b"%b%b%b' % (self._begin, now, self._middle, content, self._after)

    def opening_length(self, choice: int) -> int:
        return 0

    def end(self) -> bytes:
        return self._form.last_line(self._reason)

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)


_UNBUFFERED: Final[HeaderPairs] = (
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)

Body = OllamaChatRequest | OllamaGenerateRequest


def _members_of(body: Body) -> Callable[[AnswerPart], Members]:
    return chat_members if isinstance(body, OllamaChatRequest) else generate_members


class OllamaGeneration(ContextHandlers):
    """The handlers of `/api/chat` and `/api/generate`."""

    async def chat(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a chat; without messages, loads or unloads the model. Raises RequestError or
        BackendError if the request fails before the answer begins."""
        context = self._context
        body, known = await read_named(
            request, OllamaChatRequest, context.models, dialect, context.bodies
        )
        return await self._answer(request, dialect, body, known, is_empty=not body.messages)

    async def generate(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers or continues a prompt; without a prompt, loads or unloads the model. Raises as
        `chat` does."""
        context = self._context
        body, known = await read_named(
            request, OllamaGenerateRequest, context.models, dialect, context.bodies
        )
        if body.template:
            raise InvalidField.about(
                "template",
                "is not supported: the model's own is used. With raw the prompt goes to "
                "the model as it is",
            )
        return await self._answer(request, dialect, body, known, is_empty=not body.prompt)

    async def _answer(
        self,
        request: Request,
        dialect: Dialect,
        body: Body,
        known: KnownModel,
        *,
        is_empty: bool,
    ) -> Response | None:
        """Answers a request of either endpoint. Afterwards unloads a model that is loaded on
        demand, if the client requests that and is allowed to. `is_empty` is whether the request
        only loads or unloads the model."""
        with unload_outcome(body.keep_alive, request, known, self._context.models) as leaving:
            if not is_empty:
                return await self._generate(request, dialect, body, known, leaving.warnings)
            if not leaving.is_wanted:
                await self._hold(request, known)
            return self._load_answer(request, body, known, leaving)

    async def _generate(
        self,
        request: Request,
        dialect: Dialect,
        body: Body,
        known: KnownModel,
        warnings: Sequence[str],
    ) -> Response | None:
        context, now = self._context, asyncio.get_running_loop().time
        began = now()
        model = await self._hold(request, known)
        load_time = now() - began
        with named_as_given():
            reader = reader_of(context, request, body, model, dialect)
            given = await prepare(reader)
        if isinstance(body, OllamaChatRequest):
            kind, returns_context = GenerationKind.CHAT, False
        else:
            kind, returns_context = (
                GenerationKind.TEXT_COMPLETION,
                not body.raw and not model.images,
            )
        _, generation = context.start_generation(request, given, "", kind)
        token_ids = [*given.requests[0].prompt_token_ids] if returns_context else []
        form = OllamaAnswer(
            reader.model_name,
            self._context.unix_time,
            _members_of(body),
            AnswerCollector(self._context.new_call_id),
            given.report,
            lambda: generation.usage,
            lambda: now() - request.received_at,
            load_time,
            (lambda: token_ids) if returns_context else None,
        )
        run = _recording_tokens(generation, token_ids) if returns_context else generation.run
        writer = AnswerWriter(
            lambda samples: form.whole(samples[0]),
            lambda: AnswerLines(form, dialect),
            prompt_cost=len(token_ids),
            handshake=False,
            content_type=JSON_LINES,
            stream_headers=_UNBUFFERED,
        )
        given = replace(given, warnings=[*reader.warnings, *given.warnings, *warnings])
        with generation, named_as_given():
            return await write_answer(request, given, generation, writer, run)

    async def _hold(self, request: Request, known: KnownModel) -> ServedModel:
        tasks = (Task.TEXT_GENERATION,)
        model = await hold_model(request, known, self._context.models, tasks, streams=False)
        assert isinstance(model, ServedModel)
        return model

    def _load_answer(
        self, request: Request, body: Body, known: KnownModel, leaving: UnloadOutcome
    ) -> Response:
        """Returns the response to a request that only loads or unloads the model, with the model's
        actual state."""
        stays = known.served is not None and not leaving.happens
        head = part_head(body.model or known.name, self._context.unix_time)
        members = _members_of(body)(AnswerPart())
        end = {"done": True, "done_reason": "load" if stays else "unload"}
        headers = warning_headers(leaving.warnings, request)
        return Response(200, orjson.dumps({**head, **members, **end}), headers=headers)


def _recording_tokens(generation: TextGeneration, token_ids: list[int]) -> Run:
    """Returns a function that runs a generation with one sample and appends the generated token ids
    to `token_ids`."""

    def note(output: GenerationOutput) -> None:
        token_ids.extend(output.token_ids)

    async def run(on_delta: DeltaCallback) -> None:
        generation.submit(on_delta, note)
        await generation.finished()

    return run
