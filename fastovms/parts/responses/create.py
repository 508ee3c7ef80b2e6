"""Creates or continues responses with `POST /responses`, and counts tokens of prompts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import orjson

from fastovms.api import offload
from fastovms.api.context import ApiContext
from fastovms.api.dialect import AnswerSchema, Dialect
from fastovms.api.endpoint import json_response, warning_headers
from fastovms.api.fields import is_streamed
from fastovms.api.served import AnyServed, KnownModel, ServedModel
from fastovms.api.typed_body import hold_model, loaded_model, read_named, try_model
from fastovms.http.messages import Request, Response
from fastovms.params import ModelInfo, Task
from fastovms.parts.responses.background import BackgroundRun, ResponsesState
from fastovms.parts.responses.compaction import compacted
from fastovms.parts.responses.events import replay
from fastovms.parts.responses.history import History, item_cost, read_history
from fastovms.parts.responses.ids import id_prefix, with_affinity
from fastovms.parts.responses.kept_request import (
    ANY_FILES,
    model_key,
    prompt_resumption,
    resumption_of,
    with_seed,
)
from fastovms.parts.responses.prepare import count_tokens, names_of, prepare_response, ranked
from fastovms.parts.responses.request import (
    CreateMessage,
    ResponseFields,
    ResponsesRequest,
    read_fields,
    with_configuration,
)
from fastovms.parts.responses.run import (
    ResponseGeneration,
    ResponsePlan,
    StreamedRun,
    WholeRun,
    answering,
    new_run,
    stored_input,
)
from fastovms.parts.responses.socket import Turn
from fastovms.parts.responses.stored import id_is_taken
from fastovms.state.operations import Operations
from fastovms.telemetry.tracing import GenerationKind

_TASKS: Final = (Task.TEXT_GENERATION,)
_LONG_CONTEXT: Final = 2**20
"""The assumed context length of a model that is not loaded yet."""


class InputTokens(AnswerSchema, kw_only=True):
    """The response of `POST /responses/input_tokens`."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Responses:
    """The handlers that create responses and count tokens, for every dialect."""

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state
        self._store = None if state is None else state.store

    async def create(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers `POST /responses`. Raises RequestError or BackendError if the request fails
        before the answer begins."""
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
            info = known.info if model is None else model.info
            if info is None:  # a GGUF file, whose settings are known only once it is loaded
                info = ModelInfo(known.name, known.created, _LONG_CONTEXT, 0, frozenset())
            history = await read_history(context, request, body, info, fields, dialect, self._store)
            body, fields = _configured(body, fields, history, dialect, keeps=state is not None)
            plan = ResponsePlan(
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
            begin = partial(self._begin, request, new_id, plan)
            if model is None:
                begun = await self._queued(request, known, plan, begin)
            else:
                begun = await begin(model)
            return await self._answer(request, plan, begun)

    async def _queued(
        self,
        request: Request,
        known: KnownModel,
        plan: ResponsePlan,
        begin: Callable[[AnyServed], Awaitable[ResponseGeneration]],
    ) -> ResponseGeneration:
        """Returns the run of a streamed or background request whose model must be loaded first. The
        client gets the response at once, with status "queued". Raises InvalidField if a field
        cannot be encoded. Errors that depend on the model fail the response later."""
        holder, state, resumption = self._context.models.holder, self._state, None

        async def load(stack: ExitStack) -> ResponseGeneration:
            assert holder is not None
            release = await holder.acquire(known.resident, request.sender)
            try:
                begun = await begin(loaded_model(known, _TASKS))
                assert begun.generation is not None
                stack.enter_context(begun.generation)
                return begun
            finally:
                release()

        run = new_run(self._context, plan)
        if plan.fields.background and state is not None and state.resumes:
            key = model_key(known.fingerprint or ANY_FILES, known.name)
            write = partial(resumption_of, plan, key, keeps_items=True)
            resumption = await offload.run(write, item_cost(plan.history.size))
        return ResponseGeneration(run, begin=load, resumption=resumption)

    async def _begin(
        self, request: Request, new_id: str, plan: ResponsePlan, model: AnyServed
    ) -> ResponseGeneration:
        """Returns the run and the generation of a request whose model is loaded."""
        assert isinstance(model, ServedModel)
        context, fields, history = self._context, plan.fields, plan.history
        preparation = context.asked(
            request,
            plan.body,
            model=model,
            dialect=plan.envelope.dialect,
            names=names_of(plan.body),
            new_id=new_id,
        )
        preparation = replace(preparation, caller=ranked(preparation.caller, fields))
        if fields.compact_threshold is not None:
            found = await compacted(context, preparation, fields, history)
            if found is not None:
                first, shortened = found
                history = replace(history, items=shortened)
                plan = replace(plan, first=first)
        job = await prepare_response(preparation, fields, history)
        # The access log's line is written before a response in the background has ended.
        log_fields = {} if fields.background else request.log_fields
        span = context.span_of(
            request, GenerationKind.CHAT, job.asked, plan.envelope.id, fields.conversation_id
        )
        begun = answering(context, plan, job, log_fields, span)
        resumes = self._state is not None and self._state.resumes and plan.first is None
        if fields.background and resumes:
            begun = begun._replace(resumption=prompt_resumption(plan, job))
        return begun

    async def _answer(
        self, request: Request, plan: ResponsePlan, begun: ResponseGeneration
    ) -> Response | None:
        """Runs a response. Returns it, complete or with status "queued"; None = its events were
        streamed."""
        state, job = self._state, begun.job
        headers = warning_headers(() if job is None else job.warnings, request)
        if plan.fields.background:
            assert state is not None
            given = await stored_input(plan.history)
            background = BackgroundRun(plan, begun, given, state.store)
            state.runs.start(background)
            state.note_created(*background.key)
            body = orjson.dumps(background.body())
            await background.accepted()
            if not is_streamed(plan.body):
                return Response(200, body, headers=headers)
            await replay(request, background.log, 0, plan.envelope.dialect, headers=headers)
            return None
        if is_streamed(plan.body):
            stream = request.stream(headers=headers)
            limit = self._context.config.max_pending_chars
            run = StreamedRun(plan, begun, request, self._store, stream, max_pending_chars=limit)
            await run.answer()
            return None
        assert job is not None
        data = await WholeRun(plan, begun, request, self._store).answer(job)
        return Response(200, data, headers=headers)

    async def count_input(self, request: Request, dialect: Dialect) -> Response:
        """Returns the number of tokens of a request's prompt. Raises RequestError if a field is
        invalid."""
        preparation = await self._context.read(request, ResponsesRequest, dialect, names_of)
        keeps = self._state is not None
        body, info = preparation.body, preparation.model.info
        fields = read_fields(body, dialect, keeps=keeps)
        history = await read_history(
            self._context, request, body, info, fields, dialect, self._store
        )
        body, fields = _configured(body, fields, history, dialect, keeps=keeps)
        preparation = replace(preparation, body=body)
        count = await count_tokens(preparation, fields, history)
        return json_response(InputTokens(input_tokens=count))


def _configured(
    body: ResponsesRequest,
    fields: ResponseFields,
    history: History,
    dialect: Dialect,
    *,
    keeps: bool,
) -> tuple[ResponsesRequest, ResponseFields]:
    """Returns the request and its options, with the tools and settings of configuration items in
    the history."""
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
