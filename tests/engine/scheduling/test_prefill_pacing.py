"""A long prompt must not hold those up who decode; a crowd that waits goes before their comfort."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.config.engine_config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.scheduling.prefill_pacing import (
    MIN_PREFILL_TOKENS,
    UNSEEN_SECONDS,
    PrefillPacing,
)
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.engine.scheduling.step_costs import StepCosts
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.fake_model import FakeModel

BASE, TOKEN = 0.05, 0.0015
"""Seconds of the fake model's step, and of each token in it."""


class TimedModel(FakeModel):
    """Its steps take time on a clock of its own."""

    now = 0.0
    base = BASE
    token_seconds = TOKEN

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.now += self.base + self.token_seconds * len(inputs.input_ids)
        return super().infer(inputs)

    @property
    def step_seconds(self) -> list[float]:
        return [self.base + self.token_seconds * tokens for tokens in self.num_tokens_per_step]


def pacing_after(*steps: tuple[int, int, float]) -> PrefillPacing:
    costs = StepCosts()
    for num_decodes, num_prefill_tokens, seconds in steps:
        costs.learn(
            num_decodes=num_decodes,
            num_rows=num_decodes,
            num_prefill_tokens=num_prefill_tokens,
            seconds=seconds,
        )
    return PrefillPacing(costs)


BUDGET = 256


def prompt(length: int = 1600, start: int = 0) -> Sequence:
    """A prompt of which the tokens before `start` are computed."""
    request = GenerationRequest("r", [1] * length, SamplingParams())
    made = Sequence(0, request, 0, token_limit=length + 9)
    made.num_computed_tokens = start
    return made


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], BUDGET),
        ([(0, 100, 1.0)], BUDGET),
        ([(4, 0, 1.0)], BUDGET),
        ([(0, 100, 2.0), (4, 0, 1.0)], 44),
        ([(0, 100, 2.0), (4, 0, 1.0), (4, 100, 1.5), (4, 100, 1.5)], 188),  # 192 in all
        ([(0, 100, 2.0), *[(4, 0, 1.0)] * 3, (4, 0, 90.0), (4, 0, 1.0)], 44),  # an outlier
        ([(4, 0, 0.0), (4, 8, 0.0)], BUDGET),
        ([(4, 8, 1.0)], BUDGET),  # nothing to compare it with
    ],
)
def test_what_a_prompt_may_have_of_a_step(
    steps: list[tuple[int, int, float]], expected: int
) -> None:
    assert pacing_after(*steps).max_prefill_tokens(4, 4, prompt(), BUDGET) == expected


def test_what_no_reader_sees_is_allowed() -> None:
    """Steps of 1 ms may take 45, and then have a multiple of 16 tokens in all."""
    quick = pacing_after(*[(4, 0, 0.001)] * 3, *[(4, 100, 0.081)] * 3)
    assert quick.max_prefill_tokens(4, 4, prompt(), BUDGET) == 44


def test_what_is_over_soon_is_not_held_back() -> None:
    """A second of a prompt's tokens, those left out that are cached."""
    pacing = pacing_after(*[(4, 0, 0.001)] * 3, *[(4, 100, 0.101)] * 3)
    assert pacing.max_prefill_tokens(4, 4, prompt(1000), BUDGET) == BUDGET
    assert pacing.max_prefill_tokens(4, 4, prompt(1020), BUDGET) < BUDGET
    cached = prompt(4000, 3600)
    cached.num_cached_tokens = 3600
    assert pacing.max_prefill_tokens(4, 4, cached, BUDGET) == BUDGET


def test_what_attention_to_a_long_context_costs_is_learned() -> None:
    costs = StepCosts()

    def run(num_prefill_tokens: int, start: int = 0) -> None:
        context = start + num_prefill_tokens / 2
        costs.learn(
            num_decodes=4,
            num_rows=4,
            num_prefill_tokens=num_prefill_tokens,
            prefill_context=context,
            seconds=1 + num_prefill_tokens / 100 * (1 + context / 2000),
        )

    run(0)
    run(0)
    for start in range(0, 1600, 100):
        run(100, start)
    for start in (0, 1000, 3000):
        most = PrefillPacing(costs).max_prefill_tokens(4, 4, prompt(4000, start), 1000)
        assert most == pytest.approx(100 / (1 + (start + most / 2) / 2000), abs=17)


