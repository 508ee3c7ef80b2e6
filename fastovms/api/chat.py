"""The endpoint `/chat/completions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import msgspec
import orjson
from msgspec import UNSET, UnsetType

from fastovms.api.answer import (
    AnswerPart,
    AnswerWriter,
    Envelope,
    FinishWord,
    RequestMetrics,
    ShownPieces,
    StreamUsage,
    TokenUsage,
    closing_members,
    finish_word,
    write_answer,
)
from fastovms.api.body import wrong
from fastovms.api.chat_messages import given_documents, read_messages
from fastovms.api.chat_tools import ToolTarget, ToolUse, read_functions, read_tools
from fastovms.api.client_request import ClientRequest, FieldNames
from fastovms.api.context import ContextHandlers
from fastovms.api.dialect import DONE, END, START, AnswerSchema, Dialect, last_frames
from fastovms.api.fields import (
    TokenBudget,
    TokenReport,
    num_values,
    prompt_caching,
    token_budget,
    token_report,
)
from fastovms.api.generate import SampleDelta, TextGeneration, Usage
from fastovms.api.image_parts import images_of_request
from fastovms.api.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs, prompt_logprobs_body
from fastovms.api.prepare import ModelInput, RequestReader, prepare
from fastovms.api.prompt import Chat, TemplateFields, template_options
from fastovms.api.request_schemas import ChatRequest, StreamOptions
from fastovms.api.scoring import ContentTokens, TokenAligner, best_samples
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import FinishReason, TokenLogprobs
from fastovms.text.detokenizer import TextToken
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)


@dataclass(slots=True)
class Call:
    """A tool call in an answer.

    Attributes:
        texts: the pieces of the tool's arguments or input.
    """

    target: ToolTarget
    texts: list[str] = field(default_factory=list)


class CalledFunction(AnswerSchema, kw_only=True):
    """The called function. In a stream, arguments come in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class CalledCustomTool(AnswerSchema, kw_only=True):
    """The called custom tool. In a stream, the input comes in pieces."""

    name: str | UnsetType = UNSET
    input: str


class ToolCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools."""

    id: str
    type: Literal["function", "custom"]
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustomTool | UnsetType = UNSET


class ToolCallDelta(AnswerSchema, kw_only=True):
    """A piece of a tool call. The first piece has the id and the name."""

    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    index: int
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustomTool | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class CallFormatter:
    """Formats the tool calls of one request's answers.

    Attributes:
        target: returns the client's tool for a function name that the model wrote.
        new_id: creates the ids of calls.
        is_legacy: whether the answer uses the legacy field `function_call`.
    """

    target: Callable[[str], ToolTarget]
    new_id: Callable[[], str]
    is_legacy: bool = False

    def members(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Returns the message's fields for at least one tool call."""
        called = [_called(call.target, "".join(call.texts)) for call in calls]
        if self.is_legacy:
            return {"function_call": called[0]["function"]}
        return {"tool_calls": [ToolCall(id=self.new_id(), **call) for call in called]}

    def beginning(self, index: int, target: ToolTarget) -> bytes:
        """Returns the delta that begins a tool call."""
        called = _called(target, "")
        if self.is_legacy:
            return msgspec.json.encode(ChatDelta(function_call=called["function"]))
        call = ToolCallDelta(id=self.new_id(), index=index, **called)
        return msgspec.json.encode(ChatDelta(tool_calls=[call]))

    def more(self, index: int, target: ToolTarget, text: str) -> bytes:
        """Returns the delta with more of the arguments or input of a tool call."""
        if self.is_legacy:
            return b'{"function_call":{"arguments":%b}}' % orjson.dumps(text)
        return b'{"tool_calls":[{"index":%d,"%b":{"%b":%b}}]}' % (
            index,
            target.kind.encode(),
            target.text_member.encode(),
            orjson.dumps(text),
        )


def _called(target: ToolTarget, text: str) -> dict[str, Any]:
    """Returns the fields of a call that name the tool and have its arguments or input."""
    if target.is_custom:
        return {"type": "custom", "custom": CalledCustomTool(name=target.function, input=text)}
    return {"type": "function", "function": CalledFunction(name=target.function, arguments=text)}


