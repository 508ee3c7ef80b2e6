from __future__ import annotations

import numpy as np
import pytest

from fastovms.engine.sampling.logprobs import token_logprobs
from fastovms.params import ALL_LOGPROBS


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 999, 1000, ALL_LOGPROBS])
def test_equals_a_full_log_softmax(num_top: int) -> None:
    rng = np.random.default_rng(num_top + 1)
    logits = (rng.standard_normal(1000) * 4).astype(np.float32)
    exact = logits.astype(np.float64)
    exact = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    result = token_logprobs(logits, 17, num_top)
    order = np.argsort(-exact, kind="stable")[: None if num_top == ALL_LOGPROBS else num_top]
    assert result.token_id == 17
    assert result.logprob == pytest.approx(exact[17], abs=1e-5)
    assert result.rank == 1 + (exact > exact[17]).sum()
    assert list(result.top_token_ids) == order.tolist()
    assert result.top_logprobs == pytest.approx(exact[order].tolist(), abs=1e-5)


def test_impossible_tokens() -> None:
    logits = np.array([0, -np.inf, 0], np.float32)
    result = token_logprobs(logits, 1, 1)
    assert result.logprob == -np.inf
    assert result.rank == 3
