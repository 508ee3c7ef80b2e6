"""Runs an engine in a loop: takes commands, makes a step, tells what came out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from fastovms.backend_stats import BackendStats
from fastovms.backends.engine_thread.in_flight import StepReport
from fastovms.params import EngineOutput, FinishReason, GenerationOutput, GenerationRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request, or one of its samples."""

    request_id: str
    index: int | None


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Calls a function on the engine's thread, between two steps."""

    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Close:
    pass


Command = Submit | Abort | EngineCall | Close


class SteppedEngine(Protocol):
    """What the loop needs of an engine."""

    @property
    def has_work(self) -> bool: ...

    @property
    def admitted(self) -> Sequence[str]:
        """The requests that left the queue for the last step."""

    def add(self, request: GenerationRequest) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> None: ...

    def step(self) -> list[EngineOutput]: ...


def run_engine(
    engine: SteppedEngine,
    *,
    receive: Callable[[bool], Iterable[Command]],
    take_stats: Callable[[], BackendStats],
    publish: Callable[[StepReport], None],
    clock: Callable[[], float],
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Runs an engine until `Close`. What the engine raises in a step ends the loop.

    Args:
        receive: returns every command there is; waits for the first one if its argument says so.
        publish: called after each step, and when commands came without one.
        turn: is entered for each step.
    """
    num_received = 0
    while True:
        outputs: list[EngineOutput] = []
        for command in receive(not engine.has_work):
            if isinstance(command, Close):
                return
            if isinstance(command, EngineCall):
                command.function()
            elif isinstance(command, Abort):
                engine.abort(command.request_id, command.index)
            else:
                num_received += command.request.params.n
                outputs += add_request(engine, command.request)
            del command  # frees its images
        started_at = clock()
        admitted: Sequence[str] = ()
        seconds = None
        if engine.has_work:
            with turn():
                outputs += engine.step()
            seconds = clock() - started_at
            admitted = engine.admitted
        publish(StepReport(outputs, admitted, started_at, take_stats(), num_received, seconds))


def add_request(engine: SteppedEngine, request: GenerationRequest) -> list[EngineOutput]:
    """Queues a request. One that cannot even be queued fails alone."""
    try:
        engine.add(request)
    except Exception as error:
        logger.exception("request %s failed", request.request_id)
        return [
            EngineOutput(
                request.request_id,
                GenerationOutput(index, (), FinishReason.ERROR, 0, error=str(error)),
            )
            for index in range(request.params.n)
        ]
    return []
