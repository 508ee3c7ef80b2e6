from __future__ import annotations

import pytest

from bench.serving.load_shape import LoadShape
from bench.serving.results import (
    Limits,
    figures_table,
    goodput_table,
    ratios_table,
)
from bench.serving.rounds import Rounds
from fastovms.parts.load_test.report import Load, Timeline


def stream(*arrivals: float, started: float = 0.0) -> Timeline:
    """One token an event."""
    return Timeline(started, list(arrivals))


def rounds(**loads: list[Load]) -> Rounds:
    return Rounds(LoadShape(2, [1], [1]), loads)


def cells(text: str) -> list[list[str]]:
    """The rows of a Markdown table, its header left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("timeline", "is_met"),
    [
        (stream(2.0), True),
        (stream(2.25), False),
        (stream(2.25, started=1.0), True),
        (stream(1.0, 1.125, 1.25), True),
        (stream(1.0, 1.0, 1.25), True),  # a gap of twice the limit, whose mean is within it
        (stream(1.0, 1.25), False),
        (Timeline(0.0, [1.0, 1.25], completion_tokens=3), True),  # an event of two tokens
    ],
)
def test_limits_are_of_the_first_token_and_of_the_mean_of_the_others(
    timeline: Timeline, *, is_met: bool
) -> None:
    assert Limits(first_token=2.0, per_token=0.125).are_met(timeline) == is_met


def test_goodput_is_a_share_of_all_requests_of_all_rounds() -> None:
    good, late, slow = stream(1.0, 1.05), stream(3.0, 3.05), stream(1.0, 2.0)
    result = rounds(a=[Load(1.0, [good, late]), Load(1.0, [good, slow])], b=[Load(1.0, [good])])
    text = goodput_table([result], Limits())
    assert cells(text) == [["2 at once", "50%", "100%"]]
    assert "within 2 s" in text
    assert "within 100 ms" in text
    assert "within 0.5 s" in goodput_table([result], Limits(first_token=0.5))


def test_figures_are_medians_of_rounds_and_percentiles_of_all_streams() -> None:
    result = rounds(
        a=[
            Load(1.0, [stream(0.2, 0.3, 0.6)]),
            Load(2.0, [stream(0.4, 0.5)]),
            Load(1.0, [stream(0.3)]),
        ],
        b=[Load(1.0, [stream(0.1)])],
    )
    first, second = cells(figures_table([result]))
    assert first == ["2 at once", "a", "1", "300", "398", "100", "296", "300"]
    assert second == ["2 at once", "b", "1", "100", "100", "nan", "nan", "nan"]


def test_ratios_compare_rounds_each_with_itself_and_more_is_better() -> None:
    ours = [Load(1.0, [stream(0.1, 0.2)]), Load(0.5, [stream(0.1, 0.2)])]
    theirs = [Load(2.0, [stream(0.3, 0.4)]), Load(2.0, [stream(0.5, 0.6)])]
    assert cells(ratios_table([rounds(a=ours, b=theirs)])) == [
        ["2 at once", "b", "3.00 (2.00 to 4.00)", "4.00 (3.00 to 5.00)"]
    ]
