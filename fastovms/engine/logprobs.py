"""Log probabilities of the model's raw logits: of a chosen token, and of the likeliest ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.kernels import log_sum_exp_and_top
from fastovms.engine.raw_logits import as_bits
from fastovms.params import ALL_LOGPROBS, TokenLogprobs

Floats = NDArray[np.float32]


def log_sum_exp(row: Floats) -> float:
    """What turns the logits of a row into log probabilities when it is taken from them; 0 where
    nothing is possible."""
    return _log_sum_exp_and_top(row, 0)[0]


def top_k_ids(row: Floats, k: int) -> NDArray[np.int64]:
    """Positions of the k largest logits (or of all), in descending order; of equal ones the first
    ones first."""
    return _log_sum_exp_and_top(row, k)[1]


def token_logprobs(logits: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    """What the raw logits, float32 [vocab_size], say about `token_id` and its `num_top`
    (or `ALL_LOGPROBS`) likeliest rivals, which come in descending order."""
    is_all = num_top == ALL_LOGPROBS or num_top >= logits.size
    normalizer, top = _log_sum_exp_and_top(logits, 1 if is_all else max(num_top, 1))
    chosen = logits[token_id]
    num_likelier = 0 if chosen == logits[top[0]] else int(np.count_nonzero(logits > chosen))
    top = np.argsort(-logits, kind="stable") if is_all else top[:num_top]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(chosen) - normalizer,
        rank=1 + num_likelier,
        top_token_ids=top.tolist(),
        top_logprobs=(logits[top].astype(np.float64) - normalizer).tolist(),
    )


def _log_sum_exp_and_top(row: Floats, k: int) -> tuple[float, NDArray[np.int64]]:
    log_sum: float
    ranks: NDArray[np.int64]
    log_sum, ranks = log_sum_exp_and_top(*as_bits(row), k)
    ranks[::-1].sort()
    return log_sum, 0xFFFFFFFF - (ranks & 0xFFFFFFFF)
