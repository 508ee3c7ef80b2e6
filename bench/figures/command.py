"""What every measurement offers to the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures.figure import Figure


@dataclass(frozen=True, slots=True)
class Command:
    """A measurement: `python -m PROGRAM NAME`.

    Attributes:
        help: what it does, in one sentence.
        run: measures and returns the figures. It gets the common options `seed` (an integer that
            decides every random choice) and `short` (whether a few seconds must do), and those of
            its own.
        add_arguments: declares its own options, whose defaults are those of the full length.
        short: what the own options are instead in the short form; None = it has none, since nothing
            that it measures in a few seconds would mean anything.
    """

    help: str
    run: Callable[[argparse.Namespace], Sequence[Figure]]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    short: dict[str, object] | None
