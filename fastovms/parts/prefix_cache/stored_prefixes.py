"""Transfers blocks of prompts between the KV cache and the disk."""

from __future__ import annotations

import logging
import queue
import statistics
import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.backend_stats import StoredPrefixStats
from fastovms.engine.blocks import LONG_ROOT, ROOT, BlockManager, PrefixMatch
from fastovms.engine.model.model import Model
from fastovms.engine.sequence import Sequence
from fastovms.errors import description_of
from fastovms.params import ADAPTER_DIGEST_SIZE, ADAPTER_MARK, GenerationRequest
from fastovms.parts.prefix_cache.directory import (
    BlockDirectory,
    FolderTotals,
    NoRoom,
    PrefixNamespace,
    prefix_keys,
)

logger = logging.getLogger(__name__)


class JobThread:
    """A thread for disk jobs. It does not keep the process alive if a job hangs, for example on a
    broken disk."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether the thread is closing, so that running jobs should end."""
        return self._closing.is_set()

    def do(self, job: Callable[[], None]) -> None:
        """Queues a job for the thread."""
        self._jobs.put(job)

    def pause(self, seconds: float) -> None:
        """Sleeps within a job for `seconds`, or until the thread is closed."""
        self._closing.wait(seconds)

    def close(self, timeout: float) -> bool:
        """Ends the thread after its current job. Returns whether it has ended within `timeout`
        seconds."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self.is_closing:
                return
            try:
                job()
            except Exception:
                logger.exception("prefix cache: the thread %s failed", self._thread.name)


@dataclass(frozen=True, slots=True)
class PrefixFiles:
    """The location of one model's cached blocks.

    Attributes:
        folder: the folder's name, readable for people.
        fingerprint: a hash of the model and of everything else that affects a block's content.
        keeps_salted: whether prompts with a `cache_salt` are cached, too.
    """

    directory: BlockDirectory
    folder: str
    fingerprint: bytes
    keeps_salted: bool = False


class ModelBlocks:
    """The blocks of one model in memory and in files."""

    def __init__(self, model: Model, files: PrefixFiles) -> None:
        self.directory = files.directory
        self.block_size = model.block_size
        self.bytes_per_block = model.bytes_per_block
        self._model = model
        self._files = files
        self._read_rows: list[NDArray[np.uint8]] = []

    @property
    def held(self) -> FolderTotals:
        """The number and bytes of this model's blocks in the directory."""
        return self.directory.held(self._files.folder)

    def root(self, num_tokens: int) -> int:
        """Returns the root of the prefix cache for a text of `num_tokens` tokens."""
        limit = self._model.rope_switch_len
        return ROOT if limit is None or num_tokens <= limit else LONG_ROOT

    def is_kept(self, salt: bytes) -> bool:
        """Returns whether prompts with this salt may be cached on disk. An adapter's salt without a
        `cache_salt` is allowed."""
        if salt.startswith(ADAPTER_MARK):
            salt = salt[len(ADAPTER_MARK) + ADAPTER_DIGEST_SIZE :]
        return not salt or self._files.keeps_salted

    def keys(self, token_ids: array[int], namespace: PrefixNamespace) -> Iterator[bytes]:
        """Yields the keys of all full blocks of a text."""
        return prefix_keys(self._files.fingerprint, namespace, token_ids, self.block_size)

    def copy(self, block_id: int) -> NDArray[np.uint8]:
        """Returns the content of a block, uint8 [bytes]."""
        return np.concatenate(self._model.block_rows(block_id))

    def read(self, key: bytes, position: int) -> int:
        """Reads a block from disk into a buffer, so that the KV cache is not blocked; see
        `BlockDirectory.read`. Must always be called on the same thread."""
        if not self._read_rows:
            self._read_rows = [np.empty_like(row) for row in self._model.block_rows(0)]
        return self.directory.read(key, self._read_rows, position)

    def put_read(self, block_id: int) -> None:
        """Copies the block in the buffer to a block of the KV cache."""
        for row, read in zip(self._model.block_rows(block_id), self._read_rows, strict=True):
            row[:] = read

    def write(self, key: bytes, content: NDArray[np.uint8], position: int) -> int:
        """Writes a block; see `BlockDirectory.write`."""
        return self.directory.write(self._files.folder, key, content, position)


MIN_LEARNED_TOKENS: Final = 64
"""Steps with fewer prompt tokens are not used to measure the cost of a prompt token."""

_MEMORY: Final = 9
"""The number of measured times that are kept. Their median is used, because a shared machine has
outliers."""

_OVERHEAD: Final = 0.002
"""Seconds that a request waits for the reader thread, however few bytes are read."""

_DISCOUNT: Final = 0.9
"""The factor on the measured reading time after each decision against reading, so that a disk that
was slow once is tried again."""

