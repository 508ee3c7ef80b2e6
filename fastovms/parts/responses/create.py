"""`POST /responses`: creates a response, continues a stored one, compacts a long history."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import orjson

from fastovms.api import offload
from fastovms.api.answer import collect
from fastovms.api.chat_messages import seal_history, seal_summary
from fastovms.api.client_request import ClientRequest
from fastovms.api.context import ApiContext
from fastovms.api.dialect import AnswerSchema, Dialect
from fastovms.api.endpoint import json_response, warning_headers
from fastovms.api.fields import is_streamed
from fastovms.api.generate import TextGeneration, merged
from fastovms.api.prompt import context_exceeded
from fastovms.api.served import AnyServed, KnownModel, ServedModel
from fastovms.api.typed_body import hold_model, loaded_model, read_named, try_model
from fastovms.errors import InvalidField
from fastovms.http.messages import Headers, Request, Response
from fastovms.params import ModelInfo, Task
from fastovms.parts.responses.background import BackgroundRun, ResponsesState
from fastovms.parts.responses.input import CONFIGURATION, Item, ItemRules, NewId, given_documents
from fastovms.parts.responses.job import (
    ANY_FILES,
    Answering,
    Asked,
    ResponsesJob,
    answering,
    count_tokens,
    is_longer,
    item_ids,
    model_key,
    names_of,
    new_run,
    newest,
    prepare_response,
    prompt_resumption,
    ranked,
    resumption_of,
    transcript,
    with_seed,
)
from fastovms.parts.responses.output import usage_body
from fastovms.parts.responses.request import (
    CreateMessage,
    ResponseFields,
    ResponsesRequest,
    read_fields,
    with_configuration,
)
from fastovms.parts.responses.run import StreamedRun, WholeRun, stored_input
from fastovms.parts.responses.socket import Turn
from fastovms.parts.responses.stored import (
    History,
    id_is_taken,
    item_cost,
    read_history,
    replay,
)
from fastovms.state.operations import Operations
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.scanning import Content, Reasoning

logger = logging.getLogger(__name__)


# A balancer in front of several replicas sends requests with equal keys to the same replica,
# which has computed what they continue (`deploy/envoy/affinity.lua` reads the keys). A key tells
# nobody anything, and an id has 96 random bits beside it, so that it cannot be guessed.


AFFINITY_HEADER: Final = "X-Fastovms-Affinity"
"""The header with the key by which a balancer has chosen this replica."""

_NUM_DIGITS: Final = 8
_KEY: Final = re.compile(r"[0-9a-f]{8}")
_ID: Final = re.compile(r"[a-z]+[_-]([0-9a-f]{8})[0-9a-f]{24}")


def with_affinity(new_id: str, headers: Headers, continued: str | None = None) -> str:
    """Returns an id that contains the affinity key of the continued response, or of the request.

    Args:
        new_id: 32 random hexadecimal digits; the first 8 are the key if there is no other.
        headers: the headers of the request.
        continued: the id of the response or the conversation that is continued.
    """
    key = _key_of(continued) or headers.get(AFFINITY_HEADER) or ""
    return key + new_id[_NUM_DIGITS:] if _KEY.fullmatch(key) else new_id


def _key_of(id: str | None) -> str | None:
    """Returns the key of an id made here; None for an id that a client has made."""
    match = _ID.fullmatch(id or "")
    return None if match is None else match[1]


MAX_SUMMARY: Final = 2048
"""The maximum number of tokens of a summary."""

_SHARE: Final = 4
"""A summary takes no more than one part in so many of the context, and neither do the messages that
are kept as they are."""

_MARGIN: Final = 64
"""Tokens that are left free: two texts may have more together than each by itself."""

_MIN_SIZE: Final = 256
"""The least size, in tokens, that a conversation is compacted to: less holds no summary."""

_TASK: Final = (
    "Below is a conversation between a user and an assistant that works with tools. Write a "
    "summary that replaces it: whoever goes on with the work will have this summary and the "
    "user's newest messages, and nothing else. Say what the user wants, what has been done and "
    "decided, which facts, names, numbers and results still matter, and what is left to do. Write "
    "the summary alone.\n\n<conversation>\n{}\n</conversation>"
)
_NO_SUMMARY: Final = "(The model has written none.)"


class Compaction:
    """The handler of `POST /responses/compact`, for every dialect.

    The answer has the messages of the conversation except the model's, as many as fit into their
    share of the context. It ends with one item of the type `compaction` with the summary, as
    OpenAI's answer does; both are the input for the next request. The model does not see the
    request's tools, and nothing is stored.
    """

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request to compact a conversation. Raises RequestError, BackendError if the
        request failed."""
        context = self._context
        preparation = await context.read(request, ResponsesRequest, dialect, names_of)
        body = preparation.body
        if body.model is None:
            raise InvalidField("model is required", param="model")
        if is_streamed(body):
            raise InvalidField(
                "stream must be false: a compaction cannot be streamed", param="stream"
            )
        fields = read_fields(body, dialect, keeps=self._state is not None)
        # What came before may be longer than the context: that is what a compaction is for.
        fields = replace(fields, truncates=True)
        info = preparation.model.info
        history = await history_of(context, self._state, request, body, info, fields, dialect)
        if not history.items:
            raise InvalidField("input has nothing that could be compacted", param="input")
        new_item_id = item_ids(context.new_id, dialect)
        size = info.max_model_len
        job, kept = await _summary_job(preparation, fields, history, new_item_id, size)
        envelope, generation = context.begin(request, job, id_prefix(body, dialect))
        compaction = {
            "id": new_item_id("cmp"),
            "type": "compaction",
            "encrypted_content": seal_summary(await _summary(generation)),
        }
        answer = {
            "id": envelope.id,
            "object": "response.compaction",
            "created_at": envelope.created,
            "output": [*kept, compaction],
            "usage": usage_body(generation.usage),
        }
        data = await offload.run(lambda: orjson.dumps(answer), item_cost(history.size))
        return Response(200, data)


