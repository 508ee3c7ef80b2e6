"""Endpoints `/messages` and `/messages/count_tokens`, and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeVar, Union

import msgspec
import orjson
from msgspec import UNSET, UnsetType

from fastovms.api.answer import AnswerWriter, Envelope, ShownPieces, has_called, write_answer
from fastovms.api.chat_messages import Message, seal
from fastovms.api.chat_tools import ToolTarget
from fastovms.api.client_request import ClientRequest, FieldNames
from fastovms.api.context import ApiContext, ContextHandlers
from fastovms.api.dialect import (
    ANTHROPIC,
    END,
    START,
    AnswerSchema,
    Dialect,
    frame,
    last_frames,
)
from fastovms.api.endpoint import Operation, Route, endpoint, json_response, warning_headers
from fastovms.api.fields import TokenBudget, token_budget
from fastovms.api.generate import SampleDelta, TextGeneration, Usage
from fastovms.api.image_parts import images_of_request
from fastovms.api.prepare import ModelInput, RequestReader, prepare
from fastovms.api.prompt import Chat, TemplateFields, TemplateOptions, chat_prompt, template_options
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import FinishReason
from fastovms.parts.messages.request import (
    CountTokensRequest,
    MessageFields,
    MessagesRequest,
    check_filling,
    given_documents,
    read_fields,
    read_tools,
    to_messages,
)
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The options for writing an answer as content blocks.

    Attributes:
        shown: which parts of the answer the client gets.
        new_call_id: returns a new id for a tool use.
        max_tokens: the maximum number of answer tokens, regardless of the context length.
        omits_thinking: whether reasoning is sent only as its signature.
        target: returns the client's tool for a function's name.
    """

    shown: ShownPieces
    new_call_id: Callable[[], str]
    max_tokens: int
    omits_thinking: bool = False
    target: Callable[[str], ToolTarget] = ToolTarget

    def thinking(self, text: str) -> str:
        """Returns the visible part of the reasoning: "" if reasoning is hidden."""
        return "" if self.omits_thinking else text

    def signature(self, text: str) -> str:
        """Returns the signature of the reasoning, which contains the reasoning if it is hidden."""
        if self.omits_thinking:
            return seal(text)
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()

    def ending(
        self,
        reason: FinishReason,
        stop: str | int | None,
        are_whole: Sequence[bool],
        num_tokens: int,
    ) -> MessageEnding:
        """Returns the reason for the end of an answer.

        Args:
            stop: the stop string, or the id of the stop token, that ended the answer.
            are_whole: whether each tool call is complete; see `has_called`.
            num_tokens: the number of the answer's tokens.
        """
        if reason is FinishReason.LENGTH:
            has_all = num_tokens >= self.max_tokens
            return MessageEnding("max_tokens" if has_all else "model_context_window_exceeded")
        if isinstance(stop, str) and reason is FinishReason.STOP:
            return MessageEnding("stop_sequence", stop)
        return MessageEnding("tool_use" if has_called(are_whole) else "end_turn")


StopWord = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessageEnding(AnswerSchema):
    """The reason for the end of a message."""

    stop_reason: StopWord
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None


class TextBlock(AnswerSchema, tag_field="type", tag="text"):
    """A text block of the model's answer."""

    text: str
    citations: None = None


class ThinkingBlock(AnswerSchema, tag_field="type", tag="thinking"):
    """The model's reasoning; its signature contains the reasoning if that is hidden."""

    thinking: str
    signature: str


class DirectCaller(AnswerSchema):
    """Marks a tool call as made by the model itself."""

    type: Literal["direct"] = "direct"


class ToolUseBlock(AnswerSchema, tag_field="type", tag="tool_use"):
    """A call of one of the client's tools."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller
    toolset_name: str | UnsetType = UNSET


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(AnswerSchema):
    """The number of reasoning tokens of an answer."""

    thinking_tokens: int


class EndingUsage(AnswerSchema, kw_only=True):
    """The token counts of a request; `input_tokens` are the prompt tokens that were not in the
    prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | None
    server_tool_use: None = None


