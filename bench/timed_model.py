"""A model that tells how long it was inferring."""

from __future__ import annotations

import time

from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.raw_logits import RawLogits
from fastovms.engine.model.step_inputs import StepInputs


class TimedModel:
    """
    Attributes:
        seconds: spent in `infer` so far.
    """

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self.block_size = model.block_size
        self.bytes_per_block = model.bytes_per_block
        self.rope_switch_len = model.rope_switch_len
        self.states = model.states
        self.copy_blocks = model.copy_blocks
        self.accept_drafts = model.accept_drafts
        self.allocate_cache = model.allocate_cache
        self.seconds = 0.0

    def infer(self, inputs: StepInputs) -> RawLogits:
        start = time.perf_counter()
        logits = self._model.infer(inputs)
        self.seconds += time.perf_counter() - start
        return logits
