"""A model that measures the time of its steps."""

from __future__ import annotations

import time

from bench.common.model_wrapper import ModelWrapper
from fastovms.engine.model.model import Model, RawLogits
from fastovms.engine.model.step_inputs import StepInputs


class TimedModel(ModelWrapper):
    """A model that measures the time of its steps.

    Attributes:
        seconds: the total time of `infer`.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.seconds = 0.0

    def infer(self, inputs: StepInputs) -> RawLogits:
        start = time.perf_counter()
        logits = super().infer(inputs)
        self.seconds += time.perf_counter() - start
        return logits