@dataclass(frozen=True, slots=True)
class ChatMessageForm:
    """The options for writing a chat answer.

    Attributes:
        role: the role of the message.
        prefix: text at the start of the content: the end of the prompt if `echo` is set.
        shown: which pieces the client receives.
        is_named: whether the request names the function to call.
        drops_cut_call: whether an incomplete call is left out of an answer that is not streamed.
        may_call: whether the answer may contain tool calls.
        calls: formats the tool calls.
        new_content_tokens: creates the `ContentTokens` of one sample.
    """

    role: str
    prefix: str
    shown: ShownPieces
    is_named: bool
    drops_cut_call: bool
    may_call: bool
    calls: CallFormatter
    new_content_tokens: Callable[[], ContentTokens]

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client receives a piece."""
        return self.shown.shows(piece)

    def finish_reason(
        self, reason: FinishReason, are_whole: Sequence[bool], dialect: Dialect
    ) -> FinishWord:
        """Returns the `finish_reason` of a choice. `are_whole` is whether each tool call is
        complete."""
        called: FinishWord = "function_call" if self.calls.is_legacy else "tool_calls"
        if self.is_named and dialect.ends_named_call_with_stop:
            called = "stop"
        return finish_word(reason, are_whole, called)


class ChatMessage(AnswerSchema, kw_only=True):
    """The content, reasoning and tool calls of the model. Below `/v1`, reasoning has two field
    names, because clients read either."""

    role: str
    content: str | None
    refusal: str | UnsetType | None = UNSET
    annotations: list[Any] | UnsetType = UNSET
    audio: UnsetType | None = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(AnswerSchema, kw_only=True):
    """One sample of an answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class ChatCompletion(AnswerPart, kw_only=True):
    """The answer of `POST /chat/completions`. Below `/v3` it has no `id`, as in OVMS."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    service_tier: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET
    usage: TokenUsage
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ChatPromptReport:
    """The details about the prompt in an answer; None = not reported."""

    logprobs: Sequence[TokenLogprobs | None] | None = None
    token_ids: Sequence[int] | None = None
    text: str | None = None

    def members(self, report: TokenReport) -> dict[str, Any]:
        """Returns the requested fields about the prompt."""
        members: dict[str, Any] = {}
        if self.logprobs is not None and report.num_prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs_body(
                self.logprobs, report.num_prompt_logprobs, report.names
            )
        if self.token_ids is not None:
            members["prompt_token_ids"] = list(self.token_ids)
        if self.text is not None:
            members["prompt_text"] = self.text
        return members


def chat_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompt: ChatPromptReport,
    form: ChatMessageForm,
    report: TokenReport,
    usage: Usage,
) -> ChatCompletion:
    """Returns the whole answer. `samples` are complete, in order."""
    dialect = envelope.dialect
    # vLLM always writes its own fields, with null for an absent value.
    absent = None if dialect.has_ids else UNSET
    choices = []
    for index, sample in enumerate(samples):
        pieces = [piece for piece in sample.pieces if form.shows(piece)]
        token_ids = [token.token_id for token in sample.tokens] if report.has_token_ids else absent
        choice = ChatChoice(
            index=index,
            message=_message(pieces, form, dialect),
            logprobs=_sample_logprobs(sample, form, report),
            finish_reason=sample.finish_reason
            and form.finish_reason(sample.finish_reason, _are_whole(pieces), dialect),
            stop_reason=sample.stop_reason if dialect.has_ids else UNSET,
            token_ids=token_ids,
        )
        choices.append(choice)
    prompt_members = {
        "prompt_logprobs": absent,
        "prompt_token_ids": absent,
        **prompt.members(report),
    }
    return ChatCompletion(
        **envelope.members("chat.completion"),
        choices=choices,
        service_tier="default" if dialect.has_ids else UNSET,
        kv_transfer_params=absent,
        **closing_members(usage),
        **prompt_members,
    )


def _are_whole(pieces: Iterable[Piece]) -> list[bool]:
    """Returns, for each tool call that ends in the pieces, whether it is complete."""
    return [piece.complete for piece in pieces if isinstance(piece, CallEnd)]


def _message(pieces: Iterable[Piece], form: ChatMessageForm, dialect: Dialect) -> ChatMessage:
    """Returns the message of a choice. `pieces` are those that the client receives."""
    content, reasoning = [form.prefix], []
    calls: list[Call] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                content.append(text)
            case Reasoning(text=text):
                reasoning.append(text)
            case CallBegin(name=name):
                calls.append(Call(form.calls.target(name)))
            case CallArguments(text=text):
                calls[-1].texts.append(text)
            case CallEnd(complete=is_complete):
                if not is_complete and form.drops_cut_call:
                    calls.pop()
    text = "".join(content)
    is_plain = form.is_named and not form.calls.is_legacy
    is_silent = bool(calls) and dialect.has_null_content and not is_plain
    members: dict[str, Any] = {}
    if dialect.has_ids:
        members |= {"refusal": None, "annotations": [], "audio": None}
        members |= dict.fromkeys(dialect.reasoning_members)
    if reasoning:
        members |= dict.fromkeys(dialect.reasoning_members, "".join(reasoning))
    if calls:
        members |= form.calls.members(calls)
    elif dialect.lists_no_calls:
        members["tool_calls"] = []
    return ChatMessage(role=form.role, content=text or (None if is_silent else ""), **members)


def _sample_logprobs(
    sample: SampleDelta, form: ChatMessageForm, report: TokenReport
) -> ChatLogprobs | None:
    if report.num_logprobs is None:
        return None
    content = form.new_content_tokens()
    content.push(sample.parsed, sample.tokens)
    shown: list[TextToken] = []
    for piece in sample.pieces:
        tokens = content.take(piece)
        if form.shows(piece):
            shown += tokens
    return chat_logprobs_body([*shown, *content.rest()], report)


def chat_logprobs_body(tokens: Sequence[TextToken], report: TokenReport) -> ChatLogprobs:
    """Returns the `logprobs` of a choice."""
    assert report.num_logprobs is not None
    return ChatLogprobs(chat_logprobs(tokens, report.num_logprobs, report.names))


_CHUNK = "chat.completion.chunk"
_UNFINISHED = b',"logprobs":null,"finish_reason":null'


class ChatDelta(AnswerSchema, kw_only=True):
    """A piece of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChunkChoice(AnswerSchema, kw_only=True):
    """A piece of one sample."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(AnswerPart, kw_only=True):
    """A frame of a streamed chat. `usage` is present if the request asks for it."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class ChatFrames:
    """Encodes one stream (`answer.Frames`). Unless token details are requested, a piece costs only
    the encoding of its text."""

    def __init__(
        self,
        envelope: Envelope,
        generation: TextGeneration,
        options: StreamOptions,
        report: TokenReport,
        form: ChatMessageForm,
        prompt: ChatPromptReport,
    ) -> None:
        self._dialect = envelope.dialect
        self._usage = StreamUsage(generation, options)
        self._report = report
        self._form = form
        self._is_plain = not report.needs_tokens and not self._usage.is_continuous
        choices = range(generation.num_samples)
        self._are_whole: list[list[bool]] = [[] for _ in choices]
        # For each choice, the client's name and type of the tool that the current call is for.
        self._targets = [ToolTarget("") for _ in choices]
        self._unsent_ids: list[list[int]] = [[] for _ in choices]
        self._content = [form.new_content_tokens() for _ in choices]
        members = orjson.dumps(envelope.members(_CHUNK))[:-1]
        self._head = START + members + b',"choices":['
        self._heads = [self._head + b'{"index":%d,"delta":' % index for index in choices]
        self._tail = self._rest(_UNFINISHED, None)
        self._opening = self._make_opening(prompt)

    def delta(self, delta: SampleDelta) -> bytes:
        opening, self._opening = self._opening, b""
        choice = delta.choice
        head = self._heads[choice]
        frames = [opening]
        if self._report.has_token_ids:
            self._unsent_ids[choice] += [token.token_id for token in delta.tokens]
        content = self._content[choice] if self._report.num_logprobs is not None else None
        if content is not None:
            content.push(delta.parsed, delta.tokens)
        for piece in delta.pieces:
            tokens = () if content is None else content.take(piece)
            if not self._form.shows(piece):
                continue
            if isinstance(piece, CallEnd):
                self._are_whole[choice].append(piece.complete)
            elif self._is_plain:
                frames.append(head + self._message(choice, piece) + self._tail)
            else:
                rest = self._choice_rest(choice, tokens, b"null", b"")
                frames.append(head + self._message(choice, piece) + rest)
        if delta.finish_reason is not None:
            frames.append(head + b"{}" + self._end(delta, delta.finish_reason))
        return b"".join(frames)

    def opening_length(self, choice: int) -> int:
        return len(self._opening)

    def end(self) -> bytes:
        return self._usage.last_frame(self._head) + DONE

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)

    def _message(
        self, choice: int, piece: Content | Reasoning | CallBegin | CallArguments
    ) -> bytes:
        """Returns the `delta` for a piece."""
        match piece:
            case Content(text=text):
                return b'{"content":' + orjson.dumps(text) + b"}"
            case Reasoning(text=text):
                return orjson.dumps(dict.fromkeys(self._dialect.reasoning_members, text))
            case CallArguments(call_index=index, text=text):
                return self._form.calls.more(index, self._targets[choice], text)
            case CallBegin(call_index=index, name=name):
                self._targets[choice] = target = self._form.calls.target(name)
                return self._form.calls.beginning(index, target)

    def _choice_rest(
        self, choice: int, tokens: Sequence[TextToken], finish_reason: bytes, members: bytes
    ) -> bytes:
        """Returns the fields that follow a piece or end the choice: log probabilities, and the ids
        of all tokens not reported yet."""
        logprobs = b"null"
        if tokens:
            logprobs = msgspec.json.encode(chat_logprobs_body(tokens, self._report))
        if unsent_ids := self._unsent_ids[choice]:
            self._unsent_ids[choice] = []
            members += b',"token_ids":' + orjson.dumps(unsent_ids)
        members = b',"logprobs":' + logprobs + b',"finish_reason":' + finish_reason + members
        return self._rest(members, choice)

    def _end(self, delta: SampleDelta, reason: FinishReason) -> bytes:
        are_whole = self._are_whole[delta.choice]
        word = orjson.dumps(self._form.finish_reason(reason, are_whole, self._dialect))
        members = b""
        if self._dialect.has_ids:
            members = b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        tokens = () if self._report.num_logprobs is None else self._content[delta.choice].rest()
        return self._choice_rest(delta.choice, tokens, word, members)

    def _rest(self, members: bytes, choice: int | None) -> bytes:
        """Returns the bytes from the end of the choice to the end of the frame."""
        return members + b"}]" + self._usage.member(choice) + b"}" + END

    def _make_opening(self, prompt: ChatPromptReport) -> bytes:
        """Returns the first frame of every choice, in order, with the role. The content is null if
        tool calls may follow, as in OpenAI's API: some clients show an empty string as a separate
        part (AI SDK 6: `@ai-sdk/openai`)."""
        is_text = not (self._dialect.handshake or self._form.may_call)
        message = ChatDelta(role=self._form.role, content="" if is_text else None)
        frames = []
        for choice, head in enumerate(self._heads):
            rest = b',"finish_reason":null}]}' + END
            if not self._dialect.handshake:
                rest = self._rest(_UNFINISHED, choice)
            frames.append(head + msgspec.json.encode(message) + rest)
            if self._form.prefix:
                frames.append(head + orjson.dumps({"content": self._form.prefix}) + self._tail)
        if reported := prompt.members(self._report):
            members = msgspec.json.encode(reported)[1:]
            frames[0] = frames[0].removesuffix(b"}" + END) + b"," + members + END
        return b"".join(frames)


