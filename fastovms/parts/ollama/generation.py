"""Ollama's `/api/chat` and `/api/generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from fastovms.api import offload
from fastovms.api.answer import AnswerWriter, Run, write_answer
from fastovms.api.body import show
from fastovms.api.chat_messages import ChatMessages, Message, fitting
from fastovms.api.chat_prompt import PromptMaker, template_options
from fastovms.api.chat_tools import ToolUse, read_tools
from fastovms.api.client_request import ClientRequest
from fastovms.api.constraint import ReadChat, chat_job, constraint
from fastovms.api.context import ApiContext
from fastovms.api.deferred import constraint_of
from fastovms.api.dialect import Dialect, last_frames
from fastovms.api.endpoint import warning_headers
from fastovms.api.fields import token_budget
from fastovms.api.generate import (
    DeltaCallback,
    Observed,
    SampleDelta,
    TextGeneration,
    Usage,
    generation_of,
)
from fastovms.api.image_parts import GivenImages, ImageSource, check_tags, images_of_request
from fastovms.api.logprobs import TokenReport, chat_logprobs, token_report
from fastovms.api.prepare import (
    GenerationOptions,
    ModelInput,
    PromptTask,
    check_numbers,
    compile_grammar,
    generation_options,
    kept_images,
    make_tasks,
)
from fastovms.api.prompt import (
    Prompt,
    PromptEncoder,
    check_text,
    check_token_range,
    context_exceeded,
    encoding_cost,
)
from fastovms.api.served import KnownModel, ServedModel
from fastovms.api.typed_body import hold_model, read_named
from fastovms.errors import InvalidField
from fastovms.http.messages import HeaderPairs, Request, Response
from fastovms.json_types import on_one_line
from fastovms.params import FinishReason, GenerationOutput, Task, TextPrompt
from fastovms.parts.ollama.request import (
    AskedFields,
    Asking,
    OllamaChatRequest,
    OllamaGenerateRequest,
    add_images,
    asking,
    named_as_given,
    read_ollama_messages,
    thinking_fields,
)
from fastovms.parts.several_models.model_pool import Departure, departure
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    OutputParser,
    Piece,
    Reasoning,
)
from fastovms.text.tokenizer import FimFinder, FimTokens


def timestamp(seconds: float) -> str:
    """Returns a time since the epoch in the notation of RFC 3339, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


JSON_LINES: Final = "application/x-ndjson"

_MARK: Final = "\0"
"""A placeholder for the text in a line of which the rest is made once."""

Members = dict[str, Any]


@dataclass(slots=True)
class Told:
    """The contents of a part of an answer: text, reasoning, and complete tool calls."""

    content: str = ""
    thinking: str = ""
    calls: list[Members] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether the part has only text."""
        return not self.thinking and not self.calls


class AnswerCollector:
    """Converts the pieces of one answer to the contents of its parts. `new_call_id` makes the ids
    of calls."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._num_calls = 0
        self._name = ""
        self._arguments: list[str] = []

    def take(self, delta: SampleDelta) -> Told:
        """Returns the contents that a delta adds. Incomplete tool calls are dropped, because agents
        could not run them."""
        told = Told(delta.text)
        for piece in delta.pieces:
            self._add(piece, told)
        return told

    def _add(self, piece: Piece, told: Told) -> None:
        match piece:
            case Content(text=text):
                told.content += text
            case Reasoning(text=text):
                told.thinking += text
            case CallBegin(name=name):
                self._name, self._arguments = name, []
            case CallArguments(text=text):
                self._arguments.append(text)
            case CallEnd(complete=True):
                told.calls.append(self._call())

    def _call(self) -> Members:
        # As the model wrote them: to read them would change the digits of large numbers. Line
        # breaks, which would end the line of a stream, are never within strings.
        text = "".join(self._arguments).replace("\n", " ").replace("\r", " ") or "{}"
        arguments = msgspec.Raw(text.encode())
        function = {"index": self._num_calls, "name": self._name, "arguments": arguments}
        self._num_calls += 1
        return {"id": self._new_call_id(), "function": function}


def chat_members(told: Told) -> Members:
    """Returns the members of a part of an answer to `/api/chat`."""
    message: Members = {"role": "assistant", "content": told.content}
    if told.thinking:
        message["thinking"] = told.thinking
    if told.calls:
        message["tool_calls"] = told.calls
    return {"message": message}


