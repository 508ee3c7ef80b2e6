"""Background responses: their execution, and streams of their events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from fastovms.api.dialect import Dialect
from fastovms.api.generate import SampleDelta, TextGeneration
from fastovms.errors import (
    BackendUnavailable,
    InvalidField,
    Overloaded,
    ServerClosing,
    StateFailed,
    TooLarge,
)
from fastovms.fair_queue import Shares
from fastovms.http.messages import Request
from fastovms.params import GenerationOutput
from fastovms.parts.responses.events import EventLog, EventWriter, replay
from fastovms.parts.responses.output import failed, interrupted_events
from fastovms.parts.responses.run import ResponseGeneration, ResponsePlan, Run
from fastovms.parts.responses.stored import (
    found,
    from_record,
    id_is_taken,
    previous_not_found,
    to_record,
)
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import (
    ResponseKey,
    ResponseProgress,
    Resumption,
    StoredItem,
    StoredResponse,
    UnknownPrevious,
    Watch,
)

logger = logging.getLogger(__name__)


_LOST: Final = "it is no longer this replica's, which could not renew its lease"

_RETRY: Final = 1.0
_PATIENCE: Final = 300.0
"""While the shared store is not available: seconds between attempts to queue or store a response,
and seconds after which attempts to store it end."""


class BackgroundRun(Run):
    """The execution of one background response, which needs no connected client.

    Args:
        input: the items of the request.
        log: the stored events of a resumed response.
        ahead: the stored model output after those events.

    Attributes:
        log: the events of the response's stream. The last event is added once the response is
            stored.
    """

    def __init__(
        self,
        plan: ResponsePlan,
        answering: ResponseGeneration,
        input: Sequence[StoredItem],
        store: StateStore,
        log: EventLog | None = None,
        ahead: Sequence[GenerationOutput] = (),
    ) -> None:
        super().__init__(plan, answering)
        self.log = EventLog() if log is None else log
        self._is_kept = log is not None
        if self._is_kept:
            self._run.queue()
        self._resumption = resumption = answering.resumption
        self._is_cut = False
        self._input = input
        self._store = store
        loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = loop.create_future()
        self._held_up = asyncio.Event()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._writer = EventWriter(
            self.log, store, self.key, keeps_outputs=resumption is not None, ahead=ahead
        )

    @property
    def key(self) -> ResponseKey:
        """The tenant and the id."""
        return ResponseKey(self._plan.caller.tenant, self.id)

    @property
    def owner(self) -> str:
        """The client whose limits the run counts against."""
        return self._plan.client

    @property
    def id(self) -> str:
        return self._run.form.id

    def summary(self) -> tuple[str, str, int]:
        """Returns the model, the status, and the Unix time at which the response was created."""
        members = self._run.form.members
        return str(members["model"]), str(self._run.status.name), int(members["created_at"])

    def body(self) -> dict[str, object]:
        """Returns the current response object."""
        return self._run.body()

    def submit(self) -> None:
        """Queues the response for generation. Raises RequestError if the response can never run;
        BackendError if it cannot run now."""
        self._run.queue()
        self._submit()

    def restore(self, outputs: Iterable[GenerationOutput]) -> None:
        """Restores stored model output of an earlier process, before `go_on` is called. May be
        called several times."""
        assert self._generation is not None
        self._generation.restore(outputs, self._on_restored)

    def go_on(self) -> None:
        """Queues a resumed response for generation after its stored events, so that no event is
        sent twice. Raises as `submit` does, and may then be called again."""
        self.restore(())
        self._run.skip_events(self.log.num_events)
        self._submit()

    def _submit(self) -> None:
        self._writer.add(self._run.take_events())
        if self._generation is not None:
            self._generation.submit(self._on_delta, self._writer.add_output)

    async def advanced(self) -> None:
        """Waits until new model output of this process is stored, or the response has ended."""
        await self._writer.advanced.wait()

    @property
    def is_leased(self) -> bool:
        """Whether this replica knows the response to be stored as running on this replica."""
        accepted = self._accepted
        return accepted.done() and accepted.exception() is None and not self.has_ended

    async def storing_failed(self) -> None:
        """Waits until the response has ended and an attempt to store it has failed. `drive`
        retries."""
        await self._held_up.wait()

    async def accepted(self) -> None:
        """Waits until the response is stored, so that it survives a restart. Raises StateFailed,
        TooLarge, InvalidField or NotFound if it cannot be stored and therefore does not run."""
        await asyncio.shield(self._accepted)

    def cancel(self) -> None:
        """Stops the response unless it has ended. `drive` then stores it as cancelled."""
        if not self.has_ended:
            self._run.cancel()
            self._stop()

    def lose(self) -> None:
        """Stops the response unless it has ended, because another replica owns it now."""
        if not self.has_ended:
            self._run.fail(StateFailed(_LOST))
            self._stop()

    def _stop(self) -> None:
        self._stopped.set_result(None)
        if self._generation is not None:
            self._generation.abort()

    async def drive(self) -> None:
        """Runs the submitted response to its end, or until another replica takes it over."""
        try:
            with ExitStack() as stack:
                if self._generation is not None:
                    stack.enter_context(self._generation)
                if not await self._accept():
                    return
                writing = asyncio.ensure_future(self._writer.run(self.lose))
                try:
                    await self._generate(stack)
                finally:
                    writing.cancel()
                    await asyncio.wait((writing,))
            if self._is_cut:
                await self._writer.flush()
                self.log.cut()
            else:
                await self._keep()
        finally:
            self._writer.advanced.set()

    async def _accept(self) -> bool:
        """Stores the response as running, unless that is done, and wakes the waiters of `accepted`.
        Returns whether the response is stored."""
        if not self._is_kept:
            record = self._record(ResponseProgress.RUNNING)
            try:
                if not await self._store.run(Operations.add_response, self.key.tenant, record):
                    raise id_is_taken(self.id)
            except UnknownPrevious as error:
                self._refuse(previous_not_found(str(error)))
                return False
            except (StateFailed, TooLarge, InvalidField) as error:
                self._refuse(error)
                return False
        self._accepted.set_result(None)
        return True

    def _refuse(self, error: Exception) -> None:
        self._accepted.set_exception(error)
        self._accepted.exception()  # retrieve the error, so that asyncio does not log it

    async def _submitted(self, stack: ExitStack) -> TextGeneration | None:
        """Returns the generation. It is already submitted unless the model must be loaded first."""
        if self._begin is None:
            return self._generation
        beginning = asyncio.ensure_future(self._begin(stack))
        try:
            await asyncio.wait((beginning, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            beginning.cancel()
            await asyncio.wait((beginning,))
        if self.has_ended:
            if not beginning.cancelled():
                beginning.exception()  # retrieve the error, so that asyncio does not log it
            return None
        begun = beginning.result()
        self._run.adopt(begun.run)
        if self._resumption is not None:
            await self._keep_prompt(begun.resumption)
        assert begun.generation is not None
        await self._submit_when_possible(begun.generation)
        return self._generation

    async def _keep_prompt(self, resumption: Resumption | None) -> None:
        """Stores the data for resuming the response, once its model is known."""
        try:
            await self._store.run(Operations.set_resumption, *self.key, resumption)
        except (StateFailed, TooLarge) as error:
            logger.warning("the prompt of response %s is not stored: %s", self.id, error)
        self._resumption = resumption

    async def _submit_when_possible(self, generation: TextGeneration) -> None:
        """Submits a response that was accepted before its model was loaded, once the model's queue
        has room, unless it is cancelled first. Otherwise raises as `submit` does."""
        while not self.has_ended:
            try:
                generation.submit(self._on_delta, self._writer.add_output)
                self._generation = generation
                return
            except Overloaded:
                await asyncio.wait((self._stopped,), timeout=_RETRY)

    def _end_by(self, error: BaseException) -> None:
        """Ends the response with an error unless it has ended. If the server is shutting down and
        another process can resume the response, it does not fail."""
        if self.has_ended:
            return
        if not isinstance(error, Exception):
            raise error
        generation = self._generation
        if generation is None:
            is_lost = isinstance(error, ServerClosing)
        else:
            is_lost = isinstance(error, BackendUnavailable) or generation.has_lost_backend
        self._is_cut = is_lost and self._resumption is not None
        if not self._is_cut:
            self._run.fail(error)

    async def _keep(self) -> None:
        run = self._run
        run.end()
        own = [*self._writer.take_unsent(), *run.take_events()]
        last: list[bytes] | None = own
        record = self._record(ResponseProgress.FINISHED, events=self.log.dump(own))
        try:
            if not await self._finish(record):
                last = await self._last_stored_events(own)
        except (StateFailed, TooLarge) as error:
            logger.error("response %s is lost: %s", self.id, error)
        finally:
            if last is None:
                self.log.cut()
            else:
                self.log.append(last, closes=True)

    async def _last_stored_events(self, last: list[bytes]) -> list[bytes] | None:
        """Returns the last events of a response that another replica took over: `last`, or the
        events of an interrupted response; None = another replica resumes it. Raises StateFailed if
        the store cannot be read."""
        kept = await self._store.run(Operations.find_response, *self.key)
        if kept is None:
            return last
        if kept.progress is not ResponseProgress.INTERRUPTED:
            return last if self._resumption is None else None
        logger.error("response %s is lost: %s", self.id, _LOST)
        response = orjson.loads(from_record(kept))
        return interrupted_events(response, self.log.num_events, self._run.dialect)

    async def _finish(self, record: StoredResponse) -> bool:
        """Stores the response as finished. Retries while a shared store is unavailable, because
        only this replica has the result.

        Returns:
            Whether this replica still owned the response.
        """
        conversation_id = self._plan.fields.conversation_id
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + (0.0 if self._store.lease is None else _PATIENCE)
        while True:
            try:
                return await self._store.run(
                    Operations.finish_response,
                    self.key.tenant,
                    record,
                    conversation_id=conversation_id if self._run.status.is_answer else None,
                )
            except StateFailed:
                if loop.time() >= gives_up_at:
                    raise
            self._held_up.set()
            await asyncio.sleep(_RETRY)

    def _on_delta(self, delta: SampleDelta) -> None:
        if self.has_ended:
            return
        self._on_restored(delta)
        self._writer.add(self._run.take_events())

    def _on_restored(self, delta: SampleDelta) -> None:
        self._run.start()
        self._run.push(delta)

    def _record(self, progress: ResponseProgress, *, events: bytes | None = None) -> StoredResponse:
        run = self._run
        record = to_record(
            run.form,
            run.status,
            self._input,
            run.output.items,
            progress=progress,
            events=events,
        )
        runs = progress is ResponseProgress.RUNNING
        return replace(record, resumption=self._resumption) if runs else record


class BackgroundRuns:
    """The background responses that run in this process. `max_runs` is the maximum for one owner,
    and also for all other owners together."""

    def __init__(self, max_runs: int) -> None:
        self._places = Shares.of_places(max_runs)
        self._runs: dict[ResponseKey, BackgroundRun] = {}
        self._tasks: dict[BackgroundRun, asyncio.Task[None]] = {}

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    @property
    def room(self) -> int:
        """The number of runs that are left of `max_runs`, of all owners together."""
        return max(0, self._places.free - self._places.used)

    def check_room(self, owner: str) -> None:
        """Raises Overloaded if the owner has reached its limit of background responses."""
        if not self._places.may_take(owner):
            count = self._places.held(owner)
            raise Overloaded(f"you already have {count} background responses, which is the limit")

    def start(self, run: BackgroundRun) -> None:
        """Starts a run. Raises Overloaded if the owner has reached its limit; InvalidField if
        another response has the id; and as `BackgroundRun.submit` does."""
        self.check_room(run.owner)
        if run.key in self._runs:
            raise id_is_taken(run.id)
        run.submit()
        self._drive(run)

    def go_on(self, run: BackgroundRun) -> None:
        """Resumes an interrupted run. The limit does not apply, because the run was admitted
        before. Raises as `BackgroundRun.go_on` does."""
        run.go_on()
        self._drive(run)

    def _drive(self, run: BackgroundRun) -> None:
        key = run.key
        task = asyncio.ensure_future(run.drive())
        self._runs[key] = run
        self._tasks[run] = task
        self._places.hold(run.owner)

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[run]
            del self._runs[key]
            self._places.give_back(run.owner)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("response %s is lost", run.id, exc_info=error)

        task.add_done_callback(end)

    def find(self, tenant: str, id: str) -> BackgroundRun | None:
        """Returns a tenant's run in this process; None = there is no such run."""
        return self._runs.get(ResponseKey(tenant, id))

    def all(self) -> list[BackgroundRun]:
        """Returns all runs in this process."""
        return list(self._runs.values())

    def cancel_all(self, tenants: Collection[str]) -> int:
        """Cancels the responses of all other tenants. Returns the number of cancelled responses."""
        runs = [run for key, run in self._runs.items() if key.tenant not in tenants]
        for run in runs:
            run.cancel()
        return len(runs)

    def leased(self) -> list[BackgroundRun]:
        """Returns the responses that are stored as running on this replica."""
        return [run for run in self._runs.values() if run.is_leased]

    async def cancel(self, run: BackgroundRun) -> None:
        """Cancels a run, and returns once it is stored as cancelled, or with its result if it ended
        first. Raises as `kept` does."""
        run.cancel()
        await self.kept(run)

    async def kept(self, run: BackgroundRun) -> None:
        """Waits until the run has ended and is stored. Raises StateFailed if it has ended but
        cannot be stored now."""
        task = self._tasks.get(run)
        if task is None:
            return
        storing_failed = asyncio.ensure_future(run.storing_failed())
        try:
            await asyncio.wait((task, storing_failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            storing_failed.cancel()
        if not task.done():
            raise StateFailed(
                "the response has ended, but cannot be stored until the response store is "
                "available again"
            )

    async def drain(self, seconds: float) -> None:
        """Waits until all runs have ended, for at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)


@dataclass(frozen=True, slots=True)
class ResponsesState:
    """The state of responses that outlives their requests.

    Attributes:
        resumes: whether another replica resumes interrupted responses.
        attended: the foreground responses, by tenant and id; they are stored when they end.
        being_created: the background responses that are not started yet.
    """

    store: StateStore
    runs: BackgroundRuns
    resumes: bool = False
    attended: set[tuple[str, str]] = field(default_factory=set)
    being_created: dict[ResponseKey, asyncio.Future[None]] = field(default_factory=dict)

    @property
    def may_run_elsewhere(self) -> bool:
        """Whether a response that is stored as running, but does not run here, may run on another
        replica or be resumed."""
        return self.resumes or self.store.lease is not None

    @contextmanager
    def creating(self, tenant: str, id: str, *, is_attended: bool = False) -> Iterator[None]:
        """While the context is open, registers a foreground response, or a background response that
        is being created, so that `created` waits for it. Raises InvalidField if another response
        has the id."""
        key = ResponseKey(tenant, id)
        if key in self.being_created or key in self.attended:
            raise id_is_taken(id)
        if is_attended:
            self.attended.add(key)
        else:
            self.being_created[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self.attended.discard(key)
            self.note_created(tenant, id)

    def note_created(self, tenant: str, id: str) -> None:
        """Records that a background response has been started, or will not be started."""
        future = self.being_created.pop(ResponseKey(tenant, id), None)
        if future is not None:
            future.set_result(None)

    async def created(self, tenant: str, id: str) -> None:
        """Waits until a response is no longer being created. A client that has chosen the id may
        ask for the response earlier."""
        future = self.being_created.get(ResponseKey(tenant, id))
        if future is not None:
            await asyncio.shield(future)


LOOK_AGAIN: Final = 1.0
"""Seconds between checks of a response that runs on another replica if no notification arrives."""

_DELETED: Final = failed("the response was deleted")


async def stream_kept(
    request: Request, state: ResponsesState, id: str, start: int, dialect: Dialect
) -> None:
    """Streams a stored response, and returns when all events are sent. Raises NotFound if the
    response does not exist; InvalidField if it does not run in the background.

    Args:
        start: the number of the first event to send.
    """
    with state.store.watch_response(request.caller.tenant, id) as watch:
        reader = _LogReader(state, request.caller.tenant, id, start, dialect)
        await reader.open()
        tasks = [
            asyncio.ensure_future(reader.read_to_end(watch)),
            asyncio.ensure_future(replay(request, reader.log, start, dialect)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class _LogReader:
    """Reads the events of a response from the store.

    Attributes:
        log: the events read so far; closed after the last event.
    """

    def __init__(
        self, state: ResponsesState, tenant: str, id: str, start: int, dialect: Dialect
    ) -> None:
        self.log = EventLog(start)
        self._store = state.store
        self._may_go_on = state.may_run_elsewhere
        self._tenant = tenant
        self._id = id
        self._dialect = dialect
        self._body = b""

    async def open(self) -> None:
        """Reads the stored response. Raises as `stream_kept` does."""
        kept = found(
            await self._store.run(Operations.find_response, self._tenant, self._id),
            "Response",
            self._id,
        )
        self._body = from_record(kept)
        if not orjson.loads(self._body)["background"]:
            raise InvalidField(
                "stream: only background responses can be streamed again",
                param="stream",
            )
        await self._read()

    async def read_to_end(self, watch: Watch) -> None:
        while not self.log.is_closed:
            await watch.changed(LOOK_AGAIN)
            try:
                await self._read()
            except StateFailed as error:
                logger.debug(
                    "response %s: its stream continues when the response store is available: %s",
                    self._id,
                    error,
                )

    async def _read(self) -> None:
        """Reads new events into the log."""
        log = self.log
        events = await self._store.run(
            Operations.find_events, self._tenant, self._id, log.num_events
        )
        if events is None:
            self._fail(orjson.dumps({**orjson.loads(self._body), **_DELETED.members()}))
            return
        for pack in events.packs:
            log.extend(pack)
        if events.progress is ResponseProgress.FINISHED:
            log.close()
        elif events.progress is ResponseProgress.INTERRUPTED or not self._may_go_on:
            # The response is lost: it could run only on this replica, but does not.
            kept = await self._store.run(Operations.find_response, self._tenant, self._id)
            self._fail(self._body if kept is None else from_record(kept))
        else:
            log.append([])

    def _fail(self, body: bytes) -> None:
        events = interrupted_events(orjson.loads(body), self.log.num_events, self._dialect)
        self.log.append(events, closes=True)
