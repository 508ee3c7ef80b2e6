from __future__ import annotations

from array import array
from copy import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine.sampling.logits_processors import logits_processors
from fastovms.params import SamplingParams

PROMPT = [1, 2, 2]
INF = np.inf


def process(
    params: SamplingParams, generated: list[int], logits: list[float]
) -> NDArray[np.float32]:
    """Applies the processors as the sampler does: once for each token."""
    processors = logits_processors(params, array("q", PROMPT))
    row = np.array(logits, np.float32)
    for length in range(len(generated) + 1):
        row = np.array(logits, np.float32)
        for processor in processors:
            processor(row, array("q", PROMPT + generated[:length]))
    return row


@pytest.mark.parametrize(
    ("params", "generated", "expected"),
    [
        (SamplingParams(logit_bias=((0, 5.0), (4, -INF))), [], [6, 1, -1, 2, -INF]),
        (SamplingParams(allowed_token_ids=(1, 3)), [], [-INF, 1, -INF, 2, -INF]),
        (SamplingParams(bad_words_token_ids=((3,), (1, 0))), [], [1, 1, -1, -INF, 0]),
        (SamplingParams(bad_words_token_ids=((3,), (1, 0))), [4, 1], [-INF, 1, -1, -INF, 0]),
        # The prompt's end does not begin a bad word.
        (SamplingParams(bad_words_token_ids=((2, 0),)), [], [1, 1, -1, 2, 0]),
        (
            SamplingParams(
                min_tokens=2, eos_token_ids=frozenset({0}), stop_token_ids=frozenset({3})
            ),
            [4],
            [-INF, 1, -1, -INF, 0],
        ),
        (SamplingParams(min_tokens=2, eos_token_ids=frozenset({0})), [4, 4], [1, 1, -1, 2, 0]),
        (SamplingParams(repetition_penalty=2.0), [], [1, 0.5, -2, 2, 0]),
        (SamplingParams(repetition_penalty=2.0), [3], [1, 0.5, -2, 1, 0]),
        (SamplingParams(frequency_penalty=0.5), [3, 3, 0], [0.5, 1, -1, 1, 0]),
        (SamplingParams(presence_penalty=-1), [3, 3, 0], [2, 1, -1, 3, 0]),
        (
            SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.5),
            [3, 3],
            [1, 0.5, -2, -1.5, 0],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_processors(params: SamplingParams, generated: list[int], expected: list[float]) -> None:
    assert process(params, generated, [1, 1, -1, 2, 0]).tolist() == expected


def test_an_ordinary_request_has_none() -> None:
    params = SamplingParams(temperature=0.3, top_k=5, top_p=0.5, eos_token_ids=frozenset({1}))
    assert logits_processors(params, array("q", PROMPT)) == ()


@given(
    generated=st.lists(st.integers(0, 299), max_size=400),
    prompt=st.lists(st.integers(0, 299), max_size=40),
    repetition=st.sampled_from([1.0, 1.5]),
)
def test_penalties_count_every_token_however_many(
    generated: list[int], prompt: list[int], repetition: float
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, frequency_penalty=1.0, presence_penalty=0.25
    )
    (penalties,) = logits_processors(params, array("q", prompt))
    logits = np.linspace(-2, 2, 300, dtype=np.float32)
    half = len(generated) // 2
    penalties(logits.copy(), array("q", prompt + generated[:half]))
    other = copy(penalties)
    other(logits.copy(), array("q", [*prompt, *generated[:half], 7]))
    row = logits.copy()
    penalties(row, array("q", prompt + generated))
    counts = np.bincount(np.array(generated, np.int64), minlength=300).astype(np.float32)
    seen = np.isin(np.arange(300), prompt + generated)
    expected = logits.copy()
    repeated = np.where(logits > 0, logits / np.float32(repetition), logits * repetition)
    expected[seen] = repeated[seen]
    expected -= counts + np.float32(0.25) * (counts > 0)
    np.testing.assert_allclose(row, expected, rtol=1e-6)
