"""Expressions of numbers, against the numbers themselves."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from fastovms.backends.xgrammar.number_rules import integers, numbers

_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"|([ ])')


def python(expression: str | None) -> re.Pattern[str]:
    """The expression in Python's notation."""
    assert expression is not None
    found = _LITERAL.sub(lambda match: re.escape(match[1] or ""), expression)
    return re.compile(found)


BOUNDS = [None, -1234, -100, -11, -10, -7, -1, 0, 1, 5, 9, 10, 12, 99, 100, 120, 255, 65535]


@pytest.mark.parametrize("low", BOUNDS)
def test_integers(low: int | None) -> None:
    near = {edge + step for edge in BOUNDS if edge is not None for step in (-2, -1, 0, 1, 2, 10)}
    for high in BOUNDS:
        if low is not None and high is not None and low > high:
            assert integers(low, high) is None
            continue
        matches = python(integers(low, high)).fullmatch
        for number in near:
            fits = (low is None or low <= number) and (high is None or number <= high)
            assert (matches(str(number)) is not None) == fits, (low, high, number)
        assert not matches("01")
        assert not matches("1.0")


def test_integers_between_numbers_that_are_none() -> None:
    matches = python(integers(0.5, 3.9)).fullmatch
    assert [n for n in range(-1, 6) if matches(str(n))] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(40))
def test_numbers(seed: int) -> None:
    rng = random.Random(seed)
    edges = [0, 1, -1, 0.5, -0.25, 99.25, -3.75, 100, 0.001, 1e-6, round(rng.uniform(-20, 20), 2)]
    low, high = sorted(rng.sample(edges, 2))
    bounds = [low if rng.random() < 0.8 else None, high if rng.random() < 0.8 else None]
    has_low, has_high = rng.random() < 0.7, rng.random() < 0.7
    matches = python(numbers(*bounds, has_low=has_low, has_high=has_high)).fullmatch
    for edge in edges:
        for step in ("0", "0.1", "-0.1", "0.003", "-0.003", "1", "-1", "10", "-0.000001"):
            number = Decimal(repr(edge)) + Decimal(step)
            text = format(number.normalize(), "f")
            fits = all(
                bound is None or sign * number > sign * Decimal(repr(bound))
                or (has_it and number == Decimal(repr(bound)))
                for bound, sign, has_it in ((bounds[0], 1, has_low), (bounds[1], -1, has_high))
            )  # fmt: skip
            if low != 0 != high or number != 0:  # what is no number but -0 may be left in
                assert (matches(text) is not None) == fits, (bounds, has_low, has_high, text)


def test_what_lies_between_no_bounds() -> None:
    assert numbers(1, 0) is None
    assert numbers(1, 1, has_low=False) is None
    assert numbers(1.5, 1.5) == '"1.5"'
    for text in ("0", "-1.50", "1e9", "2.5E-3"):
        assert python(numbers(None, None)).fullmatch(text), text
