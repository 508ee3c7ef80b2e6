"""Samples are ranked by their tokens' mean log probability."""

from __future__ import annotations

from fastovms.api.generation.ranking import mean_logprob
from fastovms.params import TokenLogprobs
from fastovms.text.tokens.tracking import TextToken


def token(logprob: float) -> TextToken:
    return TextToken(1, 0, TokenLogprobs(1, logprob, 1, [], []))


def test_mean_logprob():
    assert mean_logprob([token(-1.0), token(-2.0)]) == -1.5
    assert mean_logprob([]) < mean_logprob([token(-1e9)])