class MessageUsage(EndingUsage, kw_only=True):
    """The token counts at the start of a message and of a whole message."""

    cache_creation: None = None
    inference_geo: None = None
    service_tier: Literal["standard"] = "standard"


class MessageAnswer(AnswerSchema, kw_only=True):
    """The response of `POST /v1/messages`. At the start of a stream, `stop_reason` is null."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopWord | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None
    usage: MessageUsage


def _counts(usage: Usage) -> dict[str, Any]:
    reasoning = usage.reasoning_tokens
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None if reasoning is None else ThinkingTokens(reasoning),
    }


def message_body(
    envelope: Envelope, sample: SampleDelta, form: AnswerForm, usage: Usage
) -> MessageAnswer:
    """Returns a whole message. `sample` holds the complete answer."""
    pieces = [piece for piece in sample.pieces if form.shown.shows(piece)]
    are_whole = [piece.complete for piece in pieces if isinstance(piece, CallEnd)]
    reason = sample.finish_reason or FinishReason.STOP
    ended = form.ending(reason, sample.stop_reason, are_whole, usage.completion_tokens)
    return MessageAnswer(
        id=envelope.id,
        model=envelope.model,
        content=_blocks(pieces, form),
        stop_reason=ended.stop_reason,
        stop_sequence=ended.stop_sequence,
        usage=MessageUsage(**_counts(usage)),
    )


def _tool_use(form: AnswerForm, function: str) -> ToolUseBlock:
    name, toolset, _ = form.target(function)
    return ToolUseBlock(form.new_call_id(), name, {}, DirectCaller(), toolset or UNSET)


def _blocks(pieces: Iterable[Piece], form: AnswerForm) -> list[AnswerBlock]:
    blocks: list[AnswerBlock] = []
    arguments: list[str] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                blocks.append(TextBlock(text))
            case Reasoning(text=text):
                blocks.append(ThinkingBlock(form.thinking(text), form.signature(text)))
            case CallBegin(name=name):
                arguments = []
                call = _tool_use(form, name)
                blocks.append(call)
            case CallArguments(text=text):
                arguments.append(text)
            case CallEnd(complete=True):
                written: Any = msgspec.Raw("".join(arguments) or "{}")
                call.input = written
    return blocks


class TextBlockDelta(AnswerSchema, tag_field="type", tag="text_delta"):
    """A further piece of a text block."""

    text: str


class ThinkingBlockDelta(AnswerSchema, tag_field="type", tag="thinking_delta"):
    """A further piece of a reasoning block."""

    thinking: str


class SignatureDelta(AnswerSchema, tag_field="type", tag="signature_delta"):
    """The signature at the end of a reasoning block."""

    signature: str


class InputJsonDelta(AnswerSchema, tag_field="type", tag="input_json_delta"):
    """A further piece of a tool call's input, as JSON text."""

    partial_json: str


class MessageStart(AnswerSchema, tag_field="type", tag="message_start"):
    """The first event of a stream."""

    message: MessageAnswer


class ContentBlockStart(AnswerSchema, tag_field="type", tag="content_block_start"):
    """Begins a content block."""

    index: int
    content_block: AnswerBlock


class ContentBlockDelta(AnswerSchema, tag_field="type", tag="content_block_delta"):
    """A further piece of a content block."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(AnswerSchema, tag_field="type", tag="content_block_stop"):
    """Ends a content block."""

    index: int


class MessageDelta(AnswerSchema, tag_field="type", tag="message_delta"):
    """The stop reason and the usage, at the end of a message."""

    delta: MessageEnding
    usage: EndingUsage


class MessageStop(AnswerSchema, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class Ping(AnswerSchema, tag_field="type", tag="ping"):
    """Shows that the stream is alive."""


MESSAGE_EVENT: Final[Any] = Union[  # noqa: UP007
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
]
"""Any event of a message's stream, except errors."""


def _event(event: AnswerSchema) -> bytes:
    return frame(msgspec.json.encode(event), str(event.__struct_config__.tag))


