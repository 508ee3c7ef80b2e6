"""Has engines and encoders that share the cores of a machine compute in turn, so that texts which
are encoded delay no step of an engine by more than a slice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from fastovms.backends.engine_thread.working_engines import WorkingEngines

SLICE_SHARE: Final = 0.45
"""How long slices are, as a share of the engines' steps: one follows each step."""

MIN_SLICE: Final = 0.003
"""Seconds that a slice may always take: less would be mostly handing over."""

MAX_SLICE: Final = 0.02
"""Seconds that a slice is planned to take at most while engines work."""

_NEWEST_SHARE: Final = 0.2
"""How much the newest step counts in the mean of their durations."""


class ComputeTurn:
    """What engines hold while they make a step, and encoders while they compute a slice.

    Engines do not wait for each other, only for a slice; an encoder waits until each engine that
    has work has made a step since the last slice. Without encoders nothing ever waits. It is
    thread-safe.
    """

    def __init__(
        self, engines: WorkingEngines, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._num_encoders = 0
        self._num_working = 0
        self._num_stepping = 0
        self._num_steps = 0
        self._steps_at_slice = 0
        self._is_slicing = False
        self._num_waiting = 0
        self._step_seconds = 0.0
        engines.watch(self._set_working)

    def _set_working(self, num_working: int) -> None:
        with self._changed:
            self._num_working = num_working
            self._changed.notify_all()

    # Engines

    @contextmanager
    def step(self) -> Iterator[None]:
        """Is entered by an engine for each step, and waits for a slice to end."""
        if not self._num_encoders:
            yield
            return
        with self._changed:
            while self._is_slicing or (self._num_waiting and self._is_due):
                self._changed.wait()
            self._num_stepping += 1
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            with self._changed:
                self._num_stepping -= 1
                self._num_steps += 1
                mean = self._step_seconds or seconds
                self._step_seconds = mean + _NEWEST_SHARE * (seconds - mean)
                self._changed.notify_all()

    # Encoders

    def add_encoder(self) -> None:
        """Has engines take turns from now on, until `remove_encoder`."""
        with self._changed:
            self._num_encoders += 1

    def remove_encoder(self) -> None:
        with self._changed:
            self._num_encoders -= 1

    @property
    def slice_seconds(self) -> float | None:
        """How long a slice may take now; None = nobody waits for it."""
        if not self._num_working:
            return None
        return min(MAX_SLICE, max(MIN_SLICE, SLICE_SHARE * self._step_seconds))

    @contextmanager
    def slice(self) -> Iterator[None]:
        """Is entered by an encoder for each slice, and waits for the engines' steps."""
        with self._changed:
            self._num_waiting += 1
            try:
                while self._is_slicing or self._num_stepping or not self._is_due:
                    self._changed.wait()
                self._is_slicing = True
            finally:
                self._num_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_slicing = False
                self._steps_at_slice = self._num_steps
                self._changed.notify_all()

    @property
    def _is_due(self) -> bool:
        """Whether each engine that has work has had its step since the last slice."""
        return self._num_steps - self._steps_at_slice >= self._num_working
