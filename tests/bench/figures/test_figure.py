from __future__ import annotations

import math

import pytest

from bench.figures.figure import Figure

HELD = [
    (Figure("count", 0, at_most=0), True),
    (Figure("count", 1, at_most=0), False),
    (Figure("gap", 0.5, "s", at_most=0.5), True),
    (Figure("requests", 9_999, at_least=10_000), False),
    (Figure("memory", math.nan, "MiB", at_most=5), False),
    (Figure("seen only", 7.0), True),
]


@pytest.mark.parametrize(("figure", "holds"), HELD)
def test_a_figure_holds_within_its_limits(figure: Figure, holds: bool) -> None:
    assert figure.holds is holds


def test_patience_is_for_times_alone() -> None:
    figures = [
        Figure("gap", 0.3, "s", at_most=0.1),
        Figure("turn", 30, "ms", at_most=10),
        Figure("lost", 1, at_most=0),
        Figure("memory", 3, "MiB", at_most=1),
        Figure("seen", 0.2, "s"),
    ]
    held = [figure.with_patience(4).holds for figure in figures]
    assert held == [True, True, False, False, True]