_PING: Final = _event(Ping())
_DELTA: Final = b"event: content_block_delta\n" + START + b'{"type":"content_block_delta","index":'


class MessageFrames:
    """Encodes one stream (`answer.Frames`) as consecutive content blocks."""

    def __init__(
        self, envelope: Envelope, generation: TextGeneration, form: AnswerForm, request_id: str
    ) -> None:
        self._envelope = envelope
        self._generation = generation
        self._form = form
        self._request_id = request_id
        self._is_open = False
        # The type of the open block's content; None = no block is open.
        self._kind: type[Piece] | None = None
        self._index = -1
        self._reasoning: list[str] = []
        self._are_whole: list[bool] = []
        # The finish reason, and the stop string or token that ended the text.
        self._reason = FinishReason.STOP
        self._stop: str | int | None = None

    def delta(self, delta: SampleDelta) -> bytes:
        frames = [self._opening()]
        for piece in delta.pieces:
            if self._form.shown.shows(piece):
                frames += self._events(piece)
        if delta.finish_reason is not None:
            frames += self._close()
            self._reason, self._stop = delta.finish_reason, delta.stop_reason
        return b"".join(frames)

    def opening_length(self, choice: int) -> int:
        return 0

    def end(self) -> bytes:
        usage = self._generation.usage
        ended = self._form.ending(
            self._reason, self._stop, self._are_whole, usage.completion_tokens
        )
        delta = MessageDelta(ended, EndingUsage(**_counts(usage)))
        return _event(delta) + _event(MessageStop())

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._envelope.dialect, self._request_id)

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        usage = MessageUsage(**_counts(self._generation.usage))
        envelope = self._envelope
        message = MessageAnswer(id=envelope.id, model=envelope.model, content=[], usage=usage)
        return _event(MessageStart(message)) + _PING

    def _events(self, piece: Piece) -> list[bytes]:
        match piece:
            case Content(text=text):
                begun = self._begin(Content, TextBlock(""))
                return [*begun, self._more(b"text_delta", b"text", text)]
            case Reasoning(text=text):
                begun = self._begin(Reasoning, ThinkingBlock("", ""))
                self._reasoning.append(text)
                if not self._form.thinking(text):
                    return begun
                return [*begun, self._more(b"thinking_delta", b"thinking", text)]
            case CallBegin(name=name):
                return self._begin(CallBegin, _tool_use(self._form, name))
            case CallArguments(text=text):
                return [self._more(b"input_json_delta", b"partial_json", text)]
            case CallEnd(complete=is_whole):
                self._are_whole.append(is_whole)
                return self._close()

    def _begin(self, kind: type[Piece], block: AnswerBlock) -> list[bytes]:
        """Returns the events that begin a content block; none if the open block is of the same
        kind."""
        if self._kind is kind:
            return []
        closed = self._close()
        self._kind = kind
        self._index += 1
        return [*closed, _event(ContentBlockStart(self._index, block))]

    def _more(self, kind: bytes, member: bytes, text: str) -> bytes:
        return b'%b%d,"delta":{"type":"%b","%b":%b}}%b' % (
            _DELTA,
            self._index,
            kind,
            member,
            orjson.dumps(text),
            END,
        )

    def _close(self) -> list[bytes]:
        if self._kind is None:
            return []
        frames = []
        if self._kind is Reasoning:
            signature = self._form.signature("".join(self._reasoning))
            frames.append(self._more(b"signature_delta", b"signature", signature))
            self._reasoning.clear()
        self._kind = None
        return [*frames, _event(ContentBlockStop(self._index))]


_SWITCH = "enable_thinking"
"""The template variable that switches reasoning."""


