"""Log probabilities of the model's raw logits: of a chosen token, and of the likeliest ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.sampler import top_k_ids, total_of
from fastovms.params import ALL_LOGPROBS, TokenLogprobs

Floats = NDArray[np.float32]


def log_sum_exp(row: Floats) -> float:
    """What turns the logits of a row into log probabilities when it is taken from them; 0 where
    nothing is possible."""
    highest = float(row.max())
    if highest == -math.inf:
        return 0.0
    weights = row - highest
    np.exp(weights, out=weights)
    return highest + math.log(total_of(weights))


def token_logprobs(logits: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    """What the raw logits, float32 [vocab_size], say about `token_id` and its `num_top`
    (or `ALL_LOGPROBS`) likeliest rivals, which come in descending order."""
    normalizer = log_sum_exp(logits)
    chosen = float(logits[token_id])
    if num_top == ALL_LOGPROBS or num_top >= logits.size:
        top = np.argsort(-logits, kind="stable")
    elif num_top == 0:
        top = np.empty(0, np.intp)
    else:
        top = top_k_ids(logits, num_top)
        top = top[np.argsort(-logits[top], kind="stable")]
    return TokenLogprobs(
        token_id=token_id,
        logprob=chosen - normalizer,
        rank=1 + int(np.count_nonzero(logits > chosen)),
        top_token_ids=top.tolist(),
        top_logprobs=(logits[top].astype(np.float64) - normalizer).tolist(),
    )