class ChatReader(RequestReader[ChatRequest]):
    """Reads the fields that only chat requests have."""

    def report(self) -> TokenReport:
        body = self.asked.body
        _check_modalities(body)
        num_top = _top_logprobs(body)
        prompt_caching(body.prompt_cache_options, body.prompt_cache_retention)
        report = token_report(self.asked, num_top, scores=True)
        if report.has_token_ids and _hides_reasoning(self.asked):
            # Token ids would reveal the reasoning that the client asked to hide.
            report = replace(report, has_token_ids=False)
        return report

    def budget(self) -> TokenBudget:
        body = self.asked.body
        if body.max_completion_tokens is not None:
            return token_budget(self.asked, body.max_completion_tokens, may_reach_limit=True)
        requested = None if body.max_tokens is UNSET else body.max_tokens
        if requested == 0:
            raise InvalidField.about("max_tokens", "must be at least 1, not 0")
        return token_budget(self.asked, requested)

    def read(self, budget: TokenBudget) -> Chat:
        body, model, dialect = self.asked.body, self.asked.model, self.asked.dialect
        options = template_options(
            model,
            TemplateFields(
                body.add_generation_prompt,
                body.continue_final_message,
                body.documents,
                body.chat_template,
                body.chat_template_kwargs,
                body.reasoning_effort,
                body.enable_thinking,
            ),
        )
        found = read_messages(body.messages, dialect, images_of_request(model.images))
        return Chat(*found, _tools(body, dialect), options)


