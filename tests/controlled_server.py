"""The real server process with a model that its prompts control.

python -m tests.controlled_server LOADING_SECONDS serve FLAG...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fastovms.api.served import ServedModel, ServedModels
from fastovms.app import serve as app
from fastovms.backends.paged.backend import PagedBackend
from fastovms.cli import main as cli
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.row_functions import load_kernels
from fastovms.params import ModelInfo
from fastovms.server_config import MediaConfig, ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokenizer import Tokenizer
from tests.engine.fake_model import FakeModel
from tests.paths import FIXTURES

NAME = "controlled"
RAISE, HANG, NAN, DAMAGE, SLOW = 1, 2, 3, 4, 8
"""First tokens of prompts at which the model raises an error, never returns, returns NaN for this
prompt after some tokens or for every prompt from then on, or takes `SLOW_SECONDS` for each of its
tokens."""

SLOW_SECONDS = 0.2

STEP_SECONDS = 0.01


class ControlledModel(FakeModel):
    """A model whose steps take some time."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(block_size=16)
        self.vocab_size = vocab_size
        self._is_damaged = False

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        time.sleep(STEP_SECONDS)
        first_tokens = inputs.input_ids[inputs.position_ids == 0]
        if RAISE in first_tokens:
            raise RuntimeError("out of order")
        while HANG in first_tokens:
            time.sleep(1)
        self._is_damaged |= DAMAGE in first_tokens
        return super().infer(inputs)

    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits_after(context)
        logits[: DAMAGE + 1] = -100
        if self._is_damaged or (context[0] == NAN and len(context) > 3):
            logits[:] = np.nan
        if context[0] == SLOW:
            time.sleep(SLOW_SECONDS)
        return logits


def load_models(
    seconds: float, models: Sequence[ModelConfig], media: MediaConfig, **_: object
) -> ServedModels:
    time.sleep(seconds)
    load_kernels()  # lest the first step wait for them, longer than an engine is given
    [model] = models
    tokenizer = Tokenizer.load(FIXTURES / "byte_level")
    info = ModelInfo(
        name=NAME,
        created=0,
        max_model_len=4096,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=frozenset(),
    )
    backend = PagedBackend.from_model(ControlledModel(info.vocab_size), info, model.engine)
    metrics = GenerationMetrics(info.name, backend.stats)
    return ServedModels([ServedModel(backend, tokenizer, metrics)])


if __name__ == "__main__":
    app.load_models = partial(load_models, float(sys.argv.pop(1)))
    cli.run()
