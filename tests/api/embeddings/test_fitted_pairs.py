from __future__ import annotations

import numpy as np
import pytest

from fastovms.api.embeddings.fitted_pairs import (
    PairTokens,
    fit_pairs,
    join_pairs,
    longest_first,
)
from fastovms.api.embeddings.pairs import Pair, PairOptions, PairTexts
from fastovms.errors import InvalidField
from tests.api.encoder_api import CLS, PAIR, SEP
from tests.fakes import model_info

TEXTS = PairTexts(["query"], ["document", "other"], ["query"], ["d[0]", "d[1]"])
TOKENS = PairTokens([np.arange(4)], [np.arange(10, 22), np.arange(30, 32)])
PAIRS = [Pair(0, 0), Pair(0, 1)]


@pytest.mark.parametrize(
    ("first", "second", "room"), [(3, 9, 8), (9, 3, 8), (9, 9, 8), (9, 9, 7), (5, 4, 8), (20, 1, 4)]
)
def test_the_longer_is_cut_first(first, second, room):
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    found = longest_first(first, second, room)
    assert sum(found) == room
    assert sorted(found) == sorted(kept)


def fitted(options: PairOptions, max_together: int = 100) -> list[tuple[int, int, int, int]]:
    return fit_pairs(PAIRS, TOKENS, TEXTS, options, 8, model_info(), max_together)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (PairOptions(11, truncates=True), [(0, 4, 0, 4), (1, 4, 0, 2)]),
        (PairOptions(11, chunks=True), [(0, 4, 0, 4), (0, 4, 4, 8), (0, 4, 8, 12), (1, 4, 0, 2)]),
        (PairOptions(11, chunks=True, max_chunks_per_document=2),
         [(0, 4, 0, 4), (0, 4, 4, 8), (1, 4, 0, 2)]),
    ],
)  # fmt: skip
def test_pairs_are_cut(options, parts):
    found = fitted(options)
    assert found == parts
    first = join_pairs(found, PAIRS, TOKENS, PAIR)[0]
    assert first.token_ids.tolist() == [CLS, 0, 1, 2, 3, SEP, 10, 11, 12, 13, SEP]
    assert first.type_ids.tolist() == [0] * 6 + [1] * 5


@pytest.mark.parametrize(
    ("options", "max_together", "param"),
    [
        (PairOptions(11), 100, "d[0]"),
        (PairOptions(11, chunks=True, max_chunks=3), 100, "documents"),
        (PairOptions(11, chunks=True), 29, "d[1]"),
        (PairOptions(11, chunks=True), 23, "d[0]"),
        (PairOptions(11, truncates=True), 13, "d[1]"),
    ],
)
def test_too_much_is_refused(options, max_together, param):
    with pytest.raises(InvalidField) as caught:
        fitted(options, max_together)
    assert caught.value.param == param


def test_as_much_as_may_be_is_taken():
    assert len(fitted(PairOptions(11, chunks=True, max_chunks=4), 30)) == 4
