"""The process that measures which settings run a model fastest. The server suspends it by a signal
while requests run; interrupted rounds are repeated."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any, Final

from fastovms.backends.processes import receive, send
from fastovms.engine.model.devices import MemoryReader, available_memory
from fastovms.errors import ConfigurationError
from fastovms.parts.tuning.idle import Measurement
from fastovms.parts.tuning.ways import measure_all

_NICENESS: Final = 19
_MEMORY_SHARE: Final = 0.25
"""The maximum fraction of the free memory for the weights, because two variants of a model are in
memory."""


class MemorySpeed:
    """Measures the memory bandwidth; the result is 0 if the process was suspended meanwhile."""

    def __init__(self) -> None:
        self._read = MemoryReader()
        self._was_stopped = False
        signal.signal(signal.SIGCONT, self._note)

    def __call__(self) -> float:
        speed = self._read()
        was_stopped, self._was_stopped = self._was_stopped, False
        return 0.0 if was_stopped else speed

    def _note(self, *_: object) -> None:
        self._was_stopped = True


def tune(measurement: Measurement) -> str:
    """Measures, and returns a sentence about the result or the failure."""
    _, model_dir, config, cache = measurement
    weights_size = (model_dir / "openvino_model.bin").stat().st_size
    if weights_size > available_memory() * _MEMORY_SHARE:
        return "there is too little memory to measure it while the server runs"
    try:
        report = measure_all(model_dir, config, cache, memory_speed=MemorySpeed())
    except ConfigurationError as error:
        return str(error)
    if report is None:
        return "the machine was too busy: the next start tries again"
    best = report.finding
    return (
        f"the next start will run it as {best.name}, with {best.token_budget} tokens a step: the "
        f"best of {len(report.loads)} ways"
    )


def serve(connection: Connection[Any, Any]) -> None:
    """Receives a `Measurement`, measures at low priority and sends the result."""
    os.nice(_NICENESS)
    send(connection, tune(receive(connection)))