def generate_members(told: Told) -> Members:
    """Returns the members of a part of an answer to `/api/generate`, without tool calls."""
    members: Members = {"response": told.content}
    if told.thinking:
        members["thinking"] = told.thinking
    return members


def part_head(model: str, clock: Callable[[], float]) -> Members:
    """Returns the members at the beginning of every part of an answer."""
    return {"model": model, "created_at": timestamp(clock())}


@dataclass(frozen=True, slots=True)
class OllamaAnswer:
    """Formats one answer.

    Attributes:
        model: the client's name of the model.
        clock: returns the Unix time for `created_at`.
        members: makes the members of a part, for `/api/chat` or `/api/generate`.
        collector: converts the pieces.
        report: the token details to report.
        usage: returns the usage so far.
        total_time: returns the seconds since the request arrived.
        load_time: the seconds it waited for its model.
        context: returns the tokens of the prompt and the answer, after its end; None = they are not
            reported.
    """

    model: str
    clock: Callable[[], float]
    members: Callable[[Told], Members]
    collector: AnswerCollector
    report: TokenReport
    usage: Callable[[], Usage]
    total_time: Callable[[], float]
    load_time: float
    context: Callable[[], Sequence[int]] | None

    def whole(self, sample: SampleDelta) -> bytes:
        """Returns the answer as one object. `sample` holds the whole text."""
        told = self.members(self.collector.take(sample))
        body = {**self.head, **told, **self._end(sample.finish_reason), **self.logprobs(sample)}
        return msgspec.json.encode(body)

    def last_line(self, reason: FinishReason | None) -> bytes:
        """Returns the object that ends a stream."""
        return self._line({**self.head, **self.members(Told()), **self._end(reason)})

    def line(self, told: Told, sample: SampleDelta) -> bytes:
        """Returns the object of a part of a stream."""
        part = {**self.head, **self.members(told), "done": False, **self.logprobs(sample)}
        return self._line(part)

    @property
    def head(self) -> Members:
        return part_head(self.model, self.clock)

    def logprobs(self, sample: SampleDelta) -> Members:
        """Returns the log probabilities of a part's tokens, if the request asks for them."""
        num_top = self.report.num_logprobs
        if num_top is None or not sample.tokens:
            return {}
        return {"logprobs": chat_logprobs(sample.tokens, num_top, self.report.names)}

    @staticmethod
    def _line(members: Members) -> bytes:
        return on_one_line(msgspec.json.encode(members) + b"\n")

    def _end(self, reason: FinishReason | None) -> Members:
        """Returns the members by which the last object differs. Times are nanoseconds."""
        usage = self.usage()
        timings = usage.timings
        end: Members = {
            "done": True,
            "done_reason": (reason or FinishReason.STOP).value,
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
    """Encodes one stream (`answer.Frames`). Unless more is reported, a piece costs only the
    encoding of its text."""

    def __init__(self, form: OllamaAnswer, dialect: Dialect) -> None:
        self._form = form
        self._dialect = dialect
        self._reason: FinishReason | None = None
        # The end of a name in the head cannot be taken for this: it has quotes around it.
        line = replace(form, clock=lambda: 0.0).line(Told(_MARK), SampleDelta(0, ""))
        before, _, self._after = line.rpartition(orjson.dumps(_MARK))
        self._begin, _, self._middle = before.rpartition(orjson.dumps(timestamp(0.0)))

    def delta(self, delta: SampleDelta) -> bytes:
        self._reason = delta.finish_reason
        told = self._form.collector.take(delta)
        tells_tokens = bool(delta.tokens) and self._form.report.num_logprobs is not None
        if not told.is_plain or tells_tokens:
            return self._form.line(told, delta)
        if not told.content:
            return b""
        now = timestamp(self._form.clock()).encode()
        content = on_one_line(orjson.dumps(told.content))
        return b'%b"%b"%b%b%b' % (self._begin, now, self._middle, content, self._after)

    def opening_length(self, choice: int) -> int:
        return 0

    def end(self) -> bytes:
        return self._form.last_line(self._reason)

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)


_ANSWER_SHARE = 8
"""One part in this number of the context is kept free for an answer of no stated length."""


@dataclass(frozen=True, slots=True)
class OllamaJob:
    """A request that is ready to run.

    Attributes:
        new_parser: makes the parser of the answer's text; None = all text is content.
        tells_context: whether the last part has `context`, the tokens of the prompt and the answer.
        warnings: the ignored parts of the request.
    """

    preparation: ClientRequest[AskedFields]
    options: GenerationOptions
    task: PromptTask
    new_parser: Callable[[], OutputParser] | None
    tells_context: bool
    warnings: Sequence[str]


