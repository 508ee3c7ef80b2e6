"""Runs one response without a client: queued, in progress, ended, and cancelled at any point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol

import orjson

from fastovms.api.generation.deltas import SampleDelta
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.responses.output.events import ResponseRun
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.event_writer import EventWriter
from fastovms.api.responses.stored.missing import previous_not_found
from fastovms.api.responses.stored.records import from_record, to_record
from fastovms.errors import BackendUnavailable, InvalidField, ServerClosing, StateFailed, TooLarge
from fastovms.params import GenerationOutput
from fastovms.state.store import (
    ResponseKey,
    ResponseProgress,
    Resumption,
    StateStore,
    StoredItem,
    StoredResponse,
    UnknownPrevious,
)

logger = logging.getLogger(__name__)


_LOST: Final = "it is no longer this replica's, which could not renew its lease"

_RETRY: Final = 1.0
_PATIENCE: Final = 300.0
"""Seconds after which it is tried again to keep a response, and after which no more, while the
store that replicas share cannot be had."""


class Begun(Protocol):
    """What runs a response on a model in memory.

    Attributes:
        generation: its context is entered.
        run: of the response, and has told nothing.
    """

    @property
    def generation(self) -> TextGeneration: ...

    @property
    def run(self) -> ResponseRun: ...


Begin = Callable[[], Awaitable[Begun]]
"""Waits for a model, and makes what runs a response on it."""


@dataclass(frozen=True, slots=True)
class KeptFor:
    """The tenant that a response belongs to, and the conversation that it adds to.

    Attributes:
        owner: the key or address in whose share the response runs; "" = the tenant.
    """

    tenant: str
    conversation_id: str | None = None
    owner: str = ""


class BackgroundRun:
    """One response that runs without a client.

    Args:
        generation: makes the text, or is made by a `Begin` once the model is loaded.
        resumption: what others need to go on with it; None = nobody can.
        log: what its stream has said already, where this goes on with it.
        ahead: what is kept of what the model has said behind that.

    Attributes:
        log: what its stream says. The last event comes when the response is kept.
    """

    def __init__(
        self,
        run: ResponseRun,
        generation: TextGeneration | Begin,
        input: Sequence[StoredItem],
        kept_for: KeptFor,
        store: StateStore,
        resumption: Resumption | None = None,
        log: EventLog | None = None,
        ahead: Sequence[GenerationOutput] = (),
    ) -> None:
        self.log = EventLog() if log is None else log
        self._is_kept = log is not None
        self._resumption = resumption
        self._is_cut = False
        self._has_opened = False
        self._run = run
        self._generation: TextGeneration | None = None
        self._begin: Begin | None = None
        if isinstance(generation, TextGeneration):
            self._generation = generation
        else:
            self._begin = generation
        self._input = input
        self._kept_for = kept_for
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
        return ResponseKey(self._kept_for.tenant, self.id)

    @property
    def owner(self) -> str:
        return self._kept_for.owner or self._kept_for.tenant

    @property
    def id(self) -> str:
        return self._run.form.id

    @property
    def has_ended(self) -> bool:
        """Whether all that is left to do is to keep it."""
        return self._run.status.is_final

    def summary(self) -> tuple[str, str, int]:
        """Returns the model, the status, and when the response was asked for."""
        members = self._run.form.members
        return str(members["model"]), str(self._run.status.name), int(members["created_at"])

    def body(self) -> dict[str, object]:
        """Returns the response as of now."""
        return self._run.body()

    def submit(self) -> None:
        """Queues the response.

        Raises:
            RequestError: it can never run.
            BackendError: it cannot run now.
        """
        self._run.open(is_queued=True)
        self._writer.add(self._run.take_events())
        if self._generation is not None:
            self._generation.submit(self._on_delta, self._writer.add_output)

    def hear(self, outputs: Iterable[GenerationOutput]) -> None:
        """Takes over what the model has said in a process that has ended. It may be told piece by
        piece, before `go_on`."""
        if not self._has_opened:
            self._run.open(is_queued=True)
        self._has_opened = True
        assert self._generation is not None
        self._generation.hear(outputs, self._on_heard)

    def go_on(self) -> None:
        """Queues the response again, behind what it has heard; nothing is told twice. It raises as
        `submit` does, and may then be tried again."""
        self.hear(())
        self._run.skip_events(self.log.num_events)
        self._writer.add(self._run.take_events())
        assert self._generation is not None
        self._generation.submit(self._on_delta, self._writer.add_output)

    async def advanced(self) -> None:
        """Returns once something is kept that the model has said here, or the response has
        ended here."""
        await self._writer.advanced.wait()

    @property
    def is_leased(self) -> bool:
        """Whether the store has it as running on this replica, as far as that is known here."""
        accepted = self._accepted
        return accepted.done() and accepted.exception() is None and not self.has_ended

    async def held_up(self) -> None:
        """Returns once it has ended and could not be kept. `drive` tries that again."""
        await self._held_up.wait()

    async def accepted(self) -> None:
        """Returns once the response is kept, so that a restart will not forget it.

        Raises:
            StateFailed, TooLarge, InvalidField, NotFound: it is not kept, and does not run.
        """
        await asyncio.shield(self._accepted)

    def cancel(self) -> None:
        """Stops it, unless it has ended. `drive` then keeps it as cancelled."""
        if not self.has_ended:
            self._run.cancel()
            self._stopped.set_result(None)

    def lose(self) -> None:
        """Stops it, unless it has ended, because it is no longer this replica's."""
        if not self.has_ended:
            self._run.fail(StateFailed(_LOST))
            self._stopped.set_result(None)

    async def drive(self) -> None:
        """Runs what was submitted to its end, or until another process is to go on with it."""
        try:
            with ExitStack() as stack:
                if self._generation is not None:
                    stack.enter_context(self._generation)
                if not await self._accept():
                    return
                writing = asyncio.ensure_future(self._writer.run(self.lose))
                try:
                    if self._begin is not None:
                        await self._wait_for_model(self._begin, stack)
                    if self._generation is not None and not self.has_ended:
                        await self._finished(self._generation)
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
        """Keeps the response as one that runs, unless it is kept already, tells who waits for that,
        and returns whether it is kept."""
        if not self._is_kept:
            record = self._record(ResponseProgress.RUNNING)
            try:
                if not await self._store.add_response(self._kept_for.tenant, record):
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
        self._accepted.exception()  # retrieved, so that asyncio does not complain about it

    async def _wait_for_model(self, begin: Begin, stack: ExitStack) -> None:
        """Submits the response once its model is loaded, unless it is cancelled before.

        Args:
            stack: leaves the context of the generation.
        """
        beginning = asyncio.ensure_future(begin())
        try:
            await asyncio.wait((beginning, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            beginning.cancel()
            await asyncio.wait((beginning,))
            if not beginning.cancelled() and beginning.exception() is None:
                stack.push(beginning.result().generation)
        if self.has_ended:
            return
        try:
            begun = beginning.result()
            self._run.adopt(begun.run)
            begun.generation.submit(self._on_delta, self._writer.add_output)
            self._generation = begun.generation
        except Exception as error:
            self._end_by(error, cuts=isinstance(error, ServerClosing))

    async def _finished(self, generation: TextGeneration) -> None:
        finished = asyncio.ensure_future(generation.finished())
        await asyncio.wait((finished, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            finished.cancel()
        elif isinstance(error := finished.exception(), Exception) and not self.has_ended:
            # Not the answer's fault, but that of a server that ends.
            lost = isinstance(error, BackendUnavailable) or generation.has_lost_backend
            self._end_by(error, cuts=lost)

    def _end_by(self, error: Exception, *, cuts: bool) -> None:
        """Ends the response by an error.

        Args:
            cuts: whether another process can resume the response.
        """
        self._is_cut = cuts and self._resumption is not None
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
                last = await self._what_is_kept(own)
        except (StateFailed, TooLarge) as error:
            logger.error("response %s is lost: %s", self.id, error)
        finally:
            if last is None:
                self.log.cut()
            else:
                self.log.append(last, closes=True)

    async def _what_is_kept(self, last: list[bytes]) -> list[bytes] | None:
        """Returns the last events of a response that is no longer this replica's: `last`, unless
        the others have it as interrupted; None where another one goes on with it.

        Raises:
            StateFailed: nothing is known of it.
        """
        kept = await self._store.find_response(*self.key)
        if kept is None:
            return last
        if kept.progress is not ResponseProgress.INTERRUPTED:
            return last if self._resumption is None else None
        logger.error("response %s is lost: %s", self.id, _LOST)
        return self._run.interrupted_events(orjson.loads(from_record(kept)), self.log.num_events)

    async def _finish(self, record: StoredResponse) -> bool:
        """Keeps the response as finished. Where replicas share a store, it waits for one that is
        gone: another replica cannot tell how the response has ended.

        Returns:
            Whether the response was still this replica's.
        """
        tenant, conversation_id = self._kept_for.tenant, self._kept_for.conversation_id
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + (0.0 if self._store.lease is None else _PATIENCE)
        while True:
            try:
                return await self._store.finish_response(
                    tenant,
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
        self._on_heard(delta)
        self._writer.add(self._run.take_events())

    def _on_heard(self, delta: SampleDelta) -> None:
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


def id_is_taken(id: str) -> InvalidField:
    return InvalidField(f"request_id: there is a response with the id '{id}'", param="request_id")
