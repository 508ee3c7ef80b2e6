from __future__ import annotations

import pytest

from fastovms.backends.encoder.batch_shapes import num_rows, padded_length


@pytest.mark.parametrize(
    ("num_texts", "longest", "length"),
    [(1, 1, 8), (1, 8, 8), (1, 9, 16), (3, 70, 72), (1, 130, 144), (1, 300, 320), (8, 130, 130)],
)
def test_rows_of_small_batches_have_one_of_few_lengths(num_texts, longest, length):
    assert padded_length(num_texts, longest) == length


def test_no_row_is_longer_than_the_model_has_positions():
    assert padded_length(1, 100, 101) == 101
    assert padded_length(1, 100, 500) == 104
    assert padded_length(1, 100, 90) == 100  # the text itself is


def test_little_is_padding():
    lengths = range(64, 1024)
    assert all(padded_length(1, length) <= length * 1.13 for length in lengths)
    assert len({padded_length(1, length) for length in lengths}) < 40


@pytest.mark.parametrize(
    ("longest", "max_tokens", "num"),
    [(10, 1, 1), (10, 15, 1), (10, 127, 4), (10, 128, 8), (100, 700, 4), (100, 4096, 39)],
)
def test_small_batches_have_a_power_of_two_of_rows(longest, max_tokens, num):
    assert num_rows(longest, max_tokens) == num
