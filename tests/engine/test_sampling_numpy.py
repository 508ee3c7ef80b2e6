"""NumPy draws what the kernels draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine import sampling_kernels, sampling_numpy
from fastovms.engine.model.model import RawLogits, as_bits
from tests.engine.distributions import LOGITS
from tests.engine.test_sampling_kernels import BROKEN, EXTREMES, FILTERS, ROWS

NUM_DRAWS = 60


def draw(rows: Any, logits: RawLogits, settings: dict[str, float]) -> list[int]:
    """A token of the same row for each of some seeds, by either implementation."""
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    token_ids = np.full(NUM_DRAWS, -2)
    rows.draw_rows(
        *as_bits(logits[None]),
        np.zeros(NUM_DRAWS, np.int64),
        np.array([list(filters.values())] * NUM_DRAWS, np.float64),
        np.arange(NUM_DRAWS).astype(np.uint64) << np.uint64(58),
        np.arange(NUM_DRAWS) * 7,
        token_ids,
    )
    return token_ids.tolist()


def as_bf16(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (logits.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6, "top_p": 0.9},
        {"top_p": 0.01},
        {"top_k": 40},
        {"top_k": 300, "top_p": 0.7, "temperature": 1.3},
        {"min_p": 0.1},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.05, "temperature": 0.7},
    ],
    ids=str,
)
def test_the_same_tokens_are_drawn(name: str, settings: dict[str, float]) -> None:
    logits = LOGITS[name](np.random.default_rng(0), 3000).astype(np.float32)
    for row in (logits, as_bf16(logits)):
        pairs = zip(
            draw(sampling_kernels, row, settings), draw(sampling_numpy, row, settings), strict=True
        )
        # One may be drawn that lies where sums of the two round otherwise.
        assert sum(a != b for a, b in pairs) <= 1


@pytest.mark.parametrize("values", [*EXTREMES, *BROKEN, [-np.inf]], ids=str)
@pytest.mark.parametrize("settings", [*FILTERS, {"temperature": 1e300}], ids=str)
def test_no_more_is_drawn_from_what_is_no_number(
    values: list[float], settings: dict[str, float]
) -> None:
    logits = np.linspace(-3, 3, 700, dtype=np.float32)
    logits[[3, 600]] = values[0], values[-1]
    for row in (logits, as_bf16(logits), np.full(9, values[0], np.float32)):
        broken = [token_id == -1 for token_id in draw(sampling_kernels, row, settings)]
        assert [token_id == -1 for token_id in draw(sampling_numpy, row, settings)] == broken
        assert sampling_numpy.likeliest(*as_bits(row)) == sampling_kernels.likeliest(*as_bits(row))


@pytest.mark.parametrize(("row", "likeliest"), ROWS, ids=lambda value: str(value)[:30])
def test_the_first_of_the_largest_logits(row: list[float], likeliest: int) -> None:
    logits = np.array(row, np.float32)
    for some in (logits, as_bf16(logits)):
        token_ids = np.full(2, -2)
        sampling_numpy.likeliest_of_rows(*as_bits(some[None]), np.zeros(2, np.int64), token_ids)
        assert token_ids.tolist() == [likeliest] * 2


@pytest.mark.parametrize("size", [1, 257, 3000])
@pytest.mark.parametrize("name", LOGITS)
def test_the_sum_and_the_largest_are_the_same(name: str, size: int) -> None:
    logits = LOGITS[name](np.random.default_rng(0), size).astype(np.float32)
    for row in (logits, as_bf16(logits)):
        for k in (0, 1, 12, size, size + 1):
            log_sum, ranks = sampling_numpy.log_sum_exp_and_top(*as_bits(row), k)
            expected_sum, expected = sampling_kernels.log_sum_exp_and_top(*as_bits(row), k)
            assert log_sum == pytest.approx(expected_sum, abs=2e-6)
            assert np.array_equal(np.sort(ranks), np.sort(expected))