@dataclass(frozen=True, slots=True)
class MessagesReader(RequestReader[MessagesRequest]):
    """Reads the fields that only Messages requests have. To generate, `asked` must be the result
    of `_common_fields`."""

    fields: MessageFields

    def budget(self) -> TokenBudget:
        requested = self.asked.body.max_tokens
        if requested is None:
            raise InvalidField.about("max_tokens", "is required")
        # Backends compute a prompt only if they generate a token after it.
        return token_budget(self.asked, requested or 1, may_reach_limit=True)

    def read(self, budget: TokenBudget | None = None) -> Chat:
        body, images = self.asked.body, images_of_request(self.asked.model.images)
        found = to_messages(body.system, body.messages, images)
        return Chat(
            *found,
            read_tools(body.tools, body.tool_choice),
            self._options(found.messages),
            self.fields.warnings,
            is_answered=body.max_tokens != 0,
        )

    @property
    def thinks(self) -> bool:
        """Whether the model must reason, from the request's fields, its template variables and the
        operator's defaults. Reasoning is off by default, because clients expect text first."""
        body = self.asked.body
        asked = (body.chat_template_kwargs or {}).get(_SWITCH, self.fields.thinks)
        if asked is None:
            asked = self.asked.model.chat.config.default_chat_template_kwargs.get(_SWITCH)
        return bool(asked)

    def _options(self, messages: Sequence[Message]) -> TemplateOptions:
        """Returns the template's variables. If the last message is the assistant's, the answer
        continues that message."""
        last = messages[-1]
        continues = last["role"] == "assistant"
        if continues and "tool_calls" in last:
            raise InvalidField(
                "messages: the results of tools must follow the last message, which uses tools",
                param="messages",
            )
        model, thinks = self.asked.model, self.fields.thinks
        kwargs = dict(self.asked.body.chat_template_kwargs or {})
        if self.fields.effort is not None:
            kwargs.setdefault("reasoning_effort", self.fields.effort)
        template = model.chat.template
        can_switch = template is not None and _SWITCH in template.tool_source
        if thinks is None and can_switch and not self.thinks:
            thinks = False
        return template_options(
            model,
            TemplateFields(continue_final_message=continues, kwargs=kwargs, enable_thinking=thinks),
        )


def _form(
    given: ModelInput[MessagesRequest], reader: MessagesReader, new_call_id: Callable[[], str]
) -> AnswerForm:
    """Returns the options for writing the answer to a request."""
    tools = given.chat.tools
    shown = ShownPieces(
        hides_reasoning=not reader.thinks,
        hides_content=given.hides_content,
        one_call=not tools.is_parallel,
    )
    # The operator's limit counts as if the request had named it.
    max_tokens = (reader.budget().max_tokens or 0) if given.asked.body.max_tokens else 0
    return AnswerForm(shown, new_call_id, max_tokens, reader.fields.omits_thinking, tools.target)


def names_of(body: MessagesRequest) -> FieldNames:
    """Returns the client's names of the request fields, for error messages."""
    stop = "stop" if body.stop_sequences is None else "stop_sequences"
    return FieldNames("messages", "max_tokens", "logprobs", stop=stop)


def _common_fields(
    request: ClientRequest[MessagesRequest], fields: MessageFields
) -> ClientRequest[MessagesRequest]:
    """Maps Anthropic's fields to those of the other endpoints with the same meaning."""
    body, names = request.body, request.names
    if body.stop_sequences is not None:
        body = msgspec.structs.replace(body, stop=body.stop_sequences)
    if fields.budget is not None and body.thinking_token_budget is None:
        body = msgspec.structs.replace(body, thinking_token_budget=fields.budget)
    if fields.format is None:
        return replace(request, body=body)
    name = fields.format_name
    names = replace(names, response_format=name, json_schema=name)
    return replace(request, body=body, names=names, text_format=fields.format)


_CALL_ID_LENGTH: Final = 24

Fields = TypeVar("Fields", bound=MessagesRequest)


class CountedTokens(AnswerSchema):
    """The response of `POST /v1/messages/count_tokens`."""

    input_tokens: int


