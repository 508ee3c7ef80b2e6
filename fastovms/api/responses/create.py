"""Answers `POST /responses`: in one piece, as a stream, or in the background. Also counts a
prompt's tokens."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import orjson

from fastovms.api.generation.answer import collect, format_cost
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.delta_stream import ClientTooSlow, DeltaSender
from fastovms.api.generation.deltas import SampleDelta, merged
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.ranking import best_samples
from fastovms.api.request.common_fields import is_streamed, request_id
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.typed_body import hold_model, loaded_model, read_named, try_model
from fastovms.api.responses.affinity import with_affinity
from fastovms.api.responses.answering import answering, item_ids, queued_run
from fastovms.api.responses.background import BackgroundRun, KeptFor, id_is_taken
from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.input.input_items import ItemRules
from fastovms.api.responses.input.response_fields import (
    ResponseFields,
    read_fields,
    with_configuration,
)
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.output.events import ResponseRun
from fastovms.api.responses.responses_job import ResponsesJob, count_tokens, names_of, prepare
from fastovms.api.responses.resumption.kept_job import (
    ANY_FILES,
    model_key,
    numbered_ids,
    queued_resumption,
    resumption_of,
    with_seed,
)
from fastovms.api.responses.stored.history import History, item_cost, read_history
from fastovms.api.responses.stored.records import to_items, to_record
from fastovms.api.responses.stored.replay import replay
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import log_fields_of
from fastovms.api.wire.sse_frames import DONE
from fastovms.api.wire.warning_header import passed_over, warning_headers
from fastovms.encoding import Task
from fastovms.errors import InvalidField, StateFailed, TooLarge
from fastovms.http.routing.messages import HeaderPairs, Request, Response
from fastovms.params import ModelInfo
from fastovms.state.store import Resumption, StoredItem, UnknownPrevious
from fastovms.telemetry.tracing import GenerationKind

logger = logging.getLogger(__name__)

_TASKS: Final = (Task.TEXT_GENERATION,)

_LONG_CONTEXT: Final = 2**20
"""Tokens of a context that is not known yet."""

_RESPONSE_IDS: Final = ("resp_", "resp-")


@dataclass(frozen=True, slots=True)
class _Task:
    """One request for a response, ready to run."""

    request: Request
    dialect: Dialect
    fields: ResponseFields
    history: History
    job: ResponsesJob
    generation: TextGeneration
    run: ResponseRun
    streams: bool
    headers: HeaderPairs
    resumption: Resumption | None


class Responses:
    """Handlers of what makes responses, for every dialect."""

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state

    async def create(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request.

        Raises:
            RequestError, BackendError: the answer has not begun, and cannot.
        """
        context, state, models = self._context, self._state, self._context.models
        body, known = await read_named(request, ResponsesRequest, models, dialect, context.bodies)
        fields = read_fields(body, dialect, keeps=state is not None)
        if fields.background and state is not None:
            state.runs.check_room(request.sender)
            body = with_seed(body)
        continued = fields.conversation_id or fields.previous_id
        new_id = with_affinity(context.new_id(), request.headers, continued)
        envelope = Envelope(
            f"{id_prefix(body, dialect)}{request_id(body, new_id)}",
            int(context.unix_time()),
            known.name,
            context.system_fingerprint,
            dialect,
        )
        noted: AbstractContextManager[None] = nullcontext()
        if state is not None and fields.store:
            notes = state.creating if fields.background else state.attending
            noted = notes(request.tenant, envelope.id)
        with noted:
            if state is not None and fields.store and body.request_id is not None:
                await _check_free(state, request.tenant, envelope.id)
            model = try_model(request, known, models, _TASKS)
            if model is None and (fields.background or is_streamed(body)):
                return await self._queue(request, body, known, fields, new_id, envelope)
            if model is None:
                model = await hold_model(request, known, models, _TASKS, streams=False)
            assert isinstance(model, ServedModel)
            preparation = context.preparation(request, body, model, dialect, names_of(body))
            history = await history_of(context, state, preparation, fields, request.tenant)
            preparation, fields = _configured(preparation, fields, history, keeps=state is not None)
            job = await prepare(preparation, fields, history)
            task = self._task(request, new_id, envelope, fields, history, job)
            if fields.background:
                return await self._in_background(task)
            with task.generation:
                return await (self._stream(task) if is_streamed(body) else self._complete(task))

    async def _queue(
        self,
        request: Request,
        body: ResponsesRequest,
        known: KnownModel,
        fields: ResponseFields,
        new_id: str,
        envelope: Envelope,
    ) -> Response | None:
        """Answers a request whose model must be loaded first, with events or in the background: the
        client has the response at once, as queued.

        Raises:
            RequestError: a field is at fault. What depends on the model is found later, and the
                response then fails.
        """
        context, state, tenant = self._context, self._state, request.tenant
        dialect = envelope.dialect
        request.log_fields["stream"] = is_streamed(body)
        info = known.info or _unknown_info(known)
        rules = ItemRules(dialect, item_ids(context.new_id, dialect))
        store = None if state is None else state.store
        history = await read_history(body, len(request.body), info, fields, rules, tenant, store)
        configured = with_configuration(body, history.items)
        if configured is not body:
            body, fields = configured, read_fields(configured, dialect, keeps=state is not None)
        id_key = context.new_id()
        run = queued_run(context, body, fields, envelope, numbered_ids(id_key))

        async def begin() -> _Task:
            assert context.models.holder is not None
            release = await context.models.holder.hold(known.name)
            try:
                model = loaded_model(known, _TASKS)
                assert isinstance(model, ServedModel)
                preparation = context.preparation(request, body, model, dialect, names_of(body))
                job = await prepare(preparation, fields, history)
                task = self._task(request, new_id, envelope, fields, history, job, id_key)
                task.generation.__enter__()
                return task
            finally:
                release()

        if not fields.background:
            await self._stream_queued(request, fields, history, run, begin)
            return None
        assert state is not None
        resumption = None
        if state.resumes:
            key = model_key(known.fingerprint or ANY_FILES, known.name)
            resumption = queued_resumption(body, key, dialect, envelope.created, id_key)
        kept_for = KeptFor(tenant, fields.conversation_id, request.sender)
        given = await _stored(history)
        background = BackgroundRun(run, begin, given, kept_for, state.store, resumption)
        return await self._accept(background, request, dialect)

    async def count_input(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the number of tokens that a request's prompt would have.

        Raises:
            RequestError: a field is at fault.
        """
        preparation = await self._context.read(request, ResponsesRequest, dialect, names_of)
        keeps = self._state is not None
        fields = read_fields(preparation.body, dialect, keeps=keeps)
        history = await history_of(self._context, self._state, preparation, fields, request.tenant)
        preparation, fields = _configured(preparation, fields, history, keeps=keeps)
        count = await count_tokens(preparation, fields, history)
        counted = {"object": "response.input_tokens", "input_tokens": count}
        return Response(200, orjson.dumps(counted))

    def _task(
        self,
        request: Request,
        new_id: str,
        envelope: Envelope,
        fields: ResponseFields,
        history: History,
        job: ResponsesJob,
        id_key: str = "",
    ) -> _Task:
        context, dialect = self._context, envelope.dialect
        id_key = id_key or (context.new_id() if fields.background else "")
        generation, run = answering(
            context,
            envelope,
            fields,
            job,
            numbered_ids(id_key) if fields.background else context.new_id,
            request_id=new_id,
            # The access log's line is written before a response in the background has ended.
            log_fields={} if fields.background else request.log_fields,
            begin_span=context.span_of(
                request, GenerationKind.CHAT, job.preparation, envelope.id, fields.conversation_id
            ),
        )
        resumption = None
        if fields.background and self._state is not None and self._state.resumes:
            resumption = resumption_of(job, dialect, envelope.created, id_key)
        streams = is_streamed(job.preparation.body)
        warnings = job.tools.warnings_for(job.preparation.model.chat.tool_format)
        all_warnings = [
            *passed_over(job.tools.skipped),
            *job.warnings,
            *warnings,
            *job.prompt.warnings,
        ]
        headers = warning_headers(all_warnings, request.id)
        return _Task(
            request, dialect, fields, history, job, generation, run, streams, headers, resumption
        )

    async def _complete(self, task: _Task) -> Response:
        generation, run, job = task.generation, task.run, task.job
        deltas = await collect(generation.run, generation.num_samples)

        def build() -> None:
            samples = [merged(parts) for parts in deltas]
            for sample in best_samples(samples, job.options.candidates):
                run.push(sample)

        cost = format_cost(deltas, job.options.report, job.preparation.model.info)
        await offload.run(build, cost)
        await self._keep(task.request, task.fields, task.history, run)
        data = await offload.run(lambda: orjson.dumps(run.body()), cost)
        return Response(200, data, headers=task.headers)

    async def _stream(self, task: _Task) -> None:
        generation, run = task.generation, task.run
        stream = task.request.stream(headers=task.headers)
        limit = self._context.config.max_pending_chars
        sender = DeltaSender(stream, _Frames(run), max_pending_chars=limit)
        last: SampleDelta | None = None

        def on_delta(delta: SampleDelta) -> None:
            nonlocal last
            if delta.finish_reason is not None:
                last = delta  # sent together with what ends the stream
            elif delta.parsed or not delta.is_empty:
                sender.send(delta)

        is_queued = run.status.name == "queued"
        failure: Exception | None = None
        try:
            generation.submit(on_delta)
            if is_queued:
                run.start()
            else:
                run.open()
            stream.send(b"".join(run.take_events()))
            await generation.finished()
        except ClientTooSlow:
            return
        except Exception as error:
            if not stream.started:
                raise
            failure = error
        rest = sender.rest(last)
        if failure is not None:
            task.request.log_fields.update(log_fields_of(failure))
            run.fail(failure)
        try:
            await self._keep(task.request, task.fields, task.history, run)
        except InvalidField as error:
            run.fail(error)
        run.end()
        stream.finish(rest + b"".join(run.take_events()) + DONE)

    async def _stream_queued(
        self,
        request: Request,
        fields: ResponseFields,
        history: History,
        run: ResponseRun,
        begin: Callable[[], Awaitable[_Task]],
    ) -> None:
        """Streams a response from before its model is loaded.

        Args:
            begin: waits for the model, and enters the context of the generation.
        """
        stream = request.stream()
        request.early_stream = stream
        run.open(is_queued=True)
        stream.send(b"".join(run.take_events()))
        with ExitStack() as stack:
            try:
                task = await begin()
            except Exception as error:
                request.log_fields.update(log_fields_of(error))
                run.fail(error)
                await self._keep(request, fields, history, run)
                run.end()
                stream.finish(b"".join(run.take_events()) + DONE)
                return
            stack.push(task.generation)
            run.adopt(task.run)
            await self._stream(replace(task, run=run))

    async def _in_background(self, task: _Task) -> Response | None:
        fields, tenant, state = task.fields, task.request.tenant, self._state
        assert state is not None
        background = BackgroundRun(
            task.run,
            task.generation,
            await _stored(task.history),
            KeptFor(tenant, fields.conversation_id, task.request.sender),
            state.store,
            task.resumption,
        )
        return await self._accept(background, task.request, task.dialect, task.headers)

    async def _accept(
        self,
        background: BackgroundRun,
        request: Request,
        dialect: Dialect,
        headers: HeaderPairs = (),
    ) -> Response | None:
        """Starts a response in the background, and answers once it is kept."""
        assert self._state is not None
        self._state.runs.start(background)
        self._state.note_created(request.tenant, background.id)
        body = orjson.dumps(background.body())
        await background.accepted()
        if not request.log_fields["stream"]:
            return Response(200, body, headers=headers)
        await replay(request, background.log, 0, dialect, headers=headers)
        return None

    async def _keep(
        self, request: Request, fields: ResponseFields, history: History, run: ResponseRun
    ) -> None:
        """Keeps a response. Whoever gets an answer gets it also when it cannot be kept; it then
        says so.

        Raises:
            InvalidField: another replica has taken the id meanwhile.
        """
        state = self._state
        conversation_id = fields.conversation_id if run.status.is_answer else None
        if state is None or not (fields.store or conversation_id):
            return
        tenant, given = request.tenant, await _stored(history)
        record = to_record(run.form, run.status, given, run.output.items)
        try:
            if fields.store:
                if not await state.store.add_response(
                    tenant, record, conversation_id=conversation_id
                ):
                    raise id_is_taken(record.id)
            elif conversation_id:
                items = [*record.input, *record.output]
                await state.store.add_items(tenant, conversation_id, items)
        except UnknownPrevious as error:
            logger.warning("response %s is not kept: %s is gone meanwhile", run.form.id, error)
            run.note_not_kept()
        except (StateFailed, TooLarge) as error:
            logger.error("response %s is not kept: %s", run.form.id, error)
            run.note_not_kept()


class _Frames:
    """Implements `delta_stream.DeltaFrames` for a response."""

    def __init__(self, run: ResponseRun) -> None:
        self._run = run

    def delta(self, delta: SampleDelta) -> bytes:
        self._run.push(delta)
        return b"".join(self._run.take_events())

    def opening_length(self, choice: int) -> int:
        return 0


async def _stored(history: History) -> Sequence[StoredItem]:
    """Returns the items of a request as the store keeps them."""
    return await offload.run(lambda: to_items(history.input), item_cost(history.size))


def _unknown_info(model: KnownModel) -> ModelInfo:
    """Returns what stands in for what a GGUF file says of its model once it is loaded."""
    return ModelInfo(model.name, model.created, _LONG_CONTEXT, 0, frozenset())


def id_prefix(body: ResponsesRequest, dialect: Dialect) -> str:
    """Returns the prefix of new ids; None for a client that gives a whole id, as vLLM takes it."""
    is_whole = (body.request_id or "").startswith(_RESPONSE_IDS)
    return "" if is_whole else f"resp{dialect.responses.id_separator}"


def _configured(
    preparation: Preparation[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    *,
    keeps: bool,
) -> tuple[Preparation[ResponsesRequest], ResponseFields]:
    """Returns the request with the tools and the settings that items of its history bring."""
    body = with_configuration(preparation.body, history.items)
    if body is preparation.body:
        return preparation, fields
    preparation = replace(preparation, body=body)
    return preparation, read_fields(body, preparation.dialect, keeps=keeps)


async def _check_free(state: ResponsesState, tenant: str, id: str) -> None:
    """Raises InvalidField where a response that is kept, or runs in the background, has the id."""
    if (
        state.runs.find(tenant, id) is not None
        or await state.store.find_response(tenant, id) is not None
    ):
        raise id_is_taken(id)


async def history_of(
    context: ApiContext,
    state: ResponsesState | None,
    preparation: Preparation[ResponsesRequest],
    fields: ResponseFields,
    tenant: str,
) -> History:
    """Reads the items of a request, and those that came before. Raises as `read_history` does."""
    rules = ItemRules(preparation.dialect, item_ids(context.new_id, preparation.dialect))
    return await read_history(
        preparation.body,
        preparation.size,
        preparation.model.info,
        fields,
        rules,
        tenant,
        None if state is None else state.store,
    )
