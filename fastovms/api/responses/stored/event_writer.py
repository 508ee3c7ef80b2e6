"""Writes the events of a response to the store while it runs, before anybody is sent them: for
those who follow it through other replicas, and for whoever goes on with it after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from fastovms.api.responses.resumption.kept_outputs import pack_outputs
from fastovms.api.responses.stored.event_log import EventLog, pack_frames
from fastovms.errors import StateFailed, TooLarge
from fastovms.params import GenerationOutput
from fastovms.state.store import EventPack, ResponseKey, StateStore

logger = logging.getLogger(__name__)

SHARED_INTERVAL: Final = 0.1
"""Seconds between two writes of one response where somebody waits for them."""

_OWN_INTERVAL: Final = 1.0
"""Seconds where nobody reads them but after a crash: each write wears the disk."""

_RETRY: Final = 1.0
"""Seconds until a write that failed is tried again."""


class EventWriter:
    """Writes the events of one response, and logs those that are written: what a client has been
    sent is not taken back. While the store cannot be had, they are logged all the same.

    Args:
        log: those that clients may be sent. It may have some, which are kept already.
        keeps_outputs: whether to keep what the model has said, too.
        ahead: what of that is kept behind the last of these events.

    Attributes:
        advanced: set once something is kept that the model has said in this process, or once
            nothing more is kept.
    """

    def __init__(
        self,
        log: EventLog,
        store: StateStore,
        key: ResponseKey,
        *,
        keeps_outputs: bool,
        ahead: Sequence[GenerationOutput] = (),
    ) -> None:
        self._log = log
        self._store = store
        self._key = key
        self._keeps_outputs = keeps_outputs
        self._num_kept = log.num_events
        self._unsent: list[bytes] = []
        # The pack of what is ahead has the number of the next one, which takes its place.
        self._outputs = list(ahead)
        self._num_outputs_kept = len(ahead)
        self._has_ended = False
        self._more = asyncio.Event()
        self.advanced = asyncio.Event()

    def add_output(self, output: GenerationOutput) -> None:
        """Adds what the model has said, before the events that tell of it."""
        if self._keeps_outputs:
            self._outputs.append(output)
            self._more.set()

    def add(self, frames: Sequence[bytes]) -> None:
        """Adds events."""
        self._unsent += frames
        if self._has_ended:
            self._log_unsent()
        if frames:
            self._more.set()

    def take_unsent(self) -> list[bytes]:
        """Returns the events that are not logged, for the caller to keep and to log."""
        unsent, self._unsent = self._unsent, []
        return unsent

    async def run(self, on_loss: Callable[[], None]) -> None:
        """Writes until it is cancelled: one write at a time, and each has all that has come since
        the last.

        Args:
            on_loss: called, at the end, when the response is no longer this replica's.
        """
        while True:
            await self._more.wait()
            self._more.clear()
            has_said = self._has_said
            try:
                while self._is_behind:
                    if not await self._write():
                        on_loss()
                        return
            except StateFailed:
                self._log_unsent()
                self._more.set()
                await asyncio.sleep(_RETRY)
                continue
            except TooLarge as error:
                logger.warning("events of response %s are not kept: %s", self._key.id, error)
                self._has_ended = True
                self._log_unsent()
                self.advanced.set()
                return
            if self._keeps_outputs and not has_said:
                continue  # only the server has told something, and what the model says is to follow
            has_readers = self._store.lease is not None or self._log.has_listeners
            await asyncio.sleep(SHARED_INTERVAL if has_readers else _OWN_INTERVAL)

    async def flush(self) -> None:
        """Writes what there is, once `run` has ended. Where that fails, what is not written has
        been sent to nobody."""
        try:
            while self._is_behind and await self._write():
                pass
        except (StateFailed, TooLarge) as error:
            logger.warning("the last events of response %s are not kept: %s", self._key.id, error)

    @property
    def _has_said(self) -> bool:
        """Whether the model has said anything that is not kept."""
        return self._num_outputs_kept < len(self._outputs)

    @property
    def _is_behind(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._unsent) or self._num_kept < self._log.num_events or self._has_said

    async def _write(self) -> bool:
        """Writes some events, and all that the model has said, also where that makes no event for
        long, such as within a call. Returns whether the response is still this replica's."""
        log, outputs, has_said = self._log, list(self._outputs), self._has_said
        is_logged = self._num_kept < log.num_events
        frames = log.read(self._num_kept) if is_logged else list(self._unsent)
        # Never without what they were made of: whoever goes on makes the events behind them.
        said = pack_outputs(outputs) if outputs else None
        pack = EventPack(self._num_kept, pack_frames(frames), said)
        if not await self._store.add_events(*self._key, pack):
            return False
        if has_said:
            self.advanced.set()
        if frames:
            del self._outputs[: len(outputs)]
        self._num_outputs_kept = 0 if frames else len(outputs)
        self._num_kept += len(frames)
        if not is_logged:
            del self._unsent[: len(frames)]
            log.append(frames)
        return True

    def _log_unsent(self) -> None:
        self._log.append(self.take_unsent())
