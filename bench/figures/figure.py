"""The figures that a command measures, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.common.report import table

_TIMES = ("s", "ms")

HEADER = ("figure", "value", "limit", "holds")


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number.

    Attributes:
        name: a description.
        value: the measured number, in `unit`.
        unit: such as "s" or "MiB"; empty for a count.
        at_most: the upper limit; None = there is none.
        at_least: the lower limit; None = there is none.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Returns whether the value is within its limits. NaN never is."""
        above = self.at_least is None or self.value >= self.at_least
        below = self.at_most is None or self.value <= self.at_most
        return above and below and self.value == self.value

    def with_patience(self, factor: float) -> Figure:
        """Returns a figure whose upper limit is multiplied by `factor` if it is a time."""
        if self.at_most is None or self.unit not in _TIMES:
            return self
        return replace(self, at_most=factor * self.at_most)

    @property
    def limit(self) -> str:
        """Returns the limits in words, such as "at most 5 s"; empty if there are none."""
        parts = [
            f"{word} {_show(bound)} {self.unit}".rstrip()
            for word, bound in (("at least", self.at_least), ("at most", self.at_most))
            if bound is not None
        ]
        return ", ".join(parts)


def figures_table(figures: Sequence[Figure]) -> str:
    """Renders figures as a Markdown table. Only figures with a limit say whether it holds."""
    return table(
        HEADER,
        [
            (
                figure.name,
                f"{_show(figure.value)} {figure.unit}".rstrip(),
                figure.limit or "-",
                ("yes" if figure.holds else "NO") if figure.limit else "-",
            )
            for figure in figures
        ],
    )


def _show(value: float) -> str:
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