_UNKNOWN_PATIENCE: Final = 5.0
_MIN_PATIENCE: Final = 0.5


class ReadingPolicy:
    """Decides whether to read or to compute tokens, from measured times of both."""

    def __init__(self) -> None:
        self._token_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._byte_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._reading_discount = 1.0

    def learn_computed(self, num_tokens: int, seconds: float) -> None:
        """Records a step that computed `num_tokens` prompt tokens."""
        if num_tokens >= MIN_LEARNED_TOKENS:
            self._token_seconds.append(seconds / num_tokens)

    def learn_read(self, num_bytes: int, seconds: float) -> None:
        """Records a read for one request."""
        if num_bytes:
            self._byte_seconds.append(seconds / num_bytes)
            self._reading_discount = 1.0

    def computing_seconds(self, num_tokens: int) -> float | None:
        """Returns the estimated seconds for computing `num_tokens` tokens; None = unknown."""
        if not self._token_seconds:
            return None
        return num_tokens * statistics.median(self._token_seconds)

    def is_worth_reading(self, num_tokens: int, num_bytes: int) -> bool:
        """Returns whether to read the tokens instead of computing them. Without measurements,
        reading is tried."""
        computing = self.computing_seconds(num_tokens)
        if computing is None or not self._byte_seconds:
            return True
        reading = (
            _OVERHEAD + num_bytes * statistics.median(self._byte_seconds) * self._reading_discount
        )
        if reading >= computing:
            self._reading_discount *= _DISCOUNT
            return False
        return True

    def patience(self, num_tokens: int) -> float:
        """Returns the seconds after which tokens are computed although they are still being
        read."""
        computing = self.computing_seconds(num_tokens)
        return _UNKNOWN_PATIENCE if computing is None else max(_MIN_PATIENCE, computing)


class Restoration:
    """The reading of consecutive blocks from disk, for requests that begin with the same text.

    The reader thread fills the blocks in order. The engine thread may end the restoration at any
    time and gets all blocks back immediately, even if the disk is slow. Blocks filled by then stay
    valid.

    Attributes:
        keys: the keys of the blocks to fill.
        num_matched: the number of preceding blocks found in memory, which are held too.
        waiting: the waiting requests by id.
        is_late: whether the restoration was ended because the disk was too slow.
    """

    def __init__(
        self,
        keys: list[bytes],
        *,
        token_ids: array[int],
        salt: bytes,
        block_table: array[int],
        node: int,
        tenant: str = "",
    ) -> None:
        """
        Args:
            token_ids: the tokens of the whole text up to the last block.
            block_table: the blocks found in memory, then one block per key.
            node: the prefix cache's node of the last block found in memory.
        """
        self.keys = keys
        self.num_matched = len(block_table) - len(keys)
        self.waiting: dict[str, GenerationRequest] = {}
        self.is_late = False
        self._token_ids = token_ids
        self._salt = salt
        self._tenant = tenant
        self._block_table = block_table
        self._node = node
        self._num_filled = 0
        self._has_ended = False
        self._guard = threading.Lock()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def fill_next(self, fill: Callable[[int], None]) -> bool:
        """Fills the next block on the reader thread. Returns False if the restoration has ended;
        its blocks may then be in use by others."""
        with self._guard:
            if self._has_ended:
                return False
            fill(self._block_table[self.num_matched + self._num_filled])
            self._num_filled += 1
            return True

    def end(self, blocks: BlockManager, *, keep: bool = True) -> int:
        """Releases all blocks; filled blocks enter the prefix cache if `keep` is true. Returns the
        number of filled blocks."""
        with self._guard:
            self._has_ended = True
        num_kept = self._num_filled if keep else 0
        node, size, salt = self._node, blocks.block_size, self._salt
        try:
            for position in range(self.num_matched, self.num_matched + num_kept):
                tokens = self._token_ids[position * size : (position + 1) * size]
                block_id = self._block_table[position]
                node = blocks.register(block_id, node, tokens, salt, self._tenant)
        finally:
            blocks.free(self._block_table)
        return num_kept


_FREE_SHARE: Final = 0.125
"""The fraction of all blocks that must stay free for running sequences when blocks are allocated
for reading."""

_MAX_AT_READER: Final = 2
"""The maximum number of restorations that hold blocks: the one being read, and a second with which
the reader continues while the engine is in a step. Further requests wait without blocks."""


class _Stored(NamedTuple):
    """The blocks of a prompt on disk that follow the blocks in memory. `keys` are the keys of the
    former."""

    token_ids: array[int]
    salt: bytes
    match: PrefixMatch
    keys: list[bytes]