def names_of(body: ChatRequest) -> FieldNames:
    """Returns the names of a chat request's fields, for error messages."""
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    logprobs = "top_logprobs" if body.top_logprobs else "logprobs"
    return FieldNames(prompt="messages", max_tokens=limit, logprobs=logprobs)


def _tools(body: ChatRequest, dialect: Dialect) -> ToolUse:
    """Reads `tools`, or the older `functions`."""
    given = (body.functions, body.function_call)
    if given == (None, None):
        return read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, dialect)
    name = "functions" if body.functions is not None else "function_call"
    if body.tools is not None or body.tool_choice is not None:
        raise InvalidField.about(name, "cannot be used with tools or tool_choice")
    return read_functions(*given, dialect)


def _check_modalities(body: ChatRequest) -> None:
    for position, modality in enumerate(body.modalities or ()):
        if modality != "text":
            name = f"modalities[{position}]"
            raise wrong(name, '"text", because this model generates only text', modality)


def _top_logprobs(body: ChatRequest) -> int | None:
    """Returns the number of alternatives that are reported for each token; None = log probabilities
    are not reported."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField.about("top_logprobs", "is only allowed when logprobs is true")
    return None


def _hides_reasoning(asked: ClientRequest[ChatRequest]) -> bool:
    has_reasoning = asked.model.chat.reasoning_format is not None
    return asked.body.include_reasoning is False and has_reasoning


def _form(given: ModelInput[ChatRequest], new_call_id: Callable[[], str]) -> ChatMessageForm:
    """Returns the options for writing the answer."""
    asked, tools, tags = given.asked, given.chat.tools, given.asked.model.chat.tags
    [last] = given.chat.messages
    continues = asked.dialect.continues_roles and not given.chat.options.add_generation_prompt
    role = last["role"] if continues else asked.model.chat.config.response_role
    return ChatMessageForm(
        role=role,
        prefix=(last["content"] or "") if asked.body.echo and last["role"] == role else "",
        shown=ShownPieces(
            hides_reasoning=_hides_reasoning(asked),
            hides_content=given.hides_content,
            one_call=not tools.is_parallel,
        ),
        is_named=tools.is_named,
        drops_cut_call=tools.is_required,
        may_call=bool(tools.tools),
        calls=CallFormatter(tools.target, new_call_id, tools.is_legacy),
        new_content_tokens=(lambda: ContentTokens(TokenAligner(tags)))
        if given.finds_markup
        else partial(ContentTokens, None),
    )


class ChatCompletions(ContextHandlers):
    """The handler of `POST /chat/completions`, for every dialect."""

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request to `/chat/completions`; None = answered as a stream. Raises
        RequestError or BackendError if the request fails before the answer begins."""
        context = self._context
        asked = await context.read(request, ChatRequest, dialect, names_of)
        find = partial(given_documents, asked.body.messages)
        added = await context.read_documents(request, find, asked.size)
        given = await prepare(ChatReader(replace(asked, size=asked.size + added)))
        form = _form(given, context.new_call_id)
        envelope, generation = context.start_generation(request, given, "chatcmpl-")
        with generation:
            writer = _writer(given, form, envelope, generation)
            return await write_answer(request, given, generation, writer)


