"""The execution of a response from its request to its end, and responses whose clients wait."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import orjson

from fastovms.api import offload
from fastovms.api.answer import ClientTooSlow, DeltaSender, Envelope, format_cost
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DONE, log_fields_of
from fastovms.api.fields import is_streamed
from fastovms.api.generate import BeginSpan, SampleDelta, TextGeneration, Usage, merged
from fastovms.api.scoring import best_samples
from fastovms.errors import InvalidField, StateFailed, TooLarge
from fastovms.http.messages import Caller, Request, Stream
from fastovms.parts.responses.forms import output_form, response_form
from fastovms.parts.responses.history import History, item_cost
from fastovms.parts.responses.ids import item_id_factory, numbered_ids
from fastovms.parts.responses.input import Item
from fastovms.parts.responses.output import OutputForm, ResponseRun
from fastovms.parts.responses.prepare import ResponsesJob
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest
from fastovms.parts.responses.socket import Turn
from fastovms.parts.responses.stored import id_is_taken, to_items, to_record
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import Resumption, StoredItem, StoredResponse, UnknownPrevious

logger = logging.getLogger(__name__)
_CALL_ID_LENGTH: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePlan:
    """A checked request for a response. Its model may not be loaded yet.

    Attributes:
        caller: the sender, with the priority set by the server.
        client: the key or address that shares the engine with others.
        id_key: the key of the item ids (see `numbered_ids`); "" = the ids are random.
        first: an item that precedes the model's items in the output; None = no such item.
    """

    body: ResponsesRequest
    fields: ResponseFields
    history: History
    envelope: Envelope
    caller: Caller
    client: str
    id_key: str = ""
    first: Item | None = None


class ResponseGeneration(NamedTuple):
    """The run of a request, with its `generation`; or with `begin` if the model must be loaded
    first.

    Attributes:
        run: receives the deltas.
        resumption: the data for resuming the response on another replica; None = not resumable.
        job: None = the model must be loaded first.
    """

    run: ResponseRun
    generation: TextGeneration | None = None
    begin: Begin | None = None
    resumption: Resumption | None = None
    job: ResponsesJob | None = None


Begin = Callable[[ExitStack], Awaitable[ResponseGeneration]]
"""Waits for the model, and returns a generation whose context is entered on the stack, with a run
that has made no events."""


def answering(
    context: ApiContext,
    plan: ResponsePlan,
    job: ResponsesJob,
    log_fields: dict[str, object],
    begin_span: BeginSpan | None = None,
) -> ResponseGeneration:
    """Returns the run and the generation of a request whose model is loaded."""
    generation = TextGeneration(job, log_fields, begin_span)
    run = new_run(context, plan, job, lambda: generation.usage)
    return ResponseGeneration(run, generation, job=job)


def new_run(
    context: ApiContext,
    plan: ResponsePlan,
    job: ResponsesJob | None = None,
    usage: Callable[[], Usage] = lambda: Usage(0, 0, 0),
) -> ResponseRun:
    """Returns the run of a request. Raises InvalidField if a field cannot be encoded. `job` is None
    if the model is not loaded yet; `ResponseRun.adopt` then completes the run."""
    fields, dialect, params = plan.fields, plan.envelope.dialect, None
    new_id = numbered_ids(plan.id_key) if plan.id_key else context.new_id
    new_item_id = item_id_factory(new_id, dialect)
    form = OutputForm(new_id=new_item_id, new_call_id=new_id)
    if job is not None:
        params = job.requests[0].params
        form = output_form(job, fields, new_item_id, lambda: f"call_{new_id()[-_CALL_ID_LENGTH:]}")
    return ResponseRun(
        response_form(plan.body, params, fields, plan.envelope),
        replace(form, first=plan.first),
        dialect,
        usage=usage,
        unix_time=context.unix_time,
        makes_events=is_streamed(plan.body) or fields.background,
        for_all=fields.background,
        prewarms=fields.caching.prewarms,
    )


class Run(ABC):
    """The execution of one response: waits for the model, generates the output, and stores the
    response."""

    def __init__(self, plan: ResponsePlan, answering: ResponseGeneration) -> None:
        self._plan = plan
        self._run = answering.run
        self._generation = answering.generation
        self._begin = answering.begin

    @property
    def has_ended(self) -> bool:
        """Whether the generation has ended, so that the response only has to be stored."""
        return self._run.status.is_final

    async def _generate(self, stack: ExitStack) -> None:
        """Generates the output. Returns when it is complete, or the response has ended for another
        reason.

        Args:
            stack: exits the context of the generation at the end.
        """
        try:
            generation = await self._submitted(stack)
            if generation is not None and not self.has_ended:
                await generation.finished()
        except (Exception, asyncio.CancelledError) as error:
            self._end_by(error)

    @abstractmethod
    async def _submitted(self, stack: ExitStack) -> TextGeneration | None:
        """Returns the submitted generation; None = the response has ended before."""

    @abstractmethod
    def _end_by(self, error: BaseException) -> None:
        """Marks a streamed or background response as failed; raises the error for other
        responses."""


class ForegroundRun(Run):
    """A response whose client waits for it. It is stored at its end.

    Args:
        store: None = responses are not stored.
    """

    def __init__(
        self,
        plan: ResponsePlan,
        answering: ResponseGeneration,
        request: Request,
        store: StateStore | None,
    ) -> None:
        super().__init__(plan, answering)
        self._request = request
        self._turn: Turn | None = request.turn
        self._store = store

    async def _keep(self) -> None:
        """Stores the response. If that fails, the client still gets the answer, which reports that
        it is not stored. A response that is not to be stored is kept by its WebSocket connection
        for the next request. Raises InvalidField if another replica has stored a response with this
        id."""
        run, turn, fields, past = (
            self._run,
            self._turn,
            self._plan.fields,
            self._plan.history.past,
        )
        if turn is not None:
            turn.may_be_cancelled = False
        conversation_id = fields.conversation_id if run.status.is_answer else None
        store = self._store if fields.store or conversation_id is not None else None
        if store is None and turn is None:
            return
        given = await stored_input(self._plan.history)
        record = to_record(run.form, run.status, given, run.output.items)
        if turn is not None and turn.unstored.find(fields.previous_id) is not None:
            record = replace(record, input=[*past, *given], previous_id=None)
        try:
            if store is not None:
                await self._add(store, record, conversation_id)
        except UnknownPrevious as error:
            logger.warning(
                "response %s is not stored: %s was deleted in the meantime", record.id, error
            )
            run.note_not_kept()
        except (StateFailed, TooLarge) as error:
            logger.error("cannot store response %s: %s", record.id, error)
            run.note_not_kept()
        if turn is not None and not run.form.members["store"] and run.status.name != "failed":
            turn.unstored.keep(record.id, [*past, *given, *record.output])

    async def _add(
        self, store: StateStore, record: StoredResponse, conversation_id: str | None
    ) -> None:
        tenant = self._plan.caller.tenant
        if self._plan.fields.store:
            if not await store.run(
                Operations.add_response, tenant, record, conversation_id=conversation_id
            ):
                raise id_is_taken(record.id)
        elif conversation_id is not None:
            items = [*record.input, *record.output]
            await store.run(Operations.add_items, tenant, conversation_id, items)


class WholeRun(ForegroundRun):
    """A foreground response that is sent as a whole."""

    async def answer(self, job: ResponsesJob) -> bytes:
        """Returns the response as JSON. Raises RequestError or BackendError if the response
        fails."""
        with ExitStack() as stack:
            await self._generate(stack)
            cost = format_cost(self._deltas, job.report, job.asked.model.info)
            await offload.run(lambda: self._build(job), cost)
            await self._keep()
            return await offload.run(lambda: orjson.dumps(self._run.body()), cost)

    async def _submitted(self, stack: ExitStack) -> TextGeneration | None:
        assert self._generation is not None
        stack.enter_context(self._generation)
        self._deltas: list[list[SampleDelta]] = [[] for _ in range(self._generation.num_samples)]
        self._generation.submit(lambda delta: self._deltas[delta.choice].append(delta))
        return self._generation

    def _end_by(self, error: BaseException) -> None:
        raise error

    def _build(self, job: ResponsesJob) -> None:
        samples = [merged(parts) for parts in self._deltas]
        for sample in best_samples(samples, job.candidates):
            self._run.push(sample)


class StreamedRun(ForegroundRun):
    """A foreground response that is streamed event by event. Implements `answer.DeltaFrames`.

    Args:
        stream: not started, unless comments were sent.
        max_pending_chars: the maximum characters of text that are buffered for a client that does
            not read.
    """

    def __init__(
        self,
        plan: ResponsePlan,
        answering: ResponseGeneration,
        request: Request,
        store: StateStore | None,
        stream: Stream,
        *,
        max_pending_chars: int,
    ) -> None:
        super().__init__(plan, answering, request, store)
        self._stream = stream
        self._sender = DeltaSender(stream, self, max_pending_chars=max_pending_chars)
        self._last: SampleDelta | None = None
        self._rest = b""

    async def answer(self) -> None:
        """Streams the response to its end. Raises RequestError or BackendError if the response
        fails before the stream begins."""
        with ExitStack() as stack:
            try:
                await self._generate(stack)
            except ClientTooSlow:
                return
            self._take_rest()
            try:
                await self._keep()
            except InvalidField as error:
                self._run.fail(error)
            self._run.end()
            self._stream.finish(self._rest + self._events() + DONE)

    async def _submitted(self, stack: ExitStack) -> TextGeneration | None:
        if self._begin is not None:
            self._request.early_stream = self._stream
            self._run.queue()
            self._stream.send(self._events())
            begun = await self._begin(stack)
            self._run.adopt(begun.run)
            self._generation = begun.generation
        elif self._generation is not None:
            stack.enter_context(self._generation)
        assert self._generation is not None
        self._generation.submit(self._on_delta)
        self._run.start()
        self._stream.send(self._events())
        return self._generation

    def _on_delta(self, delta: SampleDelta) -> None:
        if delta.finish_reason is not None:
            self._last = delta  # sent together with the last frames
        elif delta.parsed or not delta.is_empty:
            self._sender.send(delta)

    def _end_by(self, error: BaseException) -> None:
        """Ends a response that has failed, or that its client has cancelled on a WebSocket
        connection."""
        if isinstance(error, ClientTooSlow) or not self._stream.started:
            raise error
        is_cancelled = self._turn is not None and self._turn.is_cancelled
        if not (isinstance(error, Exception) or is_cancelled):
            raise error  # the client has disconnected
        self._take_rest()
        if self._generation is not None:
            self._generation.abort()
        if isinstance(error, Exception):
            self._request.log_fields.update(log_fields_of(error))
            self._run.fail(error)
        elif not self.has_ended:
            self._run.cancel()

    def _take_rest(self) -> None:
        """Makes the events of the deltas that have not been sent."""
        self._rest += self._sender.rest(self._last)
        self._last = None

    def delta(self, delta: SampleDelta) -> bytes:
        self._run.push(delta)
        return b"".join(self._run.take_events())

    def opening_length(self, choice: int) -> int:
        return 0

    def _events(self) -> bytes:
        return b"".join(self._run.take_events())


async def stored_input(history: History) -> Sequence[StoredItem]:
    """Returns the items of a request in their stored form."""
    return await offload.run(lambda: to_items(history.input), item_cost(history.size))
