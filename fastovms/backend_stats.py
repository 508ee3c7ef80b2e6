"""Counters of a backend, and the Prometheus series that export them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)


class Series(NamedTuple):
    """The Prometheus series that exports a statistic; part of the field's `Annotated` type.

    Attributes:
        name: the name without the common prefix.
        text: the help text.
        buckets: a histogram's upper bounds.
    """

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str
    buckets: tuple[float, ...] = ()


Gauge: Final = partial(Series, "gauge")
Counter: Final = partial(Series, "counter")


@cache
def series_of(statistics: type) -> tuple[tuple[str, Series], ...]:
    """Returns the path of each exported field, such as "grammars.num_running", and its series.
    Nested statistics are flattened."""
    found: list[tuple[str, Series]] = []
    for name, hint in get_type_hints(statistics, include_extras=True).items():
        if get_origin(hint) is Annotated:
            found.append((name, get_args(hint)[1]))
        elif isinstance(hint, type):
            found += [(f"{name}.{path}", series) for path, series in series_of(hint)]
    return tuple(found)


class Histogram:
    """Counts values by bucket. `bounds` are the buckets' upper bounds, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Records `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self._counts)

    def add(self, other: Histogram) -> None:
        """Adds the observations of another histogram with the same bounds."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Returns cumulative (upper bound, count) pairs in Prometheus' form, and the sum of the
        values."""
        cumulative = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative, self._sum


STEP_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""The bounds of the buckets of `step_seconds`, in seconds."""

BATCH_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""The bounds of the buckets of `encoder_batch_size`, in texts."""


@dataclass(slots=True, kw_only=True)
class EngineCounters:
    """The counters of an engine since its start. Updated on the engine's thread; other threads get
    copies."""

    num_prefix_cache_queries: Annotated[
        int, Counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
    ] = 0
    num_prefix_cache_hits: Annotated[
        int, Counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
    ] = 0
    num_preemptions: Annotated[
        int,
        Counter(
            "num_preemptions", "Sequences put back for want of KV blocks, to compute them again"
        ),
    ] = 0
    num_prompt_tokens: Annotated[int, Counter("prompt_tokens", "Prompt tokens processed")] = 0
    num_generated_tokens: Annotated[int, Counter("generation_tokens", "Tokens generated")] = 0
    num_drafts: Annotated[int, Counter("spec_decode_num_drafts", "Drafts verified")] = 0
    num_draft_tokens: Annotated[int, Counter("spec_decode_num_draft_tokens", "Tokens drafted")] = 0
    num_accepted_tokens: Annotated[
        int, Counter("spec_decode_num_accepted_tokens", "Drafted tokens that were right")
    ] = 0
    num_steps: int = 0
    num_prefill_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class StoredPrefixStats:
    """Statistics of prompt blocks cached on disk. All are zero without a disk cache.

    Attributes:
        num_blocks, num_bytes: this model's blocks and bytes in the directory now.
        num_tokens_restored: prompt tokens read from disk.
        seconds_saved: the time saved by reading these tokens instead of computing them.
        num_bytes_written: bytes written by this model.
        num_corrupt: stored blocks that could not be read.
    """

    num_blocks: Annotated[
        int, Gauge("prefix_cache_disk_blocks", "Blocks in the prefix cache on disk")
    ] = 0
    num_bytes: Annotated[
        int, Gauge("prefix_cache_disk_bytes", "Bytes of the prefix cache on disk")
    ] = 0
    num_tokens_restored: Annotated[
        int, Counter("prefix_cache_disk_hits", "Prompt tokens read from the prefix cache on disk")
    ] = 0
    seconds_saved: Annotated[
        float,
        Counter(
            "prefix_cache_disk_saved_seconds",
            "Seconds of computing saved by prompts read from disk",
        ),
    ] = 0.0
    num_bytes_read: Annotated[
        int, Counter("prefix_cache_disk_read_bytes", "Bytes read from the prefix cache on disk")
    ] = 0
    num_bytes_written: Annotated[
        int,
        Counter("prefix_cache_disk_written_bytes", "Bytes written to the prefix cache on disk"),
    ] = 0
    num_corrupt: Annotated[
        int,
        Counter(
            "prefix_cache_disk_damaged", "Blocks of the prefix cache on disk that were corrupt"
        ),
    ] = 0


