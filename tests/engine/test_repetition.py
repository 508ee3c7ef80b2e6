"""Tests of `RepetitionDetection`: a sample that repeats itself is ended."""

from __future__ import annotations

import pytest

from fastovms.engine.sequence import Sequence
from fastovms.params import (
    FinishReason,
    GenerationRequest,
    RepetitionDetection,
    SamplingParams,
)


@pytest.mark.parametrize(
    ("numbers", "text", "length"),
    [
        ((1, 1, 3), b"abccc", 5),
        ((1, 1, 4), b"abcccd", None),
        ((3, 1, 2), b"xabcabc", 7),
        ((2, 1, 2), b"xabcabc", None),
        ((3, 2, 3), b"aaaaaaa", 6),
        ((5, 2, 3), b"ababab", 6),
        ((5, 5, 2), b"abcdeabcde", 10),
        ((1000, 1, 2), b"abcdefg", None),
    ],
)
def test_where_a_sample_ends(numbers, text, length):
    """As vLLM's `check_sequence_repetition` ends it."""
    params = SamplingParams(repetition_detection=RepetitionDetection(*numbers))
    # The prompt does not count.
    request = GenerationRequest("r", list(text), params)
    sequence = Sequence(1, request, 0, token_limit=10_000)
    ended = [n for n, token in enumerate(text, 1) if sequence.append(token)]
    assert ended[:1] == ([] if length is None else [length])


def test_other_ends_come_first_and_min_tokens_count():
    params = SamplingParams(
        repetition_detection=RepetitionDetection(1, 1, 2),
        stop_token_ids=frozenset({9}),
        min_tokens=3,
    )
    sequence = Sequence(1, GenerationRequest("r", [1], params), 0, token_limit=6)
    assert [sequence.append(5), sequence.append(5)] == [None, None]
    assert sequence.append(5) is FinishReason.REPETITION
    assert sequence.append(9) is FinishReason.STOP
    assert sequence.append(9) is FinishReason.STOP
