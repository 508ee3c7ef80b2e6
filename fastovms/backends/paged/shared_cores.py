"""What the models of a process share because they compute on the same cores."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.backends.engine_thread.compute_turn import ComputeTurn
from fastovms.backends.engine_thread.working_engines import WorkingEngines
from fastovms.backends.paged.idle_tuning import IdleTuning


@dataclass(frozen=True, slots=True)
class SharedCores:
    """What the models of one process share so that they do not compute at the same time.

    Attributes:
        engines: counts those that work; `turn` and `idle_tuning` watch it.
        turn: has engines' steps and encoders come in turn.
        idle_tuning: measures how models run fastest, while no engine works.
    """

    engines: WorkingEngines
    turn: ComputeTurn
    idle_tuning: IdleTuning

    @classmethod
    def create(cls) -> SharedCores:
        engines = WorkingEngines()
        return cls(engines, ComputeTurn(engines), IdleTuning(engines))
