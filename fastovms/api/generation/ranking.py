"""Chooses the samples that the client gets, where more were made than it asked for."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.api.generation.deltas import SampleDelta
from fastovms.api.request.candidates import Candidates
from fastovms.text.tokens.tracking import TextToken


def best_samples(samples: Sequence[SampleDelta], candidates: Candidates) -> Sequence[SampleDelta]:
    """Returns the likeliest `n` of each prompt's samples, which are consecutive."""
    n, num_samples = candidates.n, candidates.num_samples
    if num_samples == n:
        return samples
    chosen: list[SampleDelta] = []
    for start in range(0, len(samples), num_samples):
        ranked = sorted(
            samples[start : start + num_samples],
            key=lambda sample: mean_logprob(sample.tokens),
            reverse=True,
        )
        chosen += ranked[:n]
    return chosen


def mean_logprob(tokens: Sequence[TextToken]) -> float:
    """Returns the mean log probability of the tokens of a text; one without tokens is the least
    likely."""
    values = [token.logprobs.logprob for token in tokens if token.logprobs is not None]
    return sum(values) / len(values) if values else float("-inf")
