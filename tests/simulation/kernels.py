"""Decode kernels of simulated models: the real code brings them into use while requests run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from fastovms.app.paged import LaterGraphs
from fastovms.backends.paged.backend import BackendExtension, WaitForRequests
from fastovms.engine.model.model import MAX_KERNEL_TOKENS
from fastovms.parts.decode_kernels.few_rows import FewRowVariants
from fastovms.parts.decode_kernels.prepare import DecodeKernels
from tests.simulation.model import Pace, SimModel, SimRunner

_SPEED: Final = 2.0
_GAINS: Final = {"whole steps": {1: _SPEED, 8: _SPEED, 16: 1.0}}
"""Steps of more than 8 tokens stay with OpenVINO, if it has the model in memory."""

KINDS: Final = ("first", "once", "later")


@dataclass(frozen=True)
class Switch:
    """When a model's steps move from one runner to the other.

    Attributes:
        kind: "first" = from OpenVINO to the kernels; "once" = likewise, and OpenVINO's variants are
            released; "later" = kernels compute all steps until OpenVINO has compiled the model.
        seconds: after the model's warm-up.
    """

    kind: str
    seconds: float


class SimKernels(DecodeKernels):
    """Brings kernels into use whose preparation takes virtual time."""

    def __init__(self, model: SimModel, switch: Switch) -> None:
        super().__init__(model, keeps_weights_once=switch.kind == "once")
        runner = partial(SimRunner, model, _SPEED)
        store: Any = SimpleNamespace(num_bytes=0)
        self._found = FewRowVariants(
            dict.fromkeys(range(1, MAX_KERNEL_TOKENS + 1), runner), {}, store
        )
        self._switch = switch
        if switch.kind == "later":
            self._use(self._found, _GAINS)

    def prepare(self, may_go_on: WaitForRequests) -> None:
        if self._switch.kind != "later" and may_go_on(self._switch.seconds):
            self._use(self._found, _GAINS)


def model_with_kernels(
    block_size: int, pace: Pace, name: str, switch: Switch | None
) -> tuple[SimModel, Sequence[BackendExtension]]:
    """Returns a model, and the extensions of its backend that bring its kernels into use; None =
    OpenVINO computes all steps."""
    if switch is None:
        return SimModel(block_size, pace, name), ()
    is_later = switch.kind == "later"
    model = SimModel(block_size, pace, name, switch.seconds if is_later else None)
    graphs = LaterGraphs(model, keeps_weights_once=switch.kind == "once")
    return model, (SimKernels(model, switch), graphs)
