"""Computes the first, slow steps of a model, before anybody waits for them."""

from __future__ import annotations

from fastovms.engine.model.model import Model
from fastovms.engine.model.tuning import MeasuredStep, inputs_of

NUM_PROMPT_TOKENS = 64
"""The length of the prompt: more than a small step has (see `compilation`), so that both variants
of a model are used, and few enough for a large model."""


def warm_up(model: Model, max_model_len: int) -> None:
    """Computes a prompt and a token after it, and drops the results: OpenVINO lays weights out and
    compiles kernels when it first needs them, which takes longer than the steps themselves. This
    overwrites the first blocks of the cache, which must be free. What was read of the model's files
    for it is not needed again."""
    num_prompt_tokens = max(1, min(NUM_PROMPT_TOKENS, max_model_len - 1))
    for case in (MeasuredStep(1, 0, num_prompt_tokens), MeasuredStep(1, num_prompt_tokens, 1)):
        model.infer(inputs_of(case, model.block_size))
    model.forget_files()
