"""The first steps of a model, before anybody waits for them."""

from __future__ import annotations

from array import array

from fastovms.engine.inputs import StepLayout
from fastovms.engine.model import Model

NUM_PROMPT_TOKENS = 64
"""More than a small step has (see `compilation`), so that both variants of a model are used, and
few enough for a large model."""


def warm_up(model: Model, max_model_len: int) -> None:
    """Computes a prompt and a token after it, which nobody wants: OpenVINO lays weights out and
    compiles kernels when it first needs them, which takes longer than the steps themselves.

    Overwrites the first blocks of the cache, which must be free.
    """
    num_prompt_tokens = max(1, min(NUM_PROMPT_TOKENS, max_model_len - 1))
    num_blocks = -(-(num_prompt_tokens + 1) // model.block_size)
    block_table = array("i", range(num_blocks))
    token_ids = array("q", bytes(array("q").itemsize * (num_prompt_tokens + 1)))
    for start, end in ((0, num_prompt_tokens), (num_prompt_tokens, num_prompt_tokens + 1)):
        layout = StepLayout(model.block_size)
        last = layout.add(token_ids, start, end, block_table)
        model.infer(layout.finish(array("q", (last,))))
