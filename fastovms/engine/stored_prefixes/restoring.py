"""Reads the beginnings of prompts from disk into the prefix cache, while their requests wait and
others go on."""

from __future__ import annotations

import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

from fastovms.backend_stats import StoredPrefixStats
from fastovms.engine.scheduling.blocks import BlockManager, PrefixMatch
from fastovms.engine.stored_prefixes.job_thread import JobThread
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks
from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy
from fastovms.engine.stored_prefixes.restoration import Restoration
from fastovms.params import GenerationRequest
from fastovms.prefix_cache.prefix_keys import PrefixNamespace

logger = logging.getLogger(__name__)

_FREE_SHARE: Final = 0.125
"""The share of all blocks that stays free for running sequences when blocks are taken to be read
into."""

_MAX_AT_READER: Final = 2
"""How many restorations have blocks: the one that is being read, and one with which the reader goes
on though the engine is in a step. What comes behind them waits without any."""


class _Stored(NamedTuple):
    """What is on disk of a prompt, behind what memory has of it.

    Attributes:
        match: what memory has.
        keys: of the blocks that only the disk has.
    """

    token_ids: array[int]
    salt: bytes
    match: PrefixMatch
    keys: list[bytes]


class PrefixRestorer:
    """Holds requests back whose prompts begin with blocks that are on disk. All of it but reading
    itself runs on the engine's thread.

    What has been read is in the prefix cache like anything else, and may be evicted from it: the
    requests find it there when they are admitted. None of them waits for longer than computing
    would take, and `reclaim` gives all blocks back at once, so that nothing depends on the disk.
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
        self._queued: OrderedDict[str, GenerationRequest] = OrderedDict()
        self._running: dict[bytes, Restoration] = {}
        self._at_reader: list[Restoration] = []  # which has not heard of the end of some
        self._ready: dict[str, GenerationRequest] = {}
        self._is_off = False
        self._reader = JobThread("prefix-reader")

    @property
    def num_held(self) -> int:
        """How many samples wait, those included that `take_ready` would return."""
        return sum(request.params.n for held in self._places() for request in held.values())

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take_ready(self) -> list[GenerationRequest]:
        """Returns the requests that need not wait any more, each once."""
        ready = list(self._ready.values())
        self._ready.clear()
        return ready

    def hold(self, request: GenerationRequest) -> bool:
        """Has what is on disk of a prompt read. False: there is nothing worth it, and the request
        need not wait."""
        if self._is_off or any(one.is_late for one in self._at_reader):
            return False
        found = self._find(request)
        if found is None:
            return False
        num_stored = len(found.keys)
        if not self._join(found, request):
            if not self._num_worth_reading(num_stored):
                return False
            self._queued[request.request_id] = request
        patience = self._policy.patience(num_stored * self._stored.block_size)
        self._call_later(patience, partial(self._release, request))
        self._begin_queued()
        return True

    def is_held(self, request_id: str) -> bool:
        return any(request_id in held for held in self._places())

    def discard(self, request_id: str) -> None:
        """Forgets a request."""
        for held in self._places():
            held.pop(request_id, None)
        for restoration in list(self._running.values()):
            if not restoration.waiting:
                self._end(restoration)

    @property
    def holds_blocks(self) -> bool:
        """Whether blocks are taken that no sequence has."""
        return bool(self._running)

    def reclaim(self) -> None:
        """Gives all blocks back, and lets the requests go for which they were read."""
        for restoration in list(self._running.values()):
            self._ready |= restoration.waiting
            self._end(restoration)

    def give_up(self) -> None:
        """Lets all requests go, and holds none from now on."""
        self._is_off = True
        for held in self._places():
            self._ready |= held
        self._queued.clear()
        while self._running:
            _, restoration = self._running.popitem()
            restoration.end(self._blocks, keep=False)

    def close(self, timeout: float) -> None:
        """Ends reading."""
        if not self._reader.close(timeout):
            logger.warning("prefix cache: a block is still being read after %g s", timeout)

    def _places(self) -> list[dict[str, GenerationRequest]]:
        """Returns all that may hold a request, by ids."""
        return [self._ready, self._queued, *(one.waiting for one in self._running.values())]

    def _find(self, request: GenerationRequest) -> _Stored | None:
        """Returns what is on disk of a prompt that memory has not; None = nothing."""
        salt = (request.cache_salt or "").encode("utf-8", "surrogatepass")
        stored, size = self._stored, self._stored.block_size
        if not stored.directory.num_blocks or not stored.is_kept(salt):
            return None
        if request.params.prompt_logprobs is not None:  # a cached token has no logits
            return None
        token_ids = array("q", request.prompt_token_ids)
        root = stored.root(len(token_ids))
        match = self._blocks.match_prefix(token_ids, salt, root)
        num_matched, num_full = len(match.block_ids), (len(token_ids) - 1) // size
        if num_matched == num_full:
            return None
        namespace = PrefixNamespace(request.tenant, salt, root)
        missing = islice(stored.keys(token_ids, namespace), num_matched, num_full)
        keys = list(takewhile(stored.directory.__contains__, missing))
        return _Stored(token_ids, salt, match, keys) if keys else None

    def _num_worth_reading(self, num_stored: int) -> int:
        """Returns how many of so many blocks to read."""
        reserve = int(_FREE_SHARE * self._blocks.num_blocks)
        num_read = max(0, min(num_stored, self._blocks.num_free_blocks - reserve))
        num_tokens = num_read * self._stored.block_size
        num_bytes = num_read * self._stored.bytes_per_block
        return num_read if num_read and self._policy.pays(num_tokens, num_bytes) else 0

    def _join(self, found: _Stored, request: GenerationRequest) -> bool:
        """Has a request wait for what is being read already, if that is its own next block."""
        same = self._running.get(found.keys[0])
        if same is None:
            return False
        same.waiting[request.request_id] = request
        return True

    def _begin_queued(self) -> None:
        """Gives the reader what it may have."""
        while self._queued and len(self._at_reader) < _MAX_AT_READER:
            request_id, request = next(iter(self._queued.items()))
            if not self._begin(request):
                self._ready[request_id] = request
            del self._queued[request_id]

    def _begin(self, request: GenerationRequest) -> bool:
        """Takes the blocks that are read into for a request. False: it need not wait, after all."""
        found = self._find(request)
        if found is None:
            return False
        if self._join(found, request):
            return True
        token_ids, salt, match, keys = found
        self._blocks.share(match.block_ids)
        block_table = array("i", match.block_ids)
        num_read = self._num_worth_reading(len(keys))
        if num_read == 0:
            self._blocks.free(block_table)
            return False
        block_table.extend(self._blocks.allocate() for _ in range(num_read))
        restoration = Restoration(
            keys[:num_read],
            token_ids=token_ids[: len(block_table) * self._stored.block_size],
            salt=salt,
            block_table=block_table,
            node=match.node,
            tenant=request.tenant,
        )
        restoration.waiting[request.request_id] = request
        self._running[keys[0]] = restoration
        self._at_reader.append(restoration)
        self._reader.do(partial(self._read, restoration))
        return True

    def _read(self, restoration: Restoration) -> None:
        """Reads blocks, in the reader's thread, until one cannot be had, or nobody waits."""
        start = self._clock()
        num_bytes = 0
        try:
            for position, key in enumerate(restoration.keys, restoration.num_matched):
                if restoration.has_ended or self._reader.is_closing:
                    break
                size = self._stored.read(key, position)
                num_bytes += size
                if size == 0:
                    self._stats.num_damaged += 1
                    break
                restoration.fill_next(self._stored.put_read)
        finally:
            seconds = self._clock() - start
            self._call(partial(self._settle, restoration, num_bytes, seconds))

    def _settle(self, restoration: Restoration, num_bytes: int, seconds: float) -> None:
        """Lets the requests go on for which all has been read."""
        self._at_reader.remove(restoration)
        self._policy.learn_read(num_bytes, seconds)
        self._stats.num_bytes_read += num_bytes
        if not restoration.has_ended:
            first, *others = restoration.waiting.items()
            self._ready |= [first]
            for request_id, request in reversed(others):  # they may have more of their own on disk
                self._queued[request_id] = request
                self._queued.move_to_end(request_id, last=False)
            computing = self._policy.computing_seconds(self._end(restoration))
            if computing is not None:
                self._stats.seconds_saved += max(0.0, computing - seconds)
        self._begin_queued()

    def _end(self, restoration: Restoration) -> int:
        """Makes what has been read findable, gives all blocks back, and returns how many tokens
        have been read."""
        num_tokens = restoration.end(self._blocks) * self._stored.block_size
        del self._running[restoration.keys[0]]
        restoration.waiting.clear()
        self._stats.num_tokens_restored += num_tokens
        return num_tokens

    def _release(self, request: GenerationRequest) -> None:
        """Lets a request go on that would have been computed by now. Reading ends when nobody else
        waits for it."""
        request_id = request.request_id
        for held in (self._queued, *(one.waiting for one in self._running.values())):
            if held.get(request_id) is request:
                self._ready[request_id] = held.pop(request_id)
        for restoration in list(self._running.values()):
            if not restoration.waiting:
                logger.warning("prefix cache: the disk is slow: prompts are computed again")
                restoration.is_late = True
                self._end(restoration)
