"""Writes the blocks of prompts to disk that are worth it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.backend_stats import StoredPrefixStats
from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.engine.stored_prefixes.job_thread import JobThread
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks
from fastovms.errors import description_of
from fastovms.prefix_cache.block_directory import NoRoom
from fastovms.prefix_cache.prefix_keys import PrefixNamespace

logger = logging.getLogger(__name__)

MIN_PROMPT_TOKENS: Final = 256
"""From this length on all of a prompt is worth it; of a shorter one what was reused once."""

BUSY_SHARE: Final = 0.125
"""The share of the rate of writing that is used while sequences run."""

FLUSH_SECONDS: Final = 5.0
"""How long a server that ends goes on writing."""

_STOP_SECONDS: Final = 1.0
"""How long the block may take that is being written when the server has failed."""

_RETRY_AFTER: Final = 60.0
"""Seconds without another try when nothing could be written."""


class _Wanted(NamedTuple):
    """A block to write.

    Attributes:
        text: it is of use as long as it holds this.
        position: how many blocks of the text come before it.
        before: the key of the last of these; None = it is the first. Without it on disk nobody
            would ever read this one.
    """

    block_id: int
    text: object
    position: int
    before: bytes | None


class PrefixSaver:
    """Notes which blocks are worth writing, and hands a copy of one after another to a thread. All
    of it but writing itself runs on the engine's thread."""

    def __init__(
        self,
        stored: ModelBlocks,
        blocks: BlockManager,
        stats: StoredPrefixStats,
        *,
        call: Callable[[Callable[[], None]], None],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            call: has a function called on the engine's thread.
            is_busy: whether sequences run, which writing would disturb.
        """
        self._stored = stored
        self._blocks = blocks
        self._stats = stats
        self._call = call
        self._is_busy = is_busy
        self._clock = clock
        self._wanted: OrderedDict[bytes, _Wanted] = OrderedDict()
        self._at_writer: tuple[bytes, _Wanted] | None = None
        self._is_writing = False
        self._is_off = False
        self._trouble = ""
        self._writer = JobThread("prefix-writer")

    @property
    def is_writing(self) -> bool:
        """Whether the writer has a block, or waits to be given one."""
        return self._is_writing

    def note(self, sequence: Sequence) -> None:
        """Notes what is worth writing of a sequence's prompt, which has just been computed."""
        size, salt = self._stored.block_size, sequence.cache_salt
        num_worth = sequence.num_registered_blocks
        if sequence.num_prompt_tokens < MIN_PROMPT_TOKENS:
            num_worth = min(num_worth, sequence.num_cached_tokens // size)
        if sequence.index > 0 or num_worth == 0 or not self._stored.is_kept(salt) or self._is_off:
            return
        namespace = PrefixNamespace(sequence.tenant, salt, sequence.prefix_root)
        keys = self._stored.keys(sequence.token_ids[: num_worth * size], namespace)
        before = None
        for position, key in enumerate(keys):
            block_id = sequence.block_table[position]
            text = self._blocks.text_of(block_id)
            if text is not None and key not in self._stored.directory:
                self._wanted[key] = _Wanted(block_id, text, position, before)
            before = key
        while len(self._wanted) > self._blocks.num_blocks:
            self._wanted.popitem(last=False)
        if self._wanted and not self._is_writing:
            self._is_writing = True
            self._writer.do(partial(self._call, self._hand_over))

    def give_up(self) -> None:
        """Writes nothing from now on."""
        self._is_off = True
        self._is_writing = False
        self._at_writer = None
        self._wanted.clear()

    def close(self, *, flush: bool) -> None:
        """Ends the thread. What is left is written, if at all, as long as a server that ends may
        take for it."""
        deadline = self._clock() + FLUSH_SECONDS
        if not self._writer.close(FLUSH_SECONDS if flush else _STOP_SECONDS) or not flush:
            return
        self._take_back()
        try:
            while self._clock() < deadline and (found := self._next()) is not None:
                key, block = found
                content = self._stored.copy(block.block_id)
                self._stored.directory.budget.spend(
                    self._stored.write(key, content, block.position)
                )
        except (NoRoom, OSError) as error:
            logger.warning("prefix cache: not all is written: %s", error)

    def _next(self) -> tuple[bytes, _Wanted] | None:
        """Takes the next block out that is still worth it."""
        directory = self._stored.directory
        while self._wanted:
            key, block = self._wanted.popitem(last=False)
            is_there = self._blocks.text_of(block.block_id) == block.text
            before = block.before
            is_reached = before is None or before in directory or before in self._wanted
            if is_there and is_reached and key not in directory:
                return key, block
        return None

    def _take_back(self) -> None:
        """Wants the block again that the writer had, and first, if it has not been written."""
        if self._at_writer is not None:
            key, block = self._at_writer
            self._at_writer = None
            if key not in self._stored.directory:
                self._wanted[key] = block
                self._wanted.move_to_end(key, last=False)

    def _hand_over(self) -> None:
        """Gives the writer a copy of the next block: the block itself may be evicted meanwhile."""
        self._take_back()
        self._at_writer = found = self._next()
        self._is_writing = found is not None
        if found is not None:
            key, block = found
            content = self._stored.copy(block.block_id)
            share = BUSY_SHARE if self._is_busy() else 1.0
            self._writer.do(partial(self._write, key, content, block.position, share))

    def _write(self, key: bytes, content: NDArray[np.uint8], position: int, share: float) -> None:
        """Writes a block, in the writer's thread, and asks for the next when one may be written."""
        trouble, pause = "", _RETRY_AFTER
        surprise = None
        try:
            num_bytes = self._stored.write(key, content, position)
            self._stats.num_bytes_written += num_bytes
            pause = self._stored.directory.budget.spend(num_bytes, share)
        except (NoRoom, OSError) as error:
            trouble = str(error)
        except Exception as error:  # such as a want of memory: it may go well some day
            trouble, surprise = description_of(error), error
        if trouble and not self._trouble:
            logger.warning(
                "prefix cache: nothing is written for now: %s", trouble, exc_info=surprise
            )
        self._trouble = trouble
        self._writer.pause(pause)
        self._call(self._hand_over)
