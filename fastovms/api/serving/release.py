"""Declares how a request gives back the model that it has taken into use."""

from __future__ import annotations

from collections.abc import Callable

Release = Callable[[], None]
"""Gives back what was taken into use, once."""


def no_hold() -> Release:
    """Returns what gives back a model that nobody unloads."""
    return lambda: None
