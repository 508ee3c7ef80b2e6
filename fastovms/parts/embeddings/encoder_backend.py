"""A backend that runs embedding models and rerankers on a thread."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastovms.backend_stats import (
    BATCH_BUCKETS,
    BackendStats,
    EncoderCounters,
    Histogram,
)
from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.backends.job_thread import Job, JobThread
from fastovms.backends.model_task import find_task, graph_file
from fastovms.config import EncoderConfig, EngineConfig
from fastovms.errors import ConfigurationError, EngineFailed, Overloaded
from fastovms.fair_queue import Shares
from fastovms.params import ModelInfo, Task
from fastovms.parts.embeddings.encoder import EncodedTexts, EncoderInfo, EncoderText
from fastovms.parts.embeddings.encoder_model import EncoderModel, num_rows, read_encoder
from fastovms.parts.embeddings.pair_form import answer_ids
from fastovms.parts.embeddings.pooling import Pooling, find_pooling
from fastovms.text.text_encoder import TextEncoder

logger = logging.getLogger(__name__)


_NEWEST_SHARE: Final = 0.3
"""The weight of the newest measurement in the moving average."""


class SliceCosts:
    """The measured seconds per token of each segment of a model. A segment that has not run yet has
    no cost."""

    def __init__(self, num_segments: int) -> None:
        self._per_token = [0.0] * num_segments

    def note(self, segment: int, num_tokens: int, seconds: float) -> None:
        """Records the seconds of a segment's run. `num_tokens` includes padding."""
        new = seconds / num_tokens
        known = self._per_token[segment] or new
        self._per_token[segment] = known + _NEWEST_SHARE * (new - known)

    def end(self, begin: int, num_tokens: int, seconds: float) -> int:
        """Returns the end of a slice of segments that begins at `begin` and takes about `seconds`.
        A slice has at least one segment; a last segment of which half fits is included."""
        end, left = begin + 1, seconds - self._per_token[begin] * num_tokens
        while end < len(self._per_token):
            cost = self._per_token[end] * num_tokens
            if not cost or cost > 2 * left:
                break
            left -= cost
            end += 1
        return end

    def max_tokens(self, seconds: float, limit: int) -> int:
        """Returns the largest number of tokens of a batch, up to `limit`, with which each segment
        takes at most `seconds`."""
        most = max(self._per_token)
        return limit if not most else max(1, min(limit, int(seconds / most)))


Queued = TypeVar("Queued")

_MIN_FILL: Final = 0.85
"""The minimum length of a batch's texts, as a fraction of the longest text, so that there is little
padding. Texts of a few tokens share a batch anyway."""

_FEW: Final = 8
"""The difference in tokens to the longest text that is always allowed."""


class QueuedText(NamedTuple, Generic[Queued]):
    """A text of a batch: its job, its index in the job, and its length in tokens."""

    job: Queued
    position: int
    length: int


class _Waiting:
    """The texts of one job that are not in a batch yet, shortest first."""

    __slots__ = ("indices", "lengths")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.indices = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.lengths = [lengths[index] for index in self.indices]


class TextQueue(Generic[Queued]):
    """The texts of all jobs. Not thread-safe.

    A batch begins with the longest text of the oldest job of the client that was served least
    recently. Slightly shorter texts are added, first those of the same client. Texts of a higher
    priority are batched first, and never together with others.
    """

    def __init__(self) -> None:
        # By priority and client; of one priority, the client to be served next comes first.
        self._jobs: dict[tuple[int, str], dict[Queued, _Waiting]] = {}
        self.num_texts = 0

    def add(self, client: str, job: Queued, lengths: Sequence[int], priority: int = 0) -> None:
        """Queues the texts of a job, at least one; `lengths` are their tokens. Lower priority
        values are served first."""
        self._jobs.setdefault((priority, client), {})[job] = _Waiting(lengths)
        self.num_texts += len(lengths)

    def discard(self, client: str, job: Queued, priority: int = 0) -> None:
        """Removes the texts of a job that are not in a batch yet."""
        waiting = self._jobs.get((priority, client), {}).pop(job, None)
        if waiting is not None:
            self.num_texts -= len(waiting.lengths)
            self._drop_if_empty((priority, client))

    def next_batch(self, max_tokens: int) -> list[QueuedText[Queued]]:
        """Removes and returns the next batch of texts; an empty list if no text waits. `max_tokens`
        limits the tokens of the batch, padding included; a single text may exceed it."""
        if not self._jobs:
            return []
        first = min(self._jobs, key=itemgetter(0))  # of equal priorities, the first
        self._jobs[first] = self._jobs.pop(first)
        own = next(iter(self._jobs[first].values()))
        longest = own.lengths[-1]
        shortest = min(int(longest * _MIN_FILL), longest - _FEW)
        room = num_rows(longest, max_tokens)
        batch: list[QueuedText[Queued]] = []
        others = [key for key in self._jobs if key[0] == first[0] and key != first]
        for key in (first, *others):
            for job, waiting in list(self._jobs[key].items()):
                end = bisect_right(waiting.lengths, longest)
                while end and len(batch) < room and waiting.lengths[end - 1] >= shortest:
                    end -= 1
                    index, length = waiting.indices.pop(end), waiting.lengths.pop(end)
                    batch.append(QueuedText(job, index, length))
                if not waiting.lengths:
                    del self._jobs[key][job]
            self._drop_if_empty(key)
            if len(batch) == room:
                break
        self.num_texts -= len(batch)
        return batch

    def _drop_if_empty(self, key: tuple[int, str]) -> None:
        if not self._jobs[key]:
            del self._jobs[key]

    def check(self) -> None:
        """Asserts that the queue is consistent."""
        waiting = [each for jobs in self._jobs.values() for each in jobs.values()]
        assert all(jobs for jobs in self._jobs.values())
        assert all(each.lengths == sorted(each.lengths) != [] for each in waiting)
        assert sum(len(each.lengths) for each in waiting) == self.num_texts


