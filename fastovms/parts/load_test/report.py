"""The report of a load test."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client.http_client import DONE, read_event
from fastovms.parts.load_test.config import LoadConfig


@dataclass(slots=True)
class Timeline:
    """The arrival times of one stream's output, in seconds of one clock.

    Attributes:
        started: the time at which the request was sent, over an open connection.
        arrivals: the times of events with output. Events read together have the same time.
        prompt_tokens, completion_tokens: as counted by the server; None = not reported.
        failure: the reason why the answer is incomplete.
        ended: the time at which the request ended or failed; None = unknown.
    """

    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    failure: RequestFailed | None = None
    ended: float | None = None

    @property
    def last(self) -> float:
        """The time of the request's end; if unknown, of the last output or of the start."""
        if self.ended is not None:
            return self.ended
        return self.arrivals[-1] if self.arrivals else self.started

    @property
    def time_to_first_token(self) -> float:
        """Seconds from the start to the first output."""
        return self.arrivals[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive outputs."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def latency(self) -> float:
        """Seconds from the start to the last output."""
        return self.arrivals[-1] - self.started

    @property
    def num_tokens(self) -> int:
        """The number of output tokens, or of events if the server does not report tokens."""
        tokens = self.completion_tokens
        return len(self.arrivals) if tokens is None else tokens

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds per token after the first; None = at most one token."""
        later_tokens = self.num_tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / later_tokens if later_tokens > 0 else None

    def record(self, data: bytes, now: float) -> None:
        """Records an event whose `data` were read at `now`. Raises RequestFailed if the event is an
        error."""
        if data == DONE:
            return
        event = read_event(data)
        for choice in event.choices:
            if choice.brings_output:
                self.arrivals.append(now)
                break
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt_tokens
            self.completion_tokens = event.usage.completion_tokens


class Load(NamedTuple):
    """The results of requests that ran together.

    Attributes:
        seconds: from the start of the first request to the end of the last one. Failed requests
            count, so that hanging requests do not make a server look faster.
    """

    seconds: float
    timelines: list[Timeline]

    @classmethod
    def of(cls, timelines: list[Timeline]) -> Load:
        """Returns a `Load` of the timelines of requests."""
        first = min((timeline.started for timeline in timelines), default=0.0)
        last = max((timeline.last for timeline in timelines), default=first)
        return cls(last - first, timelines)

    @property
    def num_tokens(self) -> int:
        """The number of output tokens of all requests."""
        return sum(timeline.num_tokens for timeline in self.timelines)

    @property
    def num_events(self) -> int:
        """The number of output events of all requests."""
        return sum(len(timeline.arrivals) for timeline in self.timelines)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, of all requests together."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


MILLISECONDS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a latency over all requests, in milliseconds. `percentiles` maps a
    percentile to its value."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> Distribution | None:
        """Returns the distribution of `seconds`; None = there are no values."""
        if not len(seconds):
            return None
        values = np.asarray(seconds) * MILLISECONDS
        return cls(
            float(values.mean()),
            float(np.median(values)),
            float(values.std()),
            {p: float(np.percentile(values, p)) for p in percentiles},
        )


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The results of one round. Times are in seconds, rates per second.

    Attributes:
        errors: the number of failed requests by kind; `reasons` has one message of each kind.
        total_input_tokens: None = not reported by the server.
        counts_events: whether a server sends no `usage`, so that each of its events counts as one
            token.
        request_goodput: the rate of requests within all limits; None = no limits.
        latencies: the distributions by their names in `LATENCIES`; those without data are absent.
    """

    completed: int
    errors: Mapping[str, int]
    reasons: Mapping[str, str]
    duration: float
    total_input_tokens: int | None
    total_output_tokens: int
    counts_events: bool
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: Mapping[str, Distribution]

    @property
    def failed(self) -> int:
        """The number of failed requests."""
        return sum(self.errors.values())

    @property
    def total_token_throughput(self) -> float | None:
        """Tokens of prompts and outputs per second; None = the prompts' tokens are unknown."""
        if self.total_input_tokens is None:
            return None
        total = self.total_input_tokens + self.total_output_tokens
        return _rate(total, self.duration)


def summarize(
    load: Load,
    *,
    percentiles: Sequence[float] = (),
    latencies: Sequence[str] = (),
    goodput: Mapping[str, float] | None = None,
) -> LoadSummary:
    """Returns the summary of a load. Latencies and tokens are those of successful requests.
    `goodput` has the limits of requests in milliseconds, by latency."""
    done = [timeline for timeline in load.timelines if timeline.failure is None]
    failures = [timeline.failure for timeline in load.timelines if timeline.failure is not None]
    inputs = [timeline.prompt_tokens for timeline in done]
    outputs = sum(timeline.num_tokens for timeline in done)
    distributions = {
        name: Distribution.of(values_of(name, done), percentiles) for name in latencies
    }
    return LoadSummary(
        completed=len(done),
        errors=dict(Counter(failure.kind for failure in failures).most_common()),
        reasons={failure.kind: failure.reason for failure in reversed(failures)},
        duration=load.seconds,
        total_input_tokens=sum(n for n in inputs if n is not None) if None not in inputs else None,
        total_output_tokens=outputs,
        counts_events=any(timeline.completion_tokens is None for timeline in done),
        request_throughput=_rate(len(done), load.seconds),
        request_goodput=(
            _rate(sum(_is_good(timeline, goodput) for timeline in done), load.seconds)
            if goodput
            else None
        ),
        output_throughput=_rate(outputs, load.seconds),
        max_output_tokens_per_s=max(tokens_by_second(done), default=0.0),
        max_concurrent_requests=_most_at_once(done),
        latencies={name: found for name, found in distributions.items() if found is not None},
    )


_LATENCY_OF: Final[Mapping[str, Callable[[Timeline], Sequence[float]]]] = {
    "ttft": lambda timeline: [timeline.time_to_first_token],
    "tpot": lambda timeline: (
        [] if (seconds := timeline.time_per_output_token) is None else [seconds]
    ),
    "itl": lambda timeline: timeline.gaps,
    "e2el": lambda timeline: [timeline.latency],
}


def values_of(name: str, timelines: Sequence[Timeline]) -> list[float]:
    """Returns all values of a latency, in seconds."""
    return [value for timeline in timelines for value in _LATENCY_OF[name](timeline)]


def tokens_by_second(timelines: Sequence[Timeline]) -> list[float]:
    """Returns the output tokens in each second since the start of the first request. The tokens of
    a request are spread evenly over its events, because the server reports only their total."""
    if not timelines:
        return []
    start = min(timeline.started for timeline in timelines)
    seconds = np.concatenate([np.asarray(timeline.arrivals) - start for timeline in timelines])
    weights = np.concatenate(
        [np.full(len(t.arrivals), t.num_tokens / len(t.arrivals)) for t in timelines]
    )
    return [float(tokens) for tokens in np.bincount(seconds.astype(int), weights)]


def _most_at_once(timelines: Sequence[Timeline]) -> int:
    """Returns the maximum number of requests that ran at the same time."""
    changes = sorted(
        [(timeline.started, 1) for timeline in timelines]
        + [(timeline.arrivals[-1], -1) for timeline in timelines]
    )
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def _is_good(timeline: Timeline, limits: Mapping[str, float]) -> bool:
    return all(
        value * MILLISECONDS <= limit
        for name, limit in limits.items()
        for value in _LATENCY_OF[name](timeline)
    )


def _rate(number: float, seconds: float) -> float:
    return number / seconds if seconds else 0.0


_WIDTH: Final = 50
_TITLES: Final[Mapping[str, str]] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def render(summary: LoadSummary, config: LoadConfig) -> str:
    """Returns the report of one round as text."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [
        _line("Successful requests:", summary.completed),
        _line("Failed requests:", summary.failed),
    ]
    for kind, number in summary.errors.items():
        reason = summary.reasons[kind]
        lines.append(f"{f'  {kind}:':<40} {number}{f' ({reason})' if reason else ''}")
    if config.max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", config.max_concurrency))
    if config.request_rate != float("inf"):
        lines.append(_line("Request rate configured (RPS):", config.request_rate))
    lines += [
        _line("Benchmark duration (s):", summary.duration),
        _line("Total input tokens:", summary.total_input_tokens),
        _line("Total generated tokens:", summary.total_output_tokens),
        _line("Request throughput (req/s):", summary.request_throughput),
    ]
    if summary.request_goodput is not None:
        lines.append(_line("Request goodput (req/s):", summary.request_goodput))
    lines += [
        _line("Output token throughput (tok/s):", summary.output_throughput),
        _line("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s),
        _line("Peak concurrent requests:", summary.max_concurrent_requests),
        _line("Total token throughput (tok/s):", summary.total_token_throughput),
    ]
    for name, found in summary.latencies.items():
        short = name.upper()
        lines += [
            f"{_TITLES[name]:-^{_WIDTH}}",
            _line(f"Mean {short} (ms):", found.mean),
            _line(f"Median {short} (ms):", found.median),
            *(_line(f"P{p:g} {short} (ms):", value) for p, value in found.percentiles.items()),
        ]
    lines.append("=" * _WIDTH)
    if summary.counts_events:
        lines.append(
            "The server sends no usage: each event counts as one token of output, and the tokens "
            "of prompts are not known."
        )
    return "\n".join(lines)


def _line(name: str, value: float | None) -> str:
    if value is None:
        return f"{name:<40} -"
    return f"{name:<40} {value:.2f}" if isinstance(value, float) else f"{name:<40} {value}"


def values(summary: LoadSummary, config: LoadConfig) -> dict[str, object]:
    """Returns the members of one round's JSON result, with vLLM's names."""
    found: dict[str, object] = {
        "backend": config.backend,
        "model_id": config.model,
        "num_prompts": config.num_prompts,
        "request_rate": "inf" if config.request_rate == float("inf") else config.request_rate,
        "burstiness": config.burstiness,
        "max_concurrency": config.max_concurrency,
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "errors_by_kind": dict(summary.errors),
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "output_tokens_are_events": summary.counts_events,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
    }
    for name, latency in summary.latencies.items():
        found[f"mean_{name}_ms"] = latency.mean
        found[f"median_{name}_ms"] = latency.median
        found[f"std_{name}_ms"] = latency.std
        for p, value in latency.percentiles.items():
            found[f"p{p:g}_{name}_ms"] = value
    return found


def details(load: Load) -> dict[str, object]:
    """Returns the members that `--save-detailed` adds: lists with a value for each request; times
    are in seconds."""
    timelines = load.timelines
    return {
        "input_lens": [timeline.prompt_tokens for timeline in timelines],
        "output_lens": [timeline.num_tokens for timeline in timelines],
        "start_times": [timeline.started for timeline in timelines],
        "ttfts": [t.time_to_first_token if t.arrivals else None for t in timelines],
        "itls": [timeline.gaps for timeline in timelines],
        "latencies": [t.latency if t.arrivals else None for t in timelines],
        "errors": [None if t.failure is None else str(t.failure) for t in timelines],
    }


_FIGURES: Final[Mapping[str, Callable[[LoadSummary], float | None]]] = {
    "request_throughput": lambda summary: summary.request_throughput,
    "output_throughput": lambda summary: summary.output_throughput,
    **{
        f"median_{name}_ms": lambda summary, name=name: (  # type: ignore[misc]
            summary.latencies[name].median if name in summary.latencies else None
        )
        for name in _TITLES
    },
}


def paired_ratios(
    ours: Sequence[LoadSummary], theirs: Sequence[LoadSummary]
) -> dict[str, dict[str, float]]:
    """Returns, for each figure such as "median_ttft_ms", the medians of both servers ("url",
    "compare"), and the median, minimum and maximum of the rounds' ratios ("ratio", "min", "max").
    Figures that are missing in a round or 0 are left out."""
    found = {}
    for name, figure in _FIGURES.items():
        pairs = [(figure(a), figure(b)) for a, b in zip(ours, theirs, strict=True)]
        whole = [(a, b) for a, b in pairs if a and b]
        if not pairs or len(whole) < len(pairs):
            continue
        ratios = [a / b for a, b in whole]
        found[name] = {
            "url": statistics.median(a for a, _ in whole),
            "compare": statistics.median(b for _, b in whole),
            "ratio": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        }
    return found


def render_ratios(ratios: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a text table of the results of `paired_ratios`, with one line per figure."""
    lines = [f"{'':<22}{'URL':>12}{'--compare':>12}   ratio (min to max)"]
    for name, row in ratios.items():
        lines.append(
            f"{name:<22}{row['url']:>12.2f}{row['compare']:>12.2f}   "
            f"{row['ratio']:.3f} ({row['min']:.3f} to {row['max']:.3f})"
        )
    return "\n".join(lines)


_LATENCIES: Final = {
    "ttft": "time to first token, ms",
    "itl": "inter-token latency, ms",
    "e2el": "end-to-end latency, ms",
}

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui }}
svg {{ width: 100%; height: auto }}
pre {{ overflow-x: auto }}
</style>
<h1>{title}</h1>
{svg}
<pre>{text}</pre>
</html>
"""


def html_page(title: str, text: str, svg: str) -> str:
    """Returns an HTML page with the plots and the text of a report."""
    return _PAGE.format(title=escape(title), text=escape(text), svg=svg[svg.index("<svg") :])


def check_plots() -> None:
    """Raises ConfigurationError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError("plots need matplotlib: pip install '.[plots]'") from None


def draw(rounds: Mapping[str, Sequence[Load]]) -> str:
    """Returns an SVG with one line per server: the distribution of each latency, and the output
    tokens of each second, round after round. Equal loads give an equal file. `rounds` has the loads
    by the name in the legend; a single server has no legend."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "load", "svg.fonttype": "none"}):
        figure, rows = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
        *distributions, throughput = rows.flat
        for name, loads in rounds.items():
            done = [[t for t in load.timelines if t.failure is None] for load in loads]
            for axes, latency in zip(distributions, _LATENCIES, strict=True):
                timelines = [timeline for part in done for timeline in part]
                values = sorted(each * MILLISECONDS for each in values_of(latency, timelines))
                shares = [100 * (i + 1) / len(values) for i in range(len(values))]
                axes.step(values, shares, label=name)
                axes.set_xlabel(_LATENCIES[latency])
                axes.set_ylabel("% within")
            tokens = [number for part in done for number in tokens_by_second(part)]
            throughput.stairs(tokens or [0.0], label=name)
        throughput.set_xlabel("seconds")
        throughput.set_ylabel("output tokens a second")
        for axes in rows.flat:
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        if len(rounds) > 1:
            distributions[0].legend()
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return written.getvalue()
