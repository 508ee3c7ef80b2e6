"""Answers `POST /responses`: in one piece, as a stream, or in the background. Also counts a
prompt's tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.responses.affinity import with_affinity
from fastovms.api.responses.answering import answering, item_ids
from fastovms.api.responses.background import BackgroundRun, KeptFor, id_is_taken
from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.input.input_items import ItemRules
from fastovms.api.responses.input.response_fields import ResponseFields, read_fields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.output.events import ResponseRun
from fastovms.api.responses.responses_job import ResponsesJob, count_tokens, names_of, prepare
from fastovms.api.responses.resumption.kept_job import numbered_ids, resumption_of, with_seed
from fastovms.api.responses.stored.history import History, item_cost, read_history
from fastovms.api.responses.stored.records import to_items, to_record
from fastovms.api.responses.stored.replay import replay
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import log_fields_of
from fastovms.api.wire.sse_frames import DONE
from fastovms.api.wire.warning_header import passed_over, warning_headers
from fastovms.errors import InvalidField, StateFailed, TooLarge
from fastovms.http.routing.messages import HeaderPairs, Request, Response
from fastovms.state.store import Resumption, StoredItem, UnknownPrevious
from fastovms.telemetry.tracing import GenerationKind

logger = logging.getLogger(__name__)

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

    async def input_items(self) -> Sequence[StoredItem]:
        items = self.history.input
        return await offload.run(lambda: to_items(items), item_cost(self.history.size))


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
        context, state = self._context, self._state
        preparation = await context.read(request, ResponsesRequest, dialect, names_of)
        fields = read_fields(preparation.body, dialect, keeps=state is not None)
        if fields.background and state is not None:
            state.runs.check_room()
            preparation = replace(preparation, body=with_seed(preparation.body))
        body = preparation.body
        history = await history_of(context, state, preparation, fields, request.tenant)
        job = await prepare(preparation, fields, history)
        continued = fields.conversation_id or fields.previous_id
        new_id = with_affinity(context.new_id(), request.headers, continued)
        envelope = context.envelope(id_prefix(body, dialect), new_id, preparation)
        if state is not None and fields.store and body.request_id is not None:
            await _check_free(state, request.tenant, envelope.id)
        task = self._task(request, new_id, envelope, fields, history, job)
        if fields.background:
            assert state is not None
            return await self._in_background(task, state)
        attending: AbstractContextManager[None] = nullcontext()
        if state is not None and fields.store:
            attending = state.attending(request.tenant, envelope.id)
        with attending, task.generation:
            return await (self._stream(task) if is_streamed(body) else self._complete(task))

    async def count_input(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the number of tokens that a request's prompt would have.

        Raises:
            RequestError: a field is at fault.
        """
        preparation = await self._context.read(request, ResponsesRequest, dialect, names_of)
        fields = read_fields(preparation.body, dialect, keeps=self._state is not None)
        history = await history_of(self._context, self._state, preparation, fields, request.tenant)
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
    ) -> _Task:
        context, dialect = self._context, envelope.dialect
        id_key = context.new_id() if fields.background else ""
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
        skipped = [*history.skipped, *job.tools.skipped]
        warnings = job.tools.warnings_for(job.preparation.model.chat.tool_format)
        told = [*passed_over(skipped), *warnings, *job.prompt.warnings]
        headers = warning_headers(told, request.id)
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
        await self._keep(task)
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

        generation.submit(on_delta)
        run.open()
        stream.send(b"".join(run.take_events()))
        failure: Exception | None = None
        try:
            await generation.finished()
        except ClientTooSlow:
            return
        except Exception as error:
            failure = error
        rest = sender.rest(last)
        if failure is not None:
            task.request.log_fields.update(log_fields_of(failure))
            run.fail(failure)
        try:
            await self._keep(task)
        except InvalidField as error:
            run.fail(error)
        run.end()
        stream.finish(rest + b"".join(run.take_events()) + DONE)

    async def _in_background(self, task: _Task, state: ResponsesState) -> Response | None:
        fields, tenant = task.fields, task.request.tenant
        background = BackgroundRun(
            task.run,
            task.generation,
            await task.input_items(),
            KeptFor(tenant, fields.conversation_id),
            state.store,
            task.resumption,
        )
        state.runs.start(background)
        body = orjson.dumps(background.body())
        await background.accepted()
        if not task.streams:
            return Response(200, body, headers=task.headers)
        await replay(task.request, background.log, 0, task.dialect, headers=task.headers)
        return None

    async def _keep(self, task: _Task) -> None:
        """Keeps a response. Whoever gets an answer gets it also when it cannot be kept; it then
        says so.

        Raises:
            InvalidField: another replica has taken the id meanwhile.
        """
        fields, run, state = task.fields, task.run, self._state
        conversation_id = fields.conversation_id if run.status.is_answer else None
        if state is None or not (fields.store or conversation_id):
            return
        tenant = task.request.tenant
        record = to_record(run.form, run.status, await task.input_items(), run.output.items)
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


def id_prefix(body: ResponsesRequest, dialect: Dialect) -> str:
    """Returns the prefix of new ids; None for a client that gives a whole id, as vLLM takes it."""
    is_whole = (body.request_id or "").startswith(_RESPONSE_IDS)
    return "" if is_whole else f"resp{dialect.responses.id_separator}"


async def _check_free(state: ResponsesState, tenant: str, id: str) -> None:
    """Raises InvalidField where a response that is kept, or runs, has the id."""
    is_running = (tenant, id) in state.attended or state.runs.find(tenant, id) is not None
    if is_running or await state.store.find_response(tenant, id) is not None:
        raise id_is_taken(id)


async def history_of(
    context: ApiContext,
    state: ResponsesState | None,
    preparation: Preparation[ResponsesRequest],
    fields: ResponseFields,
    tenant: str,
) -> History:
    """Reads the items of a request, and those that came before. Raises as `read_history` does."""
    dialect, takes_images = preparation.dialect, preparation.model.images is not None
    rules = ItemRules(dialect, item_ids(context.new_id, dialect), takes_images)
    return await read_history(
        preparation, fields, rules, tenant, None if state is None else state.store
    )
