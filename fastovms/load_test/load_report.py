"""Writes what a load test has found: as the text that `vllm bench serve` prints, or as the values
of its JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fastovms.load_test.load_config import LoadConfig
from fastovms.load_test.load_summary import LoadSummary
from fastovms.load_test.timeline import Load

_WIDTH: Final = 50
_TITLES: Final[Mapping[str, str]] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


# One round


def render(summary: LoadSummary, config: LoadConfig) -> str:
    """Returns the text of one round."""
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
    """Returns the members of the JSON of one round, by vLLM's names."""
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
    """Returns what `--save-detailed` adds: lists with a value for each request, times in
    seconds."""
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


# Two servers in turn

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
    """Returns medians of both servers by figure, and median, least and greatest of the ratios of
    rounds. Figures that a round lacks, or that are 0, are left out."""
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
    """Returns a table of what `paired_ratios` has found."""
    lines = [f"{'':<22}{'URL':>12}{'--compare':>12}   ratio (min to max)"]
    for name, row in ratios.items():
        lines.append(
            f"{name:<22}{row['url']:>12.2f}{row['compare']:>12.2f}   "
            f"{row['ratio']:.3f} ({row['min']:.3f} to {row['max']:.3f})"
        )
    return "\n".join(lines)