async def compacted(
    context: ApiContext,
    preparation: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
) -> tuple[Item, Sequence[Item]] | None:
    """Returns the compaction that `context_management` requests, and the items that the prompt then
    has. The messages at the end that the model has not answered are kept. Returns None if the
    prompt is short enough, or has nothing that a summary could replace. Raises RequestError if a
    field is invalid; BackendError if the model cannot write a summary now."""
    most = preparation.model.info.max_model_len
    threshold = min(fields.compact_threshold or most * 3 // 4, most * 7 // 8)
    if not await is_longer(preparation, fields, history, threshold):
        return None
    end = len(history.items)
    while end and _is_given(history.items[end - 1]):
        end -= 1
    older, newer = history.items[:end], history.items[end:]
    if not any(map(_is_replaceable, older)):
        return None
    new_item_id = item_ids(context.new_id, preparation.dialect)
    past = History(older, older, history.size)
    size = max(threshold, _MIN_SIZE)
    asked = replace(preparation, id=context.new_id())
    job, kept = await _summary_job(asked, fields, past, new_item_id, size)
    summary = await _summary(TextGeneration(job, {}))
    cost = item_cost(history.size)
    sealed = await offload.run(lambda: seal_history(summary, kept, newer), cost)
    item = {"id": new_item_id("cmp"), "type": "compaction", "encrypted_content": sealed}
    return item, [*kept, item, *newer]


def _is_given(item: Item) -> bool:
    """Returns whether no summary replaces the item."""
    if item["type"] in CONFIGURATION:
        return True
    return bool(item["type"] == "message" and item["role"] != "assistant")


def _is_replaceable(item: Item) -> bool:
    return item["type"] != "compaction" and not _is_given(item)


async def _summary_job(
    preparation: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    new_item_id: NewId,
    size: int,
) -> tuple[ResponsesJob, list[Item]]:
    """Returns the job that writes a summary of the history, and the messages that are kept. Raises
    RequestError if a field is invalid.

    Args:
        size: tokens that a conversation may have, of which summary and messages get a quarter each.
    """
    asked = replace(preparation, body=_summary_body(preparation, size))
    own = read_fields(asked.body, preparation.dialect, keeps=False)
    room = await _room(asked, history, new_item_id)
    tokenizer = preparation.model.tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    def read() -> tuple[str, list[Item]]:
        most = size // _SHARE
        return transcript(history.items, room, count), newest(history.items, most, count)

    told, kept = await offload.run(read, item_cost(history.size) + history.size)
    own = replace(own, reasoning=fields.reasoning)
    return await prepare_response(asked, own, _question(told, new_item_id)), kept


def _summary_body(preparation: ClientRequest[ResponsesRequest], size: int) -> ResponsesRequest:
    """Returns the request for a summary. Reasoning is off unless the client asks for it, because it
    would use up the summary's tokens."""
    body = preparation.body
    effort = (body.reasoning or {}).get("effort")
    return ResponsesRequest(
        model=body.model,
        instructions=body.instructions,
        max_output_tokens=max(1, min(MAX_SUMMARY, size // _SHARE)),
        chat_template_kwargs=body.chat_template_kwargs,
        enable_thinking=body.enable_thinking if effort is not None else bool(body.enable_thinking),
        store=False,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        priority=body.priority,
        cache_salt=body.cache_salt,
        request_id=body.request_id,
    )


async def _room(
    asked: ClientRequest[ResponsesRequest], history: History, new_item_id: NewId
) -> int:
    """Returns the maximum number of prompt tokens for the conversation. Raises InvalidField if the
    instructions leave no room."""
    fields = read_fields(asked.body, asked.dialect, keeps=False)
    model, num_output = asked.model.info, asked.body.max_output_tokens or 1
    taken = await count_tokens(asked, fields, _question("", new_item_id))
    room = model.max_model_len - num_output - taken - _MARGIN
    if room < _MARGIN:
        raise context_exceeded(f"the instructions have {taken} tokens", model, "instructions")
    return room


def _question(told: str, new_item_id: NewId) -> History:
    """Returns the one message that asks for a summary."""
    text = _TASK.format(told)
    item = {
        "id": new_item_id("msg"),
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }
    return History([item], [item], len(text))


async def _summary(generation: TextGeneration) -> str:
    """Runs the generation. Returns the text of a summary; the reasoning if the model wrote nothing
    else."""
    with generation:
        [deltas] = await collect(generation.run, generation.num_samples)
    sample = merged(deltas)
    for kind in (Content, Reasoning):
        text = "".join(piece.text for piece in sample.pieces if isinstance(piece, kind)).strip()
        if text:
            return text
    return _NO_SUMMARY


# Answers `POST /responses`: in one piece, as a stream, or in the background. Also counts a
# prompt's tokens.


_TASKS: Final = (Task.TEXT_GENERATION,)

_LONG_CONTEXT: Final = 2**20
"""Tokens of a context that is not known yet."""

_RESPONSE_IDS: Final = ("resp_", "resp-")


class InputTokens(AnswerSchema, kw_only=True):
    """The answer of `POST /responses/input_tokens`."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Responses:
    """The handlers that create responses, for every dialect."""

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state

    async def create(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers `POST /responses`. Raises RequestError, BackendError if the request failed before
        the answer began."""
        context, state, models = self._context, self._state, self._context.models
        turn: Turn | None = request.turn
        schema = ResponsesRequest if turn is None else CreateMessage
        body, known = await read_named(request, schema, models, dialect, context.bodies)
        if turn is not None and isinstance(body, CreateMessage):
            body = turn.read(body)
        fields = read_fields(body, dialect, keeps=state is not None)
        if fields.background and state is not None:
            state.runs.check_room(request.sender)
            body = with_seed(body)
        continued = fields.conversation_id or fields.previous_id
        new_id = with_affinity(context.new_id(), request.headers, continued)
        envelope = context.envelope(id_prefix(body, dialect), new_id, body, known.name, dialect)
        if turn is not None:
            turn.response_id = envelope.id
        noted: AbstractContextManager[None] = nullcontext()
        if state is not None and fields.store:
            is_attended = not fields.background
            noted = state.creating(request.caller.tenant, envelope.id, is_attended=is_attended)
        with noted:
            if state is not None and fields.store and body.request_id is not None:
                await _check_free(state, request.caller.tenant, envelope.id)
            model = try_model(request, known, models, _TASKS)
            streams = is_streamed(body) and not fields.background
            is_prepared = fields.caching.prewarms or fields.compact_threshold is not None
            if model is None and (is_prepared or not (fields.background or streams)):
                model = await hold_model(request, known, models, _TASKS, streams=streams)
            request.log_fields["stream"] = is_streamed(body)
            info = (known.info or _unknown_info(known)) if model is None else model.info
            history = await history_of(context, state, request, body, info, fields, dialect)
            body, fields = _configured(body, fields, history, dialect, keeps=state is not None)
            asked = Asked(
                body=body,
                fields=fields,
                history=history,
                envelope=envelope,
                caller=request.caller,
                client=request.sender,
                id_key=context.new_id() if fields.background else "",
            )
            if model is not None and is_prepared and streams and request.early_stream is None:
                request.open_early()
            begin = partial(self._begin, request, new_id, asked)
            if model is None:
                begun = await self._queued(request, known, asked, begin)
            else:
                begun = await begin(model)
            return await self._answer(request, asked, begun)

    async def _queued(
        self,
        request: Request,
        known: KnownModel,
        asked: Asked,
        begin: Callable[[AnyServed], Awaitable[Answering]],
    ) -> Answering:
        """Returns what answers a streamed or background request whose model must be loaded first.
        The client gets the response at once, with the status "queued". Raises InvalidField if a
        field cannot be encoded. Errors that depend on the model are found later and fail the
        response."""
        holder, state, resumption = self._context.models.holder, self._state, None

        async def load(stack: ExitStack) -> Answering:
            assert holder is not None
            release = await holder.hold(known.resident, request.sender)
            try:
                begun = await begin(loaded_model(known, _TASKS))
                assert begun.generation is not None
                stack.enter_context(begun.generation)
                return begun
            finally:
                release()

        run = new_run(self._context, asked)
        if asked.fields.background and state is not None and state.resumes:
            key = model_key(known.fingerprint or ANY_FILES, known.name)
            write = partial(resumption_of, asked, key, keeps_items=True)
            resumption = await offload.run(write, item_cost(asked.history.size))
        return Answering(run, begin=load, resumption=resumption)

    async def _begin(
        self, request: Request, new_id: str, asked: Asked, model: AnyServed
    ) -> Answering:
        """Returns what answers a request whose model is loaded."""
        assert isinstance(model, ServedModel)
        context, fields, history = self._context, asked.fields, asked.history
        preparation = context.asked(
            request,
            asked.body,
            model=model,
            dialect=asked.envelope.dialect,
            names=names_of(asked.body),
            new_id=new_id,
        )
        preparation = replace(preparation, caller=ranked(preparation.caller, fields))
        if fields.compact_threshold is not None:
            found = await compacted(context, preparation, fields, history)
            if found is not None:
                first, told = found
                history = replace(history, items=told)
                asked = replace(asked, first=first)
        job = await prepare_response(preparation, fields, history)
        # The access log's line is written before a response in the background has ended.
        log_fields = {} if fields.background else request.log_fields
        span = context.span_of(
            request, GenerationKind.CHAT, job.asked, asked.envelope.id, fields.conversation_id
        )
        begun = answering(context, asked, job, log_fields, span)
        resumes = self._state is not None and self._state.resumes and asked.first is None
        if fields.background and resumes:
            begun = begun._replace(resumption=prompt_resumption(asked, job))
        return begun

    async def _answer(self, request: Request, asked: Asked, begun: Answering) -> Response | None:
        """Runs a response, and returns it whole or as queued, or streams its events and returns
        None."""
        state, job = self._state, begun.job
        headers = warning_headers(() if job is None else job.warnings, request)
        if asked.fields.background:
            assert state is not None
            given = await stored_input(asked.history)
            background = BackgroundRun(asked, begun, given, state.store)
            state.runs.start(background)
            state.note_created(*background.key)
            body = orjson.dumps(background.body())
            await background.accepted()
            if not is_streamed(asked.body):
                return Response(200, body, headers=headers)
            await replay(request, background.log, 0, asked.envelope.dialect, headers=headers)
            return None
        store = None if state is None else state.store
        if is_streamed(asked.body):
            stream = request.stream(headers=headers)
            limit = self._context.config.max_pending_chars
            run = StreamedRun(asked, begun, request, store, stream, max_pending_chars=limit)
            await run.answer()
            return None
        assert job is not None
        data = await WholeRun(asked, begun, request, store).answer(job)
        return Response(200, data, headers=headers)

    async def count_input(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the number of tokens that a request's prompt would have. Raises RequestError
        if a field is invalid."""
        preparation = await self._context.read(request, ResponsesRequest, dialect, names_of)
        keeps = self._state is not None
        body, info = preparation.body, preparation.model.info
        fields = read_fields(body, dialect, keeps=keeps)
        history = await history_of(self._context, self._state, request, body, info, fields, dialect)
        body, fields = _configured(body, fields, history, dialect, keeps=keeps)
        preparation = replace(preparation, body=body)
        count = await count_tokens(preparation, fields, history)
        return json_response(InputTokens(input_tokens=count))


def _unknown_info(model: KnownModel) -> ModelInfo:
    """Returns placeholder settings for a GGUF file, replaced when the model is loaded."""
    return ModelInfo(model.name, model.created, _LONG_CONTEXT, 0, frozenset())


def id_prefix(body: ResponsesRequest, dialect: Dialect) -> str:
    """Returns the prefix of new ids; None if the client gives a whole id, as in vLLM."""
    is_whole = (body.request_id or "").startswith(_RESPONSE_IDS)
    return "" if is_whole else f"resp{dialect.responses.id_separator}"


def _configured(
    body: ResponsesRequest,
    fields: ResponseFields,
    history: History,
    dialect: Dialect,
    *,
    keeps: bool,
) -> tuple[ResponsesRequest, ResponseFields]:
    """Returns the request with the tools and settings that configuration items in its history
    add."""
    configured = with_configuration(body, history.items)
    if configured is body:
        return body, fields
    return configured, read_fields(configured, dialect, keeps=keeps)


async def _check_free(state: ResponsesState, tenant: str, id: str) -> None:
    """Raises InvalidField if a stored or running response has the id."""
    if (
        state.runs.find(tenant, id) is not None
        or await state.store.run(Operations.find_response, tenant, id) is not None
    ):
        raise id_is_taken(id)


async def history_of(
    context: ApiContext,
    state: ResponsesState | None,
    request: Request,
    body: ResponsesRequest,
    model: ModelInfo,
    fields: ResponseFields,
    dialect: Dialect,
) -> History:
    """Reads the items of a request and of the responses that it continues. Raises as `read_history`
    does."""
    rules = ItemRules(dialect, item_ids(context.new_id, dialect))
    store = None if state is None else state.store
    unstored = None if request.turn is None else request.turn.unstored.find(fields.previous_id)
    history = await read_history(
        body, len(request.body), model, fields, rules, request.caller.tenant, store, unstored
    )
    items = [*history.items]
    find = partial(given_documents, items, len(items) - len(history.input))
    added = await context.read_documents(request, find, item_cost(history.size))
    return replace(history, items=items, size=history.size + added) if added else history