def run_streams(
    num_streams: int,
    num_late: int,
    late_length: int,
    *,
    base: float = BASE,
    token_seconds: float = TOKEN,
    late_priority: int = 0,
) -> tuple[TimedModel, Engine]:
    """Streams that decode, and then prompts that come while they do, until those are computed."""
    model = TimedModel()
    model.base, model.token_seconds = base, token_seconds
    model.allocate_cache(4096)
    engine = Engine(
        model,
        EngineConfig(enable_prompt_lookup=False, enable_prefix_caching=False),
        num_blocks=4096,
        max_model_len=2048,
        clock=lambda: model.now,
    )
    params = SamplingParams(temperature=0, max_tokens=400)
    for i in range(num_streams):
        engine.add(GenerationRequest(f"stream {i}", [i, 2, 3], params))
    for _ in range(20):
        engine.step()
    del model.num_tokens_per_step[:]
    for i in range(num_late):
        prompt = [i] * late_length
        engine.add(GenerationRequest(f"late {i}", prompt, params, priority=late_priority))
    while engine.scheduler.waiting or any(
        sequence.num_uncomputed_tokens > 1 for sequence in engine.scheduler.running
    ):
        engine.step()
    return model, engine


@pytest.mark.parametrize("num_streams", [1, 4, 16])
def test_a_long_prompt_at_most_doubles_the_steps_of_those_who_decode(num_streams: int) -> None:
    model, _ = run_streams(num_streams, 1, 1500)
    undisturbed = BASE + TOKEN * num_streams
    first, *further = model.step_seconds
    assert max(further) <= 2.05 * undisturbed
    assert first <= 2.5 * undisturbed
    assert sum(model.num_tokens_per_step) >= 1500


@pytest.mark.parametrize("num_streams", [1, 8])
def test_steps_that_no_reader_sees_are_filled(num_streams: int) -> None:
    """Though they take ten times as long as without the prompt."""
    model, _ = run_streams(num_streams, 1, 1900, base=0.003, token_seconds=0.0006)
    whole = model.step_seconds[1:-1]
    assert max(whole) <= 1.05 * UNSEEN_SECONDS
    assert min(whole) >= 0.7 * UNSEEN_SECONDS


def test_prompts_that_wait_for_each_other_get_the_whole_budget() -> None:
    """Until the last of them is alone: then those who decode count."""
    model, _ = run_streams(8, 4, 900)
    undisturbed = BASE + TOKEN * 12
    num_crowded = 3 * 900 // 248
    assert model.num_tokens_per_step[:num_crowded] == [256] * num_crowded
    assert max(model.step_seconds[num_crowded + 1 :]) <= 2.05 * undisturbed
    assert len(model.num_tokens_per_step) > num_crowded + 5


def test_a_crowd_of_lower_priority_waits_for_those_who_decode() -> None:
    model, _ = run_streams(8, 4, 900, late_priority=1)
    undisturbed = BASE + TOKEN * 12
    assert max(model.step_seconds[1:]) <= 2.05 * undisturbed


def test_short_prompts_are_not_held_back() -> None:
    """Each holds up those who decode once: taking it in small pieces would cost everybody steps."""
    model, _ = run_streams(8, 1, 240)
    assert model.num_tokens_per_step[0] == 8 + 240


def test_a_long_prompt_advances_however_dear_its_tokens_are() -> None:
    """In pieces that are worth a step, though decodes take more than twice as long meanwhile."""
    num_streams = 4
    model, _ = run_streams(num_streams, 1, 600, token_seconds=BASE)
    *whole, last = model.num_tokens_per_step
    assert set(whole[1:]) == {num_streams + MIN_PREFILL_TOKENS}
    assert last <= num_streams + MIN_PREFILL_TOKENS
