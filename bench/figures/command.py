"""The interface of a measurement to the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures.figure import Figure


@dataclass(frozen=True, slots=True)
class Command:
    """A measurement: `python -m PROGRAM NAME`.

    Attributes:
        help: a description in one sentence.
        run: measures and returns the figures. Its arguments are the common options `seed` (an
            integer that determines every random choice) and `short` (whether to measure for a few
            seconds), and the command's own options.
        add_arguments: declares the command's own options, with the defaults of the full length.
        short: the values of these options in the short form; None = there is no short form, because
            a few seconds would show nothing.
    """

    help: str
    run: Callable[[argparse.Namespace], Sequence[Figure]]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    short: dict[str, object] | None
