"""Reads the beginnings of prompts from disk into the prefix cache, while their requests wait and
others go on."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Final

from fastovms.backend_stats import StoredPrefixStats
from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.stored_prefixes.job_thread import JobThread
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks
from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy
from fastovms.params import GenerationRequest
from fastovms.prefix_cache.prefix_keys import PrefixNamespace

logger = logging.getLogger(__name__)

_FREE_SHARE: Final = 0.125
"""The share of all blocks that stays free for running sequences while blocks are being read."""


@dataclass(slots=True)
class _Restoration:
    """Blocks that are being read.

    Attributes:
        token_ids: of the whole text up to the last of them.
        block_table: those that memory had, which are held, and those that are read into.
        num_matched: how many memory had.
        node: the prefix cache's node of the last of these.
        waiting: the requests that wait for it, by their ids. Without any it is given up.
    """

    keys: list[bytes]
    token_ids: array[int]
    salt: bytes
    block_table: array[int]
    num_matched: int
    node: int
    waiting: dict[str, GenerationRequest] = field(default_factory=dict)


class PrefixRestorer:
    """Holds requests back whose prompts begin with blocks that are on disk. All of it but reading
    itself runs on the engine's thread.

    What has been read is in the prefix cache like anything else, and may be evicted from it: the
    requests find it there when they are admitted.
    """

    def __init__(
        self,
        stored: ModelBlocks,
        blocks: BlockManager,
        policy: ReadingPolicy,
        stats: StoredPrefixStats,
        *,
        call: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            call: has a function called on the engine's thread.
            call_later: the same after some seconds.
        """
        self._stored = stored
        self._blocks = blocks
        self._policy = policy
        self._stats = stats
        self._call = call
        self._call_later = call_later
        self._clock = clock
        self._running: dict[bytes, _Restoration] = {}
        self._ready: dict[str, GenerationRequest] = {}
        self._reader = JobThread("prefix-reader")

    @property
    def num_held(self) -> int:
        """How many samples wait, those included that `take_ready` would return."""
        waiting = (self._ready, *(one.waiting for one in self._running.values()))
        return sum(request.params.n for requests in waiting for request in requests.values())

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take_ready(self) -> list[GenerationRequest]:
        """Returns the requests that need not wait any more, each once."""
        ready = list(self._ready.values())
        self._ready.clear()
        return ready

    def hold(self, request: GenerationRequest) -> bool:
        """Begins to read what is on disk of a prompt. False: there is nothing worth it, and the
        request need not wait."""
        salt = (request.cache_salt or "").encode("utf-8", "surrogatepass")
        stored, size = self._stored, self._stored.block_size
        if not stored.directory.num_blocks or not stored.is_kept(salt):
            return False
        if request.params.prompt_logprobs is not None:  # a cached token has no logits
            return False
        token_ids = array("q", request.prompt_token_ids)
        root = stored.root(len(token_ids))
        match = self._blocks.match_prefix(token_ids, salt, root)
        num_matched, num_full = len(match.block_ids), (len(token_ids) - 1) // size
        if num_matched == num_full:
            return False
        namespace = PrefixNamespace(request.tenant, salt, root)
        missing = islice(stored.keys(token_ids, namespace), num_matched, num_full)
        keys = list(takewhile(stored.directory.__contains__, missing))
        if not keys:
            return False
        same = self._running.get(keys[0])
        if same is not None:
            same.waiting[request.request_id] = request
            return True
        self._blocks.share(match.block_ids)
        block_table = array("i", match.block_ids)
        num_read = self._num_worth_reading(len(keys))
        if num_read == 0:
            self._blocks.free(block_table)
            return False
        block_table.extend(self._blocks.allocate() for _ in range(num_read))
        restoration = _Restoration(
            keys[:num_read],
            token_ids[: len(block_table) * size],
            salt,
            block_table,
            num_matched,
            match.node,
            {request.request_id: request},
        )
        self._running[keys[0]] = restoration
        self._reader.do(partial(self._read, restoration))
        patience = self._policy.patience(num_read * size)
        self._call_later(patience, partial(self._release, restoration))
        return True

    def is_held(self, request_id: str) -> bool:
        return request_id in self._ready or any(
            request_id in one.waiting for one in self._running.values()
        )

    def discard(self, request_id: str) -> bool:
        """Forgets a request, and returns whether it was held."""
        was_held = self.is_held(request_id)
        for waiting in (self._ready, *(one.waiting for one in self._running.values())):
            waiting.pop(request_id, None)
        return was_held

    def close(self, timeout: float) -> None:
        """Ends reading."""
        if not self._reader.close(timeout):
            logger.warning("prefix cache: a block is still being read after %g s", timeout)

    def _num_worth_reading(self, num_stored: int) -> int:
        """Returns how many of so many blocks to read."""
        reserve = int(_FREE_SHARE * self._blocks.num_blocks)
        num_read = max(0, min(num_stored, self._blocks.num_free_blocks - reserve))
        num_tokens = num_read * self._stored.block_size
        num_bytes = num_read * self._stored.bytes_per_block
        return num_read if num_read and self._policy.pays(num_tokens, num_bytes) else 0

    def _read(self, restoration: _Restoration) -> None:
        """Reads blocks, in the reader's thread, until one cannot be had, or nobody waits."""
        start = self._clock()
        num_read = num_bytes = 0
        first = restoration.num_matched
        try:
            for key in restoration.keys:
                if not restoration.waiting or self._reader.is_closing:
                    break
                position = first + num_read
                size = self._stored.read(key, restoration.block_table[position], position)
                if size == 0:
                    self._stats.num_damaged += 1
                    break
                num_bytes += size
                num_read += 1
        finally:
            seconds = self._clock() - start
            self._call(partial(self._settle, restoration, num_read, num_bytes, seconds))

    def _settle(
        self, restoration: _Restoration, num_read: int, num_bytes: int, seconds: float
    ) -> None:
        """Makes the blocks that were read findable, and lets the requests go on."""
        size = self._stored.block_size
        node, table = restoration.node, restoration.block_table
        first = restoration.num_matched
        for position in range(first, first + num_read):
            tokens = restoration.token_ids[position * size : (position + 1) * size]
            node = self._blocks.register(table[position], node, tokens, restoration.salt)
        self._blocks.free(table)
        del self._running[restoration.keys[0]]
        num_tokens = num_read * size
        self._policy.learn_read(num_bytes, seconds)
        self._stats.num_bytes_read += num_bytes
        self._stats.num_tokens_restored += num_tokens
        computing = self._policy.computing_seconds(num_tokens)
        if computing is not None:
            self._stats.seconds_saved += max(0.0, computing - seconds)
        for number, (request_id, request) in enumerate(restoration.waiting.items()):
            # Those who joined may have more of their own on disk.
            if number == 0 or not self.hold(request):
                self._ready[request_id] = request

    def _release(self, restoration: _Restoration) -> None:
        """Lets the requests go on though not all has been read: the disk is slower than computing.
        What is being read stays allocated until the reader comes back."""
        if restoration.waiting and self._running.get(restoration.keys[0]) is restoration:
            logger.warning("prefix cache: the disk is slow: prompts are computed again")
            self._ready |= restoration.waiting
            restoration.waiting.clear()