_MAX_WAITING_TOKENS: Final = 2**24
"""The maximum number of waiting tokens of one client: 128 MiB of ids. All other clients together
have as many in addition."""


class TextsJob(Job[EncodedTexts]):
    """The texts of one request.

    Attributes:
        rows: the results, f32 [texts, width].
        num_left: the number of texts that are not computed yet.
        started_at: the time at which the first text's computation began; infinite before.
    """

    def __init__(
        self,
        texts: Sequence[EncoderText],
        client: str,
        priority: int,
        width: int,
        queued_at: float,
    ) -> None:
        super().__init__(client, queued_at)
        self.texts = texts
        self.priority = priority
        self.rows: NDArray[np.float32] = np.empty((len(texts), width), np.float32)
        self.num_left = len(texts)
        self.num_tokens = sum(text.num_tokens for text in texts)
        self.started_at = math.inf

    def start(self, now: float) -> None:
        """Records that the computation of the first texts begins now."""
        self.started_at = min(self.started_at, now)

    def outcome(self, now: float) -> EncodedTexts | EngineFailed:
        """Returns the result, or EngineFailed if it has numbers that are not finite."""
        if not np.isfinite(self.rows).all():
            return EngineFailed("the model gave values that are not numbers (NaN or infinite)")
        return EncodedTexts(self.rows, self.started_at - self.queued_at, now - self.started_at)


