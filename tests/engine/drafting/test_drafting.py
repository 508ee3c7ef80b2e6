"""Drafts save steps and change nothing."""

from __future__ import annotations

import pytest

from fastovms.engine.engine import Engine
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.test_engine import make_engine, run, text


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("temperature", [0, 5])
def test_drafts_save_steps_and_change_nothing(automatic: bool, temperature: float) -> None:
    def generate(lookup: bool) -> tuple[dict[tuple[str, int], list[int]], Engine]:
        engine, _ = make_engine(
            num_blocks=256, max_model_len=512, enable_prompt_lookup=lookup and automatic
        )
        params = SamplingParams(
            temperature=temperature,
            seed=1,
            max_tokens=150,
            num_assistant_tokens=4 if lookup and not automatic else None,
        )
        for i in range(2):
            engine.add(GenerationRequest(str(i), [i, 1, 2, 3, 4, 5, 6, 7], params))
        outputs = run(engine)
        told = sum(output.num_accepted_tokens for of in outputs.values() for output in of)
        assert told == engine.counters.num_accepted_tokens
        return {key: text(of) for key, of in outputs.items()}, engine

    plain, plain_engine = generate(lookup=False)
    drafted, engine = generate(lookup=True)
    assert drafted == plain
    assert plain_engine.counters.num_draft_tokens == 0
    assert engine.counters.num_steps < 0.9 * plain_engine.counters.num_steps
    assert 0 < engine.counters.num_accepted_tokens < engine.counters.num_draft_tokens
    assert 0 < engine.counters.num_drafts < engine.counters.num_draft_tokens
    assert engine.counters.num_generated_tokens == plain_engine.counters.num_generated_tokens == 300