class PrefixRestorer:
    """Holds requests back while the cached beginnings of their prompts are read from disk.
    Everything except reading runs on the engine's thread.

    Blocks that were read are in the prefix cache like all others and may be evicted; the requests
    find them there when they are admitted. A request waits at most as long as computing would take,
    and `reclaim` releases all blocks immediately, so a slow disk does no harm.
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
        """Args:
        call: calls a function on the engine's thread.
        call_later: calls a function on the engine's thread after some seconds.
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
        # Includes restorations that have ended, until the reader thread has processed them.
        self._at_reader: list[Restoration] = []
        self._ready: dict[str, GenerationRequest] = {}
        self._is_off = False
        self._reader = JobThread("prefix-reader")

    @property
    def num_held(self) -> int:
        """The number of waiting samples, including those that `take_ready` would return."""
        return sum(request.params.n for held in self._places() for request in held.values())

    @property
    def has_ready(self) -> bool:
        """Whether `take_ready` would return any requests."""
        return bool(self._ready)

    def take_ready(self) -> list[GenerationRequest]:
        """Returns the requests that no longer wait, each of them once."""
        ready = list(self._ready.values())
        self._ready.clear()
        return ready

    def start_reading(self, request: GenerationRequest) -> bool:
        """Starts to read the blocks of a prompt from disk. Returns False if no blocks are worth
        reading; the request then need not wait."""
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
        """Returns whether a request waits for the disk."""
        return any(request_id in held for held in self._places())

    def discard(self, request_id: str) -> None:
        """Drops a waiting request."""
        for held in self._places():
            held.pop(request_id, None)
        for restoration in list(self._running.values()):
            if not restoration.waiting:
                self._end(restoration)

    @property
    def holds_blocks(self) -> bool:
        """Whether restorations hold blocks."""
        return bool(self._running)

    def reclaim(self) -> None:
        """Releases all blocks and the requests that wait for them."""
        for restoration in list(self._running.values()):
            self._ready |= restoration.waiting
            self._end(restoration)

    def give_up(self) -> None:
        """Releases all requests, and holds no more requests back."""
        self._is_off = True
        for held in self._places():
            self._ready |= held
        self._queued.clear()
        while self._running:
            _, restoration = self._running.popitem()
            restoration.end(self._blocks, keep=False)

    def close(self, timeout: float) -> None:
        """Stops reading and joins the thread."""
        if not self._reader.close(timeout):
            logger.warning("prefix cache: a block is still being read after %g s", timeout)

    def _places(self) -> list[dict[str, GenerationRequest]]:
        return [self._ready, self._queued, *(one.waiting for one in self._running.values())]

    def _find(self, request: GenerationRequest) -> _Stored | None:
        """Returns the blocks of a prompt that are only on disk; None = no such blocks."""
        salt = request.prefix_salt
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
        """Returns how many of the stored blocks to read."""
        reserve = int(_FREE_SHARE * self._blocks.num_blocks)
        num_read = max(0, min(num_stored, self._blocks.num_free_blocks - reserve))
        num_tokens = num_read * self._stored.block_size
        num_bytes = num_read * self._stored.bytes_per_block
        return num_read if num_read and self._policy.is_worth_reading(num_tokens, num_bytes) else 0

    def _join(self, found: _Stored, request: GenerationRequest) -> bool:
        """Adds a request to a running restoration that reads the request's next block. Returns
        whether there is such a restoration."""
        same = self._running.get(found.keys[0])
        if same is None:
            return False
        same.waiting[request.request_id] = request
        return True

    def _begin_queued(self) -> None:
        """Starts queued restorations while the reader has capacity."""
        while self._queued and len(self._at_reader) < _MAX_AT_READER:
            request_id, request = next(iter(self._queued.items()))
            if not self._begin(request):
                self._ready[request_id] = request
            del self._queued[request_id]

    def _begin(self, request: GenerationRequest) -> bool:
        """Allocates the blocks for a restoration and starts it. Returns False if the request need
        not wait after all."""
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
        """Reads blocks on the reader thread until a block is unreadable or no request waits."""
        start = self._clock()
        num_bytes = 0
        try:
            for position, key in enumerate(restoration.keys, restoration.num_matched):
                if restoration.has_ended or self._reader.is_closing:
                    break
                size = self._stored.read(key, position)
                num_bytes += size
                if size == 0:
                    self._stats.num_corrupt += 1
                    break
                restoration.fill_next(self._stored.put_read)
        finally:
            seconds = self._clock() - start
            self._call(partial(self._settle, restoration, num_bytes, seconds))

    def _settle(self, restoration: Restoration, num_bytes: int, seconds: float) -> None:
        """Ends a restoration after reading, and records its costs. The first request is ready; the
        others are queued again, because more blocks of their prompts may be on disk."""
        self._at_reader.remove(restoration)
        self._policy.learn_read(num_bytes, seconds)
        self._stats.num_bytes_read += num_bytes
        if not restoration.has_ended:
            first, *others = restoration.waiting.items()
            self._ready |= [first]
            for request_id, request in reversed(others):
                self._queued[request_id] = request
                self._queued.move_to_end(request_id, last=False)
            computing = self._policy.computing_seconds(self._end(restoration))
            if computing is not None:
                self._stats.seconds_saved += max(0.0, computing - seconds)
        self._begin_queued()

    def _end(self, restoration: Restoration) -> int:
        """Adds the read blocks to the prefix cache, releases all blocks, and returns the number of
        tokens read."""
        num_tokens = restoration.end(self._blocks) * self._stored.block_size
        del self._running[restoration.keys[0]]
        restoration.waiting.clear()
        self._stats.num_tokens_restored += num_tokens
        return num_tokens

    def _release(self, request: GenerationRequest) -> None:
        """Releases a request that has waited as long as computing would have taken. Reading stops
        if no other request waits for these blocks."""
        request_id = request.request_id
        for held in (self._queued, *(one.waiting for one in self._running.values())):
            if held.get(request_id) is request:
                self._ready[request_id] = held.pop(request_id)
        for restoration in list(self._running.values()):
            if not restoration.waiting:
                logger.warning(
                    "prefix cache: the disk is too slow; prompts are computed instead of read"
                )
                restoration.is_late = True
                self._end(restoration)


