"""The search alone: what it finds, against brute force and worked examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product

import numpy as np
import pytest

from fastovms.engine.beams.beam import BeamSearcher, Floats, Hypothesis
from fastovms.params import BeamSearch, EarlyStopping, EndsText

END = 0
VOCAB_SIZE = 4
Model = Callable[[Sequence[int]], Floats]


def random_model(seed: int) -> Model:
    def logits_after(token_ids: Sequence[int]) -> Floats:
        rng = np.random.default_rng([seed, len(token_ids), *token_ids])
        return rng.standard_normal(VOCAB_SIZE).astype(np.float32) * 2

    return logits_after


def probabilities(**of: float) -> Floats:
    """Logits of a vocabulary of "e" (the end), "a", "b", "c"; the unnamed are impossible."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([of.get(token, 0) for token in "eabc"], np.float32))


def search(
    model: Model,
    params: BeamSearch,
    max_new_tokens: int,
    n: int,
    ends_text: EndsText | None = None,
) -> tuple[list[tuple[float, list[int]]], int]:
    """The texts with their scores, ends included, and the number of steps it took."""
    searcher = BeamSearcher(
        params,
        end_token_ids=frozenset({END}),
        max_new_tokens=max_new_tokens,
        ends_text=ends_text,
    )
    texts: list[list[int]] = [[]]
    while continuations := searcher.advance([model(text) for text in texts]):
        assert len(continuations) <= params.num_beams
        texts = [[*texts[parent], token_id] for parent, token_id in continuations]

    def text(hypothesis: Hypothesis) -> list[int]:
        tokens = [searcher.steps[i][j].token_id for i, j in enumerate(hypothesis.path)]
        assert hypothesis.is_ended == (END in tokens[-1:])
        return tokens

    return [(h.score, text(h)) for h in searcher.best(n)], len(searcher.steps)


def score(model: Model, text: Sequence[int], length_penalty: float) -> float:
    total = 0.0
    for i, token_id in enumerate(text):
        logits = model(text[:i]).astype(np.float64)
        total += logits[token_id] - np.log(np.exp(logits).sum())
    return float(total / len(text) ** length_penalty)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_a_search_that_is_wide_enough_finds_the_best_of_all_texts(
    seed: int, length_penalty: float
) -> None:
    model, length = random_model(seed), 4
    going_on = [t for t in product(range(VOCAB_SIZE), repeat=length) if END not in t[:-1]]
    ended = [(*t, END) for k in range(length - 1) for t in product(range(1, VOCAB_SIZE), repeat=k)]
    every = sorted((score(model, t, length_penalty), t) for t in (*going_on, *ended))[::-1]
    params = BeamSearch(500, length_penalty=length_penalty, early_stopping=EarlyStopping.NEVER)
    found, num_steps = search(model, params, length, n=10)
    assert num_steps == length
    assert [tuple(text) for _, text in found] == [text for _, text in every[:10]]
    assert [s for s, _ in found] == pytest.approx([s for s, _ in every[:10]], abs=1e-5)


@pytest.mark.parametrize("num_beam_groups", [1, 2])
def test_a_text_may_be_complete_with_a_token_that_is_part_of_it(num_beam_groups: int) -> None:
    """Such texts are found as those that an end token follows, but a token shorter."""
    model, length, stop = random_model(1), 4, (2, 3)

    def ends_text(num_tokens: int, backwards: Iterable[int]) -> bool:
        text = tuple(backwards)[::-1]
        assert len(text) == num_tokens
        return text[-2:] == stop

    texts = [
        t
        for k in range(1, length + 1)
        for t in product(range(VOCAB_SIZE), repeat=k)
        if END not in t[:-1] and stop not in pairwise(t[:-1])
        if k == length or t[-1] == END or t[-2:] == stop
    ]
    every = sorted((score(model, t, 1.0), t) for t in texts)[::-1]
    params = BeamSearch(400, num_beam_groups, early_stopping=EarlyStopping.NEVER)
    found, _ = search(model, params, length, n=10 * num_beam_groups, ends_text=ends_text)
    assert [tuple(text) for _, text in found[::num_beam_groups]] == [t for _, t in every[:10]]
    assert any(tuple(text[-2:]) == stop and len(text) < length for _, text in found)


