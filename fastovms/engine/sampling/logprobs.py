"""Computes log probabilities from a model's raw logits: of a chosen token, and of the likeliest
ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.raw_logits import RawLogits, as_bits, as_float32
from fastovms.engine.sampling import row_functions
from fastovms.params import ALL_LOGPROBS, TokenLogprobs


def log_sum_exp(row: RawLogits) -> float:
    """Returns the logarithm of the sum of all exponentials of a row; 0 where nothing is possible. A
    logit less it is a log probability."""
    return log_sum_exp_and_top(row, 0)[0]


def log_sum_exp_and_top(row: RawLogits, k: int) -> tuple[float, NDArray[np.int64]]:
    """Returns the same as `log_sum_exp`, and the positions of the k largest logits (or of all), in
    descending order; of equal ones the first ones first."""
    log_sum, ranks = row_functions.log_sum_exp_and_top(*as_bits(row), k)
    ranks[::-1].sort()
    return log_sum, 0xFFFFFFFF - (ranks & 0xFFFFFFFF)


@np.errstate(all="ignore")  # logits may be infinite
def token_logprobs(logits: RawLogits, token_id: int, num_top: int) -> TokenLogprobs:
    """Returns what the model's own logits, [vocab_size], say about `token_id` and its `num_top` (or
    `ALL_LOGPROBS`) likeliest rivals, which come in descending order."""
    size = logits.size
    if num_top == ALL_LOGPROBS or num_top >= size:
        num_top = size
    normalizer, top = log_sum_exp_and_top(logits, max(num_top, 1))
    highest, chosen = as_float32(logits[[top[0], token_id]])
    num_likelier = 0
    if chosen != highest:
        num_likelier = int(np.count_nonzero(as_float32(logits) > chosen))
    top = top[:num_top]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(chosen) - normalizer,
        rank=1 + num_likelier,
        top_token_ids=top.tolist(),
        top_logprobs=(as_float32(logits[top]).astype(np.float64) - normalizer).tolist(),
    )