class _Chat(NamedTuple):
    """The input of a request.

    Attributes:
        read: returns the messages, in time proportional to them.
        context: tokens before the prompt.
    """

    read: Callable[[], ChatMessages]
    tools: ToolUse = ToolUse()
    context: Sequence[int] = ()
    tells_context: bool = False


async def prepare_chat(asking: Asking, body: OllamaChatRequest) -> OllamaJob:
    """Checks a request to `/api/chat`. Long chats are rendered and encoded in a thread. Raises
    RequestError if a field is invalid; BackendError if the grammar cannot be compiled now."""
    request = asking.preparation
    model, dialect, given = request.model, request.dialect, body.messages or []
    tools = [{"type": "function", **tool} for tool in body.tools or ()]
    if tools and model.chat.tool_format is None:
        name = show(asking.model_name)
        raise InvalidField(f"tools: {name} does not support tools", param="tools")
    read = lambda: read_ollama_messages(given, dialect, _images_of(asking))  # noqa: E731
    return await _prepare(asking, _Chat(read, read_tools(tools, None, None, dialect)))


async def prepare_prompt(asking: Asking, body: OllamaGenerateRequest) -> OllamaJob:
    """Checks a request to `/api/generate` whose prompt is a user message. Raises as `prepare_chat`
    does."""
    model, context = asking.preparation.model, body.context or []
    if context and model.images is not None:
        raise InvalidField("context cannot be used with a model that takes images", param="context")
    check_token_range(context, "context", model.info)
    read = lambda: _prompt_messages(body, _images_of(asking))  # noqa: E731
    return await _prepare(asking, _Chat(read, context=context, tells_context=model.images is None))


def common_options(asking: Asking) -> GenerationOptions:
    """Reads the options of generation. Raises InvalidField."""
    request = asking.preparation
    check_numbers(request)
    report = replace(token_report(request, asking.top_logprobs), has_timings=True)
    budget = token_budget(request, asking.num_predict, may_reach_limit=True)
    return generation_options(request, report, budget)


async def _prepare(asking: Asking, chat: _Chat) -> OllamaJob:
    request = asking.preparation
    model = request.model
    options = common_options(asking)
    fields = thinking_fields(
        asking.body.think, asking.model_name, can_think=model.chat.reasoning_format is not None
    )
    drops = _drops(asking)

    def read() -> ReadChat:
        messages, images, unseen = chat.read()
        template = template_options(
            model, fields._replace(continue_final_message=_is_begun(messages[-1]))
        )
        maker = PromptMaker(request, chat.tools, template, may_lose_images=drops)
        make = partial(maker.make, num_images=len(images))
        if drops:
            room = _longest_prompt(model, asking.num_predict) - len(chat.context)
            prompt = fitting(messages, make, room)
        else:
            prompt = make(messages)
        wanted = constraint(request, chat.tools, prompt.end, template)
        prompt = _behind(chat.context, prompt, request)
        sources: Sequence[ImageSource] = images
        if images and drops:
            prompt, sources = kept_images(prompt, images)
        return ReadChat(prompt, chat.tools, sources, template, wanted, unseen)

    ready = await model.chat.rendered(request.client, read, request.size)
    job = await chat_job(request, options, ready)
    warnings = [*asking.warnings, *job.warnings]
    return OllamaJob(request, options, job.task, job.new_parser, chat.tells_context, warnings)


def _drops(asking: Asking) -> bool:
    """Returns whether messages that do not fit into the context are dropped."""
    return asking.body.truncate is not False


def _images_of(asking: Asking) -> GivenImages | None:
    return images_of_request(asking.preparation.model.images, may_drop=_drops(asking))


def _prompt_messages(body: OllamaGenerateRequest, images: GivenImages | None) -> ChatMessages:
    """Returns the messages for an `/api/generate` prompt: system text and user message."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    said: Message = {"role": "user", "content": body.prompt or ""}
    add_images(said, body.images or (), "images", images)
    return ChatMessages([*messages, said], () if images is None else images.sources)


def _is_begun(last: Message) -> bool:
    """Returns whether the last message is the assistant's, so that the model continues it."""
    return last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")