class Messages(ContextHandlers):
    """The handlers of the Messages API."""

    async def create(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers `POST /messages`. Raises RequestError or BackendError if the request fails before
        the answer begins."""
        context = self._context
        asked = await context.read(request, MessagesRequest, dialect, names_of)
        fields = read_fields(asked.body)
        if asked.body.max_tokens == 0:
            check_filling(asked.body)
        asked = await self._with_documents(request, asked)
        reader = MessagesReader(_common_fields(asked, fields), fields)
        given = await prepare(reader)
        form = _form(given, reader, self._new_call_id)
        envelope, generation = context.start_generation(request, given, "msg_")
        with generation:
            if asked.body.max_tokens == 0:
                return await self._fill(request, given, form, envelope, generation)
            writer = _writer(request, form, envelope, generation)
            return await write_answer(request, given, generation, writer)

    async def count_tokens(self, request: Request, dialect: Dialect) -> Response:
        """Returns the number of tokens of a request's prompt. Raises RequestError if a field is
        invalid; BackendError if the prompt has images and the model is not available."""
        asked = await self._context.read(request, CountTokensRequest, dialect, names_of)
        asked = await self._with_documents(request, asked)
        reader = MessagesReader(asked, read_fields(asked.body))
        make = lambda: chat_prompt(asked, reader.read())  # noqa: E731
        prompt, images = await asked.model.chat.rendered(asked.client, make, asked.size)
        num_tokens = len(prompt.token_ids)
        if images:  # the number of an image's tokens is known only to the model
            # Options for the answer do not affect the prompt, so they are not checked here.
            body = msgspec.structs.replace(
                asked.body,
                max_tokens=0,
                min_tokens=None,
                stop=None,
                stop_sequences=None,
                stream=None,
            )
            filling = _common_fields(replace(asked, body=body), reader.fields)
            given = await prepare(MessagesReader(filling, reader.fields))
            with TextGeneration(given, request.log_fields) as generation:
                await generation.run(_drop)
                num_tokens = generation.usage.prompt_tokens
        return json_response(CountedTokens(num_tokens))

    async def _with_documents(
        self, request: Request, asked: ClientRequest[Fields]
    ) -> ClientRequest[Fields]:
        find = partial(given_documents, asked.body.messages)
        added = await self._context.read_documents(request, find, asked.size)
        return replace(asked, size=asked.size + added)

    def _new_call_id(self) -> str:
        return f"toolu_{self._context.new_id()[-_CALL_ID_LENGTH:]}"

    async def _fill(
        self,
        request: Request,
        given: ModelInput[MessagesRequest],
        form: AnswerForm,
        envelope: Envelope,
        generation: TextGeneration,
    ) -> Response:
        """Computes a prompt only to fill the prefix cache, and returns an empty message; the one
        generated token is dropped."""
        await generation.run(_drop)
        usage = generation.usage._replace(completion_tokens=0)
        nothing = SampleDelta(0, "", FinishReason.LENGTH)
        body = message_body(envelope, nothing, form, usage)
        return json_response(body, headers=warning_headers(given.warnings, request))


def _writer(
    request: Request, form: AnswerForm, envelope: Envelope, generation: TextGeneration
) -> AnswerWriter:
    """Returns the writer of a message, as a stream or as a whole."""

    def whole(samples: Sequence[SampleDelta]) -> bytes:
        [sample] = samples
        return msgspec.json.encode(message_body(envelope, sample, form, generation.usage))

    return AnswerWriter(whole, lambda: MessageFrames(envelope, generation, form, request.id))


def _drop(delta: SampleDelta) -> None:
    """Ignores a token."""


_CREATE: Final = Operation(
    "Answers messages in Anthropic's format, whole or as a stream; with tools, thinking and "
    "structured answers.",
    MessageAnswer,
    "Messages",
    body=MessagesRequest,
    required=("messages", "max_tokens"),
    events=MESSAGE_EVENT,
    examples="messages",
)
_COUNT: Final = Operation(
    "Counts the tokens that the request's prompt would have.",
    CountedTokens,
    "Messages",
    body=CountTokensRequest,
    required=("messages",),
    examples="tokens of messages",
)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of Anthropic's Messages API."""
    messages = Messages(context)
    count = endpoint(messages.count_tokens, ANTHROPIC)
    yield Route("POST", "/v1/messages", endpoint(messages.create, ANTHROPIC), _CREATE)
    yield Route("POST", "/v1/messages/count_tokens", count, _COUNT)