def _writer(
    given: ModelInput[ChatRequest],
    form: ChatMessageForm,
    envelope: Envelope,
    generation: TextGeneration,
) -> AnswerWriter:
    """Returns the writer of the answer to a chat."""
    report, [prompt] = given.report, given.prompts

    def prompt_report() -> ChatPromptReport:
        """Returns the fields about the prompt. Call it after the generation, which computes the log
        probabilities."""
        return ChatPromptReport(
            None if report.num_prompt_logprobs is None else generation.prompt_logprobs[0],
            prompt.token_ids if report.has_token_ids else None,
            prompt.text if given.asked.body.return_prompt_text else None,
        )

    def whole(samples: Sequence[SampleDelta]) -> bytes:
        best = best_samples(samples, given.candidates)
        return msgspec.json.encode(
            chat_body(envelope, best, prompt_report(), form, report, generation.usage)
        )

    def frames() -> ChatFrames:
        options = given.stream_options
        return ChatFrames(envelope, generation, options, report, form, prompt_report())

    prompt_cost = 0
    if report.num_prompt_logprobs is not None:
        num_each = num_values(report.num_prompt_logprobs, given.asked.model.info)
        prompt_cost = len(prompt.token_ids) * num_each
    return AnswerWriter(whole, frames, prompt_cost)
