"""What a plan counts of the chunks in it."""

from __future__ import annotations

import pytest

from fastovms.engine.scheduling.plan import Chunk, Plan
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.params import GenerationRequest, SamplingParams


def test_the_context_of_prompts_is_that_of_their_tokens() -> None:
    plan = Plan()
    for start, num_tokens in ((0, 100), (1000, 300)):
        sequence = Sequence(
            0, GenerationRequest("r", [1] * 2000, SamplingParams()), 0, token_limit=2001
        )
        sequence.num_computed_tokens = start
        plan.add_prefill(Chunk(sequence, num_tokens))
    assert plan.num_prefill_tokens == 400
    assert plan.num_decodes == 0
    assert plan.prefill_context == pytest.approx((100 * 50 + 300 * 1150) / 400)