class TextsBackend(JobThread[TextsJob]):
    """The base class of backends that encode texts; limits the number of waiting tokens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._waiting_tokens = Shares.of_places(_MAX_WAITING_TOKENS)
        super().__init__(*arguments, **options)

    @property
    @abstractmethod
    def encoder(self) -> EncoderInfo:
        """The properties of the encoder."""

    async def encode(
        self, texts: Sequence[EncoderText], client: str, priority: int = 0
    ) -> EncodedTexts:
        """Encodes at least one text. If the caller is cancelled, texts not yet computed are
        dropped.

        Args:
            texts: texts that fit into the model's context, with ids of its vocabulary.
            client: the sender; clients take turns.
            priority: lower values are served first, across all clients. Ignored by models with
                image support.

        Raises:
            Overloaded: too many requests or tokens wait already.
            BackendUnavailable: the backend is not started, or closed.
            EngineFailed: the encoder has failed.
        """
        with self._place(client):
            job = TextsJob(texts, client, priority, self.encoder.width, self._clock())
            waiting, num_tokens = self._waiting_tokens, job.num_tokens
            if waiting.used and not waiting.may_take(client, num_tokens):
                raise Overloaded(f"{waiting.used} tokens are waiting, which is the limit")
            waiting.hold(client, num_tokens)
            try:
                encoded: EncodedTexts = await self._result_of(job)
            finally:
                waiting.give_back(client, num_tokens)
            return encoded

    def _num_left(self) -> int:
        return sum(job.num_left for job in self._jobs)


class ThreadedEncoder(TextsBackend):
    """Computes embeddings or scores of texts with an `EncoderModel`.

    The thread batches waiting texts, and runs the model's segments in slices, between which the
    generation engines run their steps. Texts of a cancelled request are dropped at the next slice.
    """

    name = "encoder"

    def __init__(
        self,
        model: EncoderModel,
        info: ModelInfo,
        *,
        max_batch_tokens: int,
        max_num_queued: int,
        turn: ComputeTurn | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(
            info, turn or ComputeTurn(ActiveEngines()), max_num_queued=max_num_queued, clock=clock
        )
        self._encoder = model
        self._max_batch_tokens = max_batch_tokens
        self._costs = SliceCosts(model.num_segments)
        self._texts: TextQueue[TextsJob] = TextQueue()
        self._batch_sizes = Histogram(BATCH_BUCKETS)
        self._encoder_counters = EncoderCounters(batch_sizes=self._batch_sizes)

    # Backend

    @property
    def encoder(self) -> EncoderInfo:
        return self._encoder.info

    def start(self) -> None:
        super().start()
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def stats(self) -> BackendStats:
        return replace(super().stats(), encoder=replace(self._encoder_counters))

    # Encoder's thread

    def _run(self) -> None:
        try:
            while self._receive():
                self._compute(self._texts.next_batch(self._max_tokens()))
        except BaseException as error:
            logger.exception("encoder: the engine failed")
            self._link.call(self.fail, f"{type(error).__name__}: {error}")
        finally:
            self._turn.remove_encoder()
            self._link.call(self._link.stopped.set)

    def _receive(self) -> bool:
        """Receives new jobs, and waits while no texts are queued. Returns False when the backend is
        closed."""
        while not self._commands.empty() or not self._texts.num_texts:
            job = self._commands.get()
            if job is None:
                return False
            if job.is_given_up:
                self._texts.discard(job.client, job, job.priority)
            else:
                lengths = [len(text.token_ids) for text in job.texts]
                self._texts.add(job.client, job, lengths, job.priority)
        return True

    def _max_tokens(self) -> int:
        seconds = self._turn.slice_seconds
        if seconds is None:
            return self._max_batch_tokens
        return self._costs.max_tokens(seconds, self._max_batch_tokens)

    def _compute(self, texts: Sequence[QueuedText[TextsJob]]) -> None:
        texts = [text for text in texts if not text.job.is_given_up]
        jobs = {text.job for text in texts}
        if not texts:
            return
        self._num_running = len(texts)
        now = self._clock()
        for job in jobs:
            job.start(now)
        batch = self._encoder.batch([job.texts[index] for job, index, _ in texts])
        segment = 0
        while segment < self._encoder.num_segments:
            with self._turn.slice():
                seconds = self._turn.slice_seconds
                end = segment + 1
                if seconds is not None:
                    end = self._costs.end(segment, batch.num_tokens, seconds)
                start = self._clock()
                while segment < end:
                    began = self._clock()
                    self._encoder.compute(batch, segment)
                    self._costs.note(segment, batch.num_tokens, self._clock() - began)
                    segment += 1
            self._note_step(self._clock() - start)
            if all(job.is_given_up for job in jobs):
                break
        else:
            counters = self._encoder_counters
            counters.num_texts += len(texts)
            counters.num_padding_tokens += batch.num_tokens - sum(text.length for text in texts)
            self._batch_sizes.observe(len(texts))
            self._hand_over(texts, batch.rows)
        self._num_running = 0

    def _hand_over(self, texts: Sequence[QueuedText[TextsJob]], rows: NDArray[np.float32]) -> None:
        for row, (job, index, length) in zip(rows, texts, strict=True):
            job.rows[index] = row
            job.num_left -= 1
            self._counters.num_prompt_tokens += length
            if not job.num_left:
                self._link.call(job.settle, job.outcome(self._clock()))


class LoadedEncoder(NamedTuple):
    """An encoder with its tokenizer."""

    backend: ThreadedEncoder
    texts: TextEncoder


def load_encoder(
    model_dir: Path,
    info: ModelInfo,
    engine: EngineConfig,
    config: EncoderConfig,
    turn: ComputeTurn,
) -> LoadedEncoder:
    """Loads an encoder and its tokenizer. Takes seconds, so call it in a thread. Raises
    ConfigurationError if a file is missing or broken, or the device cannot run the model."""
    start = time.perf_counter()
    texts = TextEncoder.load(model_dir)
    task = find_task(model_dir, config.task)
    pooling = find_pooling(model_dir, config.pooling, info.config)
    vocabulary = partial(_vocabulary, texts, model_dir)
    graph = read_encoder(graph_file(model_dir), task, pooling, vocabulary)
    pad = info.config.get("pad_token_id")
    model = EncoderModel(
        graph,
        device=engine.device,
        properties=engine.plugin_config,
        pad_token_id=pad if isinstance(pad, int) else texts.pad_token_id,
        max_length=info.max_model_len,
    )
    model.warm_up()
    what = "reranker" if task is Task.RERANK else f"vectors of {graph.info.width}, {_of(pooling)}"
    logger.info(
        "loaded %s (%s) in %d segments, in %.1f s",
        info.name,
        what,
        model.num_segments,
        time.perf_counter() - start,
    )
    backend = ThreadedEncoder(
        model,
        info,
        max_batch_tokens=config.max_batch_tokens,
        max_num_queued=engine.max_num_queued_requests,
        turn=turn,
    )
    return LoadedEncoder(backend, texts)


def _vocabulary(texts: TextEncoder, model_dir: Path) -> Mapping[bytes, int]:
    """Returns the ids of the tokens of a decoder-based reranker by their text."""
    if ids := answer_ids(model_dir):
        return ids
    if not texts.has_detokenizer:
        raise ConfigurationError(
            f"{model_dir} cannot be served as a reranker: openvino_detokenizer.xml is "
            "missing, and this model scores by the tokens that it generates. Export it "
            "again with a detokenizer"
        )
    return texts.vocabulary()


def _of(pooling: Pooling | None) -> str:
    return "pooled by its graph" if pooling is None else f"pooling {pooling.value}"