@dataclass(slots=True, kw_only=True)
class EncoderCounters:
    """The counters of an embedding model or a reranker. Updated on its thread; other threads get
    copies.

    Attributes:
        batch_sizes: the number of texts per batch; None before the first. Not a copy.
    """

    num_texts: Annotated[int, Counter("encoder_texts", "Texts and pairs of texts encoded")] = 0
    num_padding_tokens: Annotated[
        int, Counter("encoder_padding_tokens", "Padding tokens computed in batches of texts")
    ] = 0
    batch_sizes: Annotated[
        Histogram | None,
        Series("histogram", "encoder_batch_size", "Texts computed together", BATCH_BUCKETS),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarStats:
    """The counters of compiled grammars.

    Attributes:
        num_trials: trials begun so far. A slow grammar may need several.
        num_overloads: grammars refused because too many waited, or they waited too long.
    """

    num_running: Annotated[
        int, Gauge("num_grammars_running", "Grammars that a child process tries now")
    ] = 0
    num_waiting: Annotated[int, Gauge("num_grammars_waiting", "Grammars that wait to be tried")] = 0
    num_trials: Annotated[int, Counter("grammar_trials", "Grammars tried in a child process")] = 0
    num_deaths: Annotated[
        int, Counter("grammar_trial_deaths", "Trials of a grammar that ended the child process")
    ] = 0
    num_overloads: Annotated[
        int, Counter("grammar_overloads", "Grammars refused because too many wait to be tried")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStats:
    """A snapshot of a backend's statistics between two steps.

    Attributes:
        step_allowance: seconds after which the current step counts as hanging.
        decode_kernels: whether the decode kernels are in use, or the reason why not.
        num_held: the number of queued requests that wait for a disk read.
        block_size: tokens per block of the KV cache.
        num_blocks: the number of blocks of the cache; constant, like `block_size`.
        step_seconds: the durations of steps; None before the first. Not a copy.
    """

    num_running: Annotated[
        int, Gauge("num_requests_running", "Sequences (samples of requests) in the running batch")
    ] = 0
    num_waiting: Annotated[
        int, Gauge("num_requests_waiting", "Sequences (samples of requests) that wait to run")
    ] = 0
    num_held: Annotated[
        int,
        Gauge(
            "num_requests_waiting_for_disk",
            "Sequences that wait for a part of their prompt on disk",
        ),
    ] = 0
    longest_step_seconds: Annotated[
        float, Gauge("longest_step_seconds", "Longest step of the engine so far, in seconds")
    ] = 0.0
    packed_weights_bytes: Annotated[
        int, Gauge("packed_weights_bytes", "Bytes of weights packed for the decode kernels")
    ] = 0
    decode_kernel_max_tokens: Annotated[
        int,
        Gauge(
            "decode_kernel_max_tokens",
            "The most tokens of a step that the decode kernels compute, 0 = OpenVINO computes all",
        ),
    ] = 0
    kv_cache_bytes: Annotated[
        int, Gauge("kv_cache_bytes", "Largest number of KV cache bytes used since the start")
    ] = 0
    grammars: GrammarStats = field(default_factory=GrammarStats)
    stored_prefixes: StoredPrefixStats = field(default_factory=StoredPrefixStats)
    counters: EngineCounters = field(default_factory=EngineCounters)
    encoder: EncoderCounters = field(default_factory=EncoderCounters)
    step_seconds: Annotated[
        Histogram | None,
        Series("histogram", "step_seconds", "Duration of the engine's steps", STEP_BUCKETS),
    ] = None
    block_size: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    step_allowance: float = 0.0
    decode_kernels: str = "not used: the model runs on another engine"

    @property
    def kv_cache_usage(self) -> float:
        """The fraction of KV cache blocks in use, from 0 to 1."""
        used = self.num_blocks - self.num_free_blocks
        return used / self.num_blocks if self.num_blocks else 0.0


Statistics = TypeVar("Statistics", BackendStats, GrammarStats, EngineCounters, EncoderCounters)


def continued(before: Statistics, now: Statistics) -> Statistics:
    """Returns `now` with the counters of `before` added, so that counters continue when a model is
    loaded again."""
    statistics: type = type(now)
    series = dict(series_of(statistics))
    changes: dict[str, Any] = {}
    for field_ in fields(now):
        name = field_.name
        old, new = getattr(before, name), getattr(now, name)
        if is_dataclass(new):
            changes[name] = continued(old, new)
        elif name in series and series[name].kind == "counter":
            changes[name] = old + new
        elif name in series and series[name].kind == "histogram":
            both = Histogram(series[name].buckets)
            for histogram in (old, new):
                if histogram is not None:
                    both.add(histogram)
            changes[name] = both
    return replace(now, **changes)