MIN_PROMPT_TOKENS: Final = 256
"""The minimum length in tokens of a prompt that is written as a whole; of a shorter prompt, only
reused blocks are written."""

BUSY_SHARE: Final = 0.125
"""The fraction of the maximum write rate that is used while sequences run."""

FLUSH_SECONDS: Final = 5.0
"""The maximum seconds for which a server continues to write at shutdown."""

_STOP_SECONDS: Final = 1.0
"""Seconds to wait for the block that is being written when the engine has failed."""

_RETRY_AFTER: Final = 60.0
"""Seconds until the next attempt after a failed write."""


class _Wanted(NamedTuple):
    """A block to write.

    Attributes:
        text: the identity of the block's text; the block is only written while it still holds this
            text.
        position: the number of preceding blocks of the text.
        before: the key of the preceding block, without which this block would be useless on disk;
            None = this is the first block.
    """

    block_id: int
    text: object
    position: int
    before: bytes | None


class PrefixSaver:
    """Selects blocks that are worth writing, and passes copies of them to a writer thread one at a
    time. Everything except writing runs on the engine's thread."""

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
            call: calls a function on the engine's thread.
            is_busy: returns whether sequences run, which writing would slow down.
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
        """Whether the writer thread has a block or waits for one."""
        return self._is_writing

    def note(self, sequence: Sequence) -> None:
        """Queues the blocks of a newly computed prompt that are worth writing."""
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
        """Stops writing for good."""
        self._is_off = True
        self._is_writing = False
        self._at_writer = None
        self._wanted.clear()

    def close(self, *, flush: bool) -> None:
        """Ends the thread. The remaining blocks are written only if `flush` is true, within
        `FLUSH_SECONDS`."""
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
            logger.warning("prefix cache: some blocks were not written: %s", error)

    def _next(self) -> tuple[bytes, _Wanted] | None:
        """Removes and returns the next block that is still worth writing."""
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
        """Returns the writer's block to the front of the queue if it was not written."""
        if self._at_writer is not None:
            key, block = self._at_writer
            self._at_writer = None
            if key not in self._stored.directory:
                self._wanted[key] = block
                self._wanted.move_to_end(key, last=False)

    def _hand_over(self) -> None:
        """Passes a copy of the next block to the writer, because the block may be evicted before it
        is written."""
        self._take_back()
        self._at_writer = found = self._next()
        self._is_writing = found is not None
        if found is not None:
            key, block = found
            content = self._stored.copy(block.block_id)
            share = BUSY_SHARE if self._is_busy() else 1.0
            self._writer.do(partial(self._write, key, content, block.position, share))

    def _write(self, key: bytes, content: NDArray[np.uint8], position: int, share: float) -> None:
        """Writes a block on the writer thread, and requests the next one when the write budget
        allows."""
        trouble, pause = "", _RETRY_AFTER
        surprise = None
        try:
            num_bytes = self._stored.write(key, content, position)
            self._stats.num_bytes_written += num_bytes
            pause = self._stored.directory.budget.spend(num_bytes, share)
        except (NoRoom, OSError) as error:
            trouble = str(error)
        except Exception as error:  # a lack of memory, for example; the next write may succeed
            trouble, surprise = description_of(error), error
        if trouble and not self._trouble:
            logger.warning(
                "prefix cache: writing to disk is paused: %s", trouble, exc_info=surprise
            )
        self._trouble = trouble
        self._writer.pause(pause)
        self._call(self._hand_over)