def test_one_beam_is_greedy_up_to_the_limit() -> None:
    model = random_model(5)
    text: list[int] = []
    while len(text) < 6 and END not in text:
        text.append(int(model(text).argmax()))
    params = BeamSearch(1, early_stopping=EarlyStopping.EARLY)
    found, _ = search(model, params, 6, n=1)
    assert [t for _, t in found] == [text]


def test_an_end_beyond_the_first_beams_does_not_count() -> None:
    """In the second step "ae" has 0.3, "ac" 0.18, "be" 0.16 and "bc" 0.12: of two beams, "be" is
    none, though likelier than any longer text."""

    def model(text: Sequence[int]) -> Floats:
        if not text:
            return probabilities(a=0.6, b=0.4)
        if len(text) == 2:
            return probabilities(a=0.6, b=0.4)
        if text == [1]:
            return probabilities(e=0.5, c=0.3, a=0.1, b=0.1)
        return probabilities(e=0.4, c=0.3, a=0.2, b=0.1)

    found, _ = search(model, BeamSearch(2, length_penalty=0), 3, n=2)
    assert [text for _, text in found] == [[1, END], [1, 3, 1]]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "num_steps"),
    [
        (EarlyStopping.EARLY, 1.0, 2),
        (EarlyStopping.HEURISTIC, 2.0, 2),
        (EarlyStopping.HEURISTIC, 1.0, 3),
        (EarlyStopping.HEURISTIC, 0.0, 3),
        (EarlyStopping.NEVER, 0.0, 3),
        (EarlyStopping.NEVER, -1.0, 3),
        (EarlyStopping.NEVER, 1.0, 20),
    ],
    ids=str,
)
def test_when_to_stop(early_stopping: EarlyStopping, length_penalty: float, num_steps: int) -> None:
    """Two texts end in the second step, with probabilities of 0.33 and 0.3. The best beam has 0.6
    before and 0.27 after it."""

    def model(text: Sequence[int]) -> Floats:
        if not text:
            return probabilities(a=0.6, b=0.4)
        if len(text) == 1:
            return probabilities(e=0.55, c=0.45) if text == [1] else probabilities(e=0.75, c=0.25)
        return probabilities(c=0.9, a=0.1)

    params = BeamSearch(2, length_penalty=length_penalty, early_stopping=early_stopping)
    _, steps = search(model, params, 20, n=2)
    assert steps == num_steps


@pytest.mark.parametrize(
    ("diversity_penalty", "expected"),
    [(0.0, [[1, 1], [1, 1]]), (0.5, [[1, 1], [2, 1]]), (9.0, [[1, 1], [2, 2]])],
)
def test_groups_pay_for_saying_the_same(
    diversity_penalty: float, expected: list[list[int]]
) -> None:
    rows = [probabilities(a=0.4, b=0.3, c=0.3), probabilities(a=0.8, b=0.2)]
    params = BeamSearch(2, num_beam_groups=2, diversity_penalty=diversity_penalty)
    found, _ = search(lambda text: rows[len(text)], params, 2, n=2)
    assert [text for _, text in found] == expected


def test_where_few_texts_are_possible_few_are_found() -> None:
    def model(text: Sequence[int]) -> Floats:
        return probabilities(e=1) if text else probabilities(a=0.9, c=0.1)

    found, _ = search(model, BeamSearch(4), 9, n=4)
    assert [text for _, text in found] == [[1, END], [3, END]]
    nothing = np.full(VOCAB_SIZE, -np.inf, np.float32)
    assert search(lambda text: nothing, BeamSearch(4), 9, n=4) == ([], 1)


@pytest.mark.parametrize("length_penalty", [1e6, -1e6])
def test_no_length_penalty_is_too_large(length_penalty: float) -> None:
    found, _ = search(random_model(1), BeamSearch(3, length_penalty=length_penalty), 5, n=3)
    assert len(found) == 3