def _longest_prompt(model: ServedModel, num_predict: int | None) -> int:
    """Returns the maximum number of prompt tokens. If the answer's length may be cut, it reserves
    at most half of the context."""
    context = model.info.max_model_len
    if num_predict is None:
        return context - context // _ANSWER_SHARE
    return context - min(num_predict, context // 2)


def _behind(context: Sequence[int], prompt: Prompt, request: ClientRequest[AskedFields]) -> Prompt:
    """Returns the prompt appended to the tokens of the earlier conversation."""
    token_ids = [*context, *prompt.token_ids]
    if context and len(token_ids) > request.model.info.max_model_len:
        reason = f"the prompt has {len(token_ids)} tokens, of which context has {len(context)}"
        raise context_exceeded(reason, request.model.info, "context")
    return replace(prompt, token_ids=token_ids) if context else prompt


def is_raw(body: OllamaGenerateRequest, model: ServedModel) -> bool:
    """Returns whether the prompt is sent to the model without a template. Raises InvalidField if a
    field that needs a template is given as well."""
    is_bare = body.raw is True or bool(body.suffix)
    for name in ("system", "context", "images"):
        if is_bare and getattr(body, name):
            other = "raw is true" if body.raw else "suffix is given"
            raise InvalidField(f"{name} cannot be used when {other}", param=name)
    has_place = model.chat.template is not None or body.system or body.images
    return is_bare or not has_place


async def prepare_raw(
    asking: Asking, body: OllamaGenerateRequest, fim: FimTokens | None
) -> OllamaJob:
    """Checks a request without a template and returns its job. Long texts are encoded in a thread.
    Raises RequestError if a field is invalid; BackendError if the grammar cannot be compiled now.
    `fim` are the model's fill-in-the-middle tokens, if it has them."""
    request = asking.preparation
    model = request.model
    if asking.body.think:
        raise InvalidField(
            "think cannot be used with raw or suffix, because the model's chat template is "
            "not used",
            param="think",
        )
    if body.suffix and fim is None:
        name = show(asking.model_name)
        raise InvalidField(f"suffix: {name} does not support insert", param="suffix")
    check_token_range(body.context or (), "context", model.info)
    options = common_options(asking)
    warnings = [*asking.warnings]
    grammar = await offload.run(partial(constraint_of, request, warnings), request.size)
    cost = encoding_cost([body.prompt or "", body.suffix or ""])
    prompt = await offload.run(partial(_encoded, body, model, fim), cost)
    if grammar is not None:
        grammar = await compile_grammar(grammar, model, request.client)
    [task] = await make_tasks(request, options, ModelInput([prompt.token_ids], grammar))
    if model.images is not None and prompt.text is not None:
        task = task._replace(prompt=TextPrompt(prompt.text))
    tells_context = not body.raw and model.images is None
    return OllamaJob(request, options, task, None, tells_context, warnings)


def _encoded(body: OllamaGenerateRequest, model: ServedModel, fim: FimTokens | None) -> Prompt:
    text = body.prompt or ""
    check_text(text, "prompt", model.info)
    if model.images is not None:
        check_tags(text, 0, "prompt", model.images.reserved)
    encoder = PromptEncoder(model.tokenizer, model.info, add_special_tokens=True)
    if not body.suffix or fim is None:
        return Prompt([*(body.context or ()), *encoder.encode(text, "prompt")], text)
    check_text(body.suffix, "suffix", model.info)
    bare = PromptEncoder(model.tokenizer, model.info, add_special_tokens=False)
    parts = [bare.encode(text, "prompt"), bare.encode(body.suffix, "suffix")]
    # The token that begins a text, if the tokenizer adds one.
    start = model.tokenizer.encode("", add_special_tokens=True)
    return Prompt([*start, *fim.join(*parts)])


_UNBUFFERED: Final[HeaderPairs] = (
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)

_CALL_ID_LENGTH: Final = 9
"""The length of a call's id. The templates of Mistral's models take no other length."""

Body = OllamaChatRequest | OllamaGenerateRequest


class _Door(NamedTuple):
    """The differences between `/api/chat` and `/api/generate`.

    Attributes:
        members: makes the members that describe a part of an answer.
        prepare: checks a request and returns its job.
        is_empty: whether the request only loads or unloads the model.
    """

    kind: GenerationKind
    members: Callable[[Told], Members]
    prepare: Callable[[Asking], Awaitable[OllamaJob]]
    is_empty: bool


class OllamaGeneration:
    """The handlers of the endpoints that generate."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._fim = FimFinder()

    async def chat(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers messages; without any, loads or unloads the model. Raises RequestError,
        BackendError if the request failed before the answer began."""
        context = self._context
        body, known = await read_named(
            request, OllamaChatRequest, context.models, dialect, context.bodies
        )
        is_empty = not body.messages
        door = _Door(
            GenerationKind.CHAT, chat_members, lambda asked: prepare_chat(asked, body), is_empty
        )
        return await self._answer(request, dialect, body, known, door)

    async def generate(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a prompt, or continues it; without any, loads or unloads the model. Raises as
        `chat` does."""
        context = self._context
        body, known = await read_named(
            request, OllamaGenerateRequest, context.models, dialect, context.bodies
        )
        if body.template:
            raise InvalidField(
                "template is not supported: the model's own is used. With raw the prompt goes to "
                "the model as it is",
                param="template",
            )

        async def prepare(asked: Asking) -> OllamaJob:
            model = asked.preparation.model
            if is_raw(body, model):
                return await prepare_raw(asked, body, self._fim(model.tokenizer))
            return await prepare_prompt(asked, body)

        door = _Door(GenerationKind.TEXT_COMPLETION, generate_members, prepare, not body.prompt)
        return await self._answer(request, dialect, body, known, door)

    async def _answer(
        self, request: Request, dialect: Dialect, body: Body, known: KnownModel, door: _Door
    ) -> Response | None:
        """Answers a request of either endpoint. Afterwards unloads the model if it is loaded on
        demand, and the client asks for it and is allowed to."""
        with departure(body.keep_alive, request, known, self._context.models) as leaving:
            if not door.is_empty:
                return await self._generate(request, dialect, body, known, door, leaving.warnings)
            if not leaving.is_wanted:
                await self._hold(request, known)
            return self._moved(request, body, known, door, leaving)

    async def _generate(
        self,
        request: Request,
        dialect: Dialect,
        body: Body,
        known: KnownModel,
        door: _Door,
        warnings: Sequence[str],
    ) -> Response | None:
        context = self._context
        began = _now()
        model = await self._hold(request, known)
        load_time = _now() - began
        with named_as_given():
            asked = asking(context, request, body, model, dialect)
            job = await door.prepare(asked)
        new_id, preparation = context.new_id(), job.preparation
        span = context.span_of(request, door.kind, preparation, new_id)
        generation = generation_of(job, Observed(new_id, request.log_fields, span))
        token_ids = [*job.task.token_ids] if job.tells_context else []
        form = OllamaAnswer(
            asked.model_name,
            self._context.unix_time,
            door.members,
            AnswerCollector(self._new_call_id),
            job.options.report,
            lambda: generation.usage,
            lambda: _now() - request.received_at,
            load_time,
            (lambda: token_ids) if job.tells_context else None,
        )
        run = _noting(generation, token_ids) if job.tells_context else generation.run
        writer = AnswerWriter(
            lambda samples: form.whole(samples[0]),
            lambda: AnswerLines(form, dialect),
            prompt_cost=len(token_ids),
            handshake=False,
            content_type=JSON_LINES,
            stream_headers=_UNBUFFERED,
        )
        job = replace(job, warnings=[*job.warnings, *warnings])
        with generation, named_as_given():
            return await write_answer(request, job, generation, writer, run)

    async def _hold(self, request: Request, known: KnownModel) -> ServedModel:
        tasks = (Task.TEXT_GENERATION,)
        model = await hold_model(request, known, self._context.models, tasks, streams=False)
        assert isinstance(model, ServedModel)
        return model

    def _moved(
        self, request: Request, body: Body, known: KnownModel, door: _Door, leaving: Departure
    ) -> Response:
        """Returns the answer to a request that only loads or unloads the model; it reports the
        model's actual state."""
        stays = known.served is not None and not leaving.happens
        head = part_head(body.model or known.name, self._context.unix_time)
        told = door.members(Told())
        end = {"done": True, "done_reason": "load" if stays else "unload"}
        headers = warning_headers(leaving.warnings, request)
        return Response(200, orjson.dumps({**head, **told, **end}), headers=headers)

    def _new_call_id(self) -> str:
        return self._context.new_id()[-_CALL_ID_LENGTH:]


def _noting(generation: TextGeneration, token_ids: list[int]) -> Run:
    """Returns a function that runs a generation of one sample and adds its tokens to a list."""

    def note(output: GenerationOutput) -> None:
        token_ids.extend(output.token_ids)

    async def run(on_delta: DeltaCallback) -> None:
        generation.submit(on_delta, note)
        await generation.finished()

    return run


def _now() -> float:
    return asyncio.get_running_loop().time()
