"""Tests of `fastovms/engine/step_costs.py`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.config import EngineConfig
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.sequence import Sequence
from fastovms.engine.step_costs import (
    MIN_PREFILL_TOKENS,
    UNSEEN_SECONDS,
    CostCurve,
    DraftCosts,
    PrefillCosts,
    PrefillPacing,
    StepCosts,
)
from fastovms.params import GenerationRequest, SamplingParams
from fastovms.parts.drafts.drafting import draft_lengths
from tests.engine.engines import full_engine, greedy
from tests.engine.fake_model import FakeModel


def learn(
    costs: StepCosts, num_decodes: int, seconds: float, *, num_drafts: int = 0, **prefills: float
) -> None:
    """Adds the measurement of a step, which may have drafts and prompt tokens."""
    known = {"num_prefill_tokens": 0, **prefills, "seconds": seconds}
    costs.learn(num_decodes=num_decodes, num_rows=num_decodes + num_drafts, **known)


# The cost of a number of tokens, from noisy measurements of some sizes.


TWO = ((10, 2.0), (10, 2.0), (20, 5.0), (20, 5.0))
"""Each size twice: the first measurement is provisional."""


@pytest.mark.parametrize(
    ("samples", "size", "seconds"),
    [
        ((), 4, None),
        (TWO, 5, 1.0),
        (TWO, 15, 3.5),
        (TWO, 20, 5.0),
        (TWO, 120, 305.0),  # three seconds for each further one
        ((*TWO, (14, 90.0)), 15, 3.5),  # measured once, beside others
        (((8, 2.0),) * 3 + ((8, 50.0), (8, 2.0)), 8, 2.0),  # an outlier
        (((8, 2.0),) * 5 + ((8, 3.0),) * 20, 8, 3.0),  # the past is forgotten
    ],
    ids=["unknown", "below", "between", "at", "beyond", "once", "outlier", "past"],
)
def test_cost_curve_estimates_a_size_from_repeated_measurements(
    samples: tuple[tuple[int, float], ...], size: int, seconds: float | None
) -> None:
    made = CostCurve(starts_at_zero=True)
    for sample in samples:
        made.learn(*sample)
    assert made.seconds(size, beyond=3.0) == pytest.approx(seconds)


def test_cost_not_measured_for_long_is_forgotten() -> None:
    made = CostCurve(starts_at_zero=True, memory=20)
    made.learn(100, 90.0)
    made.learn(100, 90.0)
    for _ in range(20):
        made.learn(8, 2.0)
        assert made.knows(100)
    made.learn(8, 2.0)
    assert not made.knows(100)
    assert made.seconds(100, beyond=0.5) == 48.0


def test_the_first_of_a_size_counts_until_there_is_another() -> None:
    made = CostCurve(starts_at_zero=False)
    made.learn(8, 90.0)
    assert (made.knows(9), made.knows(10)) == (True, False)
    assert made.seconds(8) == 90.0
    made.learn(8, 2.0)
    assert made.seconds(8) == made.seconds(1) == 2.0, "and below there is nothing else"


def test_sizes_are_few_and_estimates_near_a_line_of_noisy_measurements() -> None:
    rng = random.Random(0)
    made = CostCurve(starts_at_zero=False)
    for _ in range(20_000):
        size = rng.randint(1, 2048)
        made.learn(size, (10 + size) * rng.choice([1.0, 1.0, 1.0, 1.05, 0.95, 4.0]))
    for size in (1, 3, 17, 100, 999, 2000):
        assert made.seconds(size, beyond=1.0) == pytest.approx(10 + size, rel=0.1)
    assert len(made._samples) <= 4 * 12


# The cost of prompt chunks in a step.


def seconds_of(num_tokens: int, context: float, growth: float = 1 / 2000) -> float:
    return num_tokens * 0.0004 * (1 + context * growth)


@pytest.mark.parametrize("growth", [0.0, 1 / 5000, 1 / 1000])
def test_noisy_pieces_of_prompts_teach_lengths_and_contexts(growth: float) -> None:
    rng = random.Random(0)
    costs = PrefillCosts()
    for _ in range(6):
        start = 0
        while start < 4000:
            num_tokens = rng.choice([40, 100, 100, 250])
            context = start + num_tokens / 2
            noise = rng.choice([0.95, 1.0, 1.0, 1.0, 1.05, 3.0])
            costs.learn(num_tokens, context, noise * seconds_of(num_tokens, context, growth))
            start += num_tokens
    for num_tokens in (40, 100, 250):
        for context in (100, 2000, 3900):
            expected = pytest.approx(seconds_of(num_tokens, context, growth), rel=0.2)
            assert costs.seconds(num_tokens, context) == expected


def test_prefill_costs_give_how_many_tokens_fit() -> None:
    costs = PrefillCosts()
    for start in (0, 100, 200, 1000, 1100, 1200):
        costs.learn(100, start + 50, seconds_of(100, start + 50))
    for start in (0, 1000, 4000):
        most = costs.num_tokens_within(0.03, start, 256)
        assert seconds_of(most, start + most / 2) == pytest.approx(0.03, rel=0.05)
    assert costs.num_tokens_within(1.0, 0, 256) == 256
    assert costs.num_tokens_within(0.0, 0, 256) == 0


# The estimated cost of drafts after another cause has made steps slow for a while.


STEP, ROW = 0.020, 0.005
GOOD, MIDDLING, RANDOM = (0.6, 0.97), (0.2, 0.5), (0.01, 0.1)
"""The range of the probability that a guessed token is right."""

QUIET = 5000
RECOVERY = 1536
"""The number of steps until drafts have their former value: those after which steps without drafts
are measured again, the longest pause of drafts that do not pay, and some more."""


class Phase(NamedTuple):
    """A phase of one stream on a machine, with factors for the time of all steps and of the
    context."""

    num_steps: int
    slowdown: float = 1.0
    context_seconds: float = 0.0


class Result(NamedTuple):
    """The result of one phase: the share of steps with drafts, and tokens per second."""

    share: float
    speed: float


class Simulation:
    """Simulates steps, nine in ten with a guess of the given cost and odds."""

    def __init__(
        self,
        odds: tuple[float, float],
        *,
        change_seconds: float = 0.0,
        first_row_seconds: float = 0.0,
    ) -> None:
        self._costs = StepCosts()
        self._odds = odds
        self._change_seconds = change_seconds
        self._first_row_seconds = first_row_seconds
        self._rng = np.random.default_rng(0)
        self._last = 0
        for _ in range(4):
            learn(self._costs, 0, 256 * ROW, num_prefill_tokens=256, prefill_context=128)

    def run(self, phase: Phase) -> Result:
        num_drafted, num_tokens, seconds = 0, 0.0, 0.0
        for _ in range(phase.num_steps):
            gain, taken = self._step(phase)
            num_drafted += self._last > 0
            num_tokens += 1 + gain
            seconds += taken
        return Result(num_drafted / phase.num_steps, num_tokens / seconds)

    def _step(self, phase: Phase) -> tuple[float, float]:
        count, gain = 0, 0.0
        if self._rng.random() < 0.9:
            num_guessed = int(self._rng.integers(1, 9))
            chances = self._rng.uniform(*self._odds) ** np.arange(1, num_guessed + 1)
            (count,) = draft_lengths([chances], self._costs, num_sequences=1, num_rows=1)
            gain = float(chances[:count].sum())
        seconds = STEP + phase.context_seconds + count * ROW
        seconds += self._first_row_seconds * (count > 0)
        seconds += self._change_seconds * (count != self._last)
        seconds *= phase.slowdown
        self._last = count
        learn(self._costs, 1, seconds, num_drafts=count)
        return gain, seconds


@pytest.mark.nightly(but=("num_steps=200, slowdown=5",))
@pytest.mark.slow
@pytest.mark.parametrize("change_seconds", [0.0, 0.002], ids=["steady", "changes cost"])
@pytest.mark.parametrize("odds", [GOOD, MIDDLING], ids=["good", "middling"])
@pytest.mark.parametrize(
    "disturbance",
    [
        Phase(200, slowdown=2),
        Phase(200, slowdown=5),
        Phase(2000, slowdown=3),
        Phase(300, context_seconds=0.020),
        Phase(2000, context_seconds=0.020),
    ],
    ids=str,
)
def test_as_much_is_drafted_after_a_disturbance_as_before(
    odds: tuple[float, float], change_seconds: float, disturbance: Phase
) -> None:
    simulation = Simulation(odds, change_seconds=change_seconds)
    before = simulation.run(Phase(QUIET))
    simulation.run(disturbance)
    simulation.run(Phase(RECOVERY))
    after = simulation.run(Phase(QUIET))
    assert after.share == pytest.approx(before.share, abs=0.05)
    assert after.speed > 0.99 * before.speed


@pytest.mark.slow
def test_while_all_steps_draft_few_are_spared_to_measure_those_without() -> None:
    chances, costs = [np.array([0.9, 0.8])], StepCosts()
    num_plain = 0
    for step in range(10_000):
        (count,) = draft_lengths(chances, costs, num_sequences=1, num_rows=1)
        num_plain += count == 0
        is_slow = 2000 <= step < 4000
        learn(costs, 1, (0.020 + 0.001 * count) * (1 + is_slow), num_drafts=count)
        if step == 0:
            learn(costs, 0, 0.3, num_prefill_tokens=256)
        if step in (1999, 3999, 9999):
            plain = costs.decode_seconds(1, 1)
            assert plain == pytest.approx(0.020 * (1 + is_slow))
            assert costs.decode_seconds(1, 3) == pytest.approx(plain + 0.002 * (1 + is_slow))
    assert 10 <= num_plain < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odds", "first_row_seconds"), [(RANDOM, 0.0), (MIDDLING, 0.020)], ids=["random", "dear rows"]
)
def test_drafts_that_do_not_pay_cost_less_than_one_percent(
    odds: tuple[float, float], first_row_seconds: float
) -> None:
    simulation = Simulation(odds, first_row_seconds=first_row_seconds)
    result = simulation.run(Phase(2 * QUIET))
    assert result.speed > 0.99 / STEP
    assert result.share < 0.01


def test_draft_pauses_double_up_to_a_limit_until_drafts_pay() -> None:
    costs, now, pauses = DraftCosts(), 0, []
    for _ in range(7):
        for _ in range(2):
            costs.learn(4, 1.0, now)
        costs.refuse(now)
        begun = now
        while costs.seconds(4, 0.01, now) == 1.0:
            now += 1
        assert costs.seconds(4, 0.01, now) == pytest.approx(0.04)
        pauses.append(now - begun)
    assert pauses == [64, 128, 256, 512, 1024, 1024, 1024]
    for _ in range(20):
        costs.learn(4, 0.01, now)
    costs.refuse(now)
    assert not costs.is_trial_due(now + 63)
    assert costs.is_trial_due(now + 64)


def test_a_length_that_was_slow_is_forgotten_while_others_are_drafted() -> None:
    costs = DraftCosts()
    for _ in range(4):
        costs.learn(8, 9.0, 0)
    for _ in range(100):
        costs.learn(2, 0.002, 0)
    assert costs.seconds(8, 0.001, 0) == pytest.approx(0.008)


# The cost of a step, estimated from earlier steps.


CHANGE = 3.0


class Machine:
    """Simulates steps with known durations in seconds: 10, 0.5 for each sequence, 0.1 for each row
    of a draft, 0.25 for each token of a prompt, and `CHANGE` if the shape changes."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._shape: tuple[int, int, int] | None = None

    def run(self, num_decodes: int, num_drafts: int = 0, num_prefill_tokens: int = 0) -> None:
        shape = (num_decodes, num_decodes + num_drafts, num_prefill_tokens)
        seconds = 10 + num_decodes / 2 + num_drafts / 10 + num_prefill_tokens / 4
        seconds += CHANGE * (shape != self._shape)
        learn(
            self.costs,
            num_decodes,
            seconds,
            num_drafts=num_drafts,
            num_prefill_tokens=num_prefill_tokens,
        )
        self._shape = shape


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    for num_decodes in (1, 4, 8, 1):
        for _ in range(4):
            made.run(num_decodes)
    return made


def test_step_costs_are_unknown_before_any_measurement() -> None:
    machine = Machine()
    assert machine.costs.decode_seconds(1, 1) is None
    assert machine.costs.prefills.seconds(100, 0) is None
    assert machine.costs.shape_change_seconds == 0
    machine.run(1)
    machine.run(1)
    assert machine.costs.decode_seconds(1, 1) == 10.5
    assert machine.costs.decode_seconds(1, 4) is None, "nothing tells what further rows cost"


def test_step_costs_learn_rows_of_drafts(machine: Machine) -> None:
    for num_drafts in (4, 0, 8, 0, 4, 0, 8, 0):
        machine.run(1, num_drafts)
    costs = machine.costs
    assert costs.shape_change_seconds == pytest.approx(CHANGE)
    for num_drafts in (1, 4, 6, 8):
        expected = pytest.approx(10.5 + num_drafts / 10)
        assert costs.decode_seconds(1, 1 + num_drafts) == expected
    assert costs.decode_seconds(8, 12) == pytest.approx(14.4), "as the nearest number had them"


def test_cost_of_rows_is_estimated_from_prompts_without_drafts(machine: Machine) -> None:
    for _ in range(3):
        machine.run(4, 0, 64)
        machine.run(4, 0, 16)
    costs = machine.costs
    assert costs.prefills.seconds(40, 0) == pytest.approx(10 + CHANGE)
    assert costs.prefills.seconds(164, 0) == pytest.approx((16 + CHANGE) / 64 * 164)
    estimate = costs.decode_seconds(4, 8)
    assert estimate == pytest.approx(12 + 4 * (16 + CHANGE) / 64)


def test_a_first_measurement_that_is_far_too_slow_does_not_prevent_a_second(
    machine: Machine,
) -> None:
    for _ in range(4):
        machine.run(1, num_prefill_tokens=32)
    costs = machine.costs
    as_prompt = costs.decode_seconds(4, 9)
    learn(costs, 4, 500.0, num_drafts=5)
    assert costs.decode_seconds(4, 9) == as_prompt
    machine.run(4, 5)
    machine.run(4, 5)
    assert costs.decode_seconds(4, 9) == pytest.approx(14.0), "12.5 and what a change takes"


# A long prompt must not delay decoding streams for long; waiting requests have priority over short
# gaps.


BASE, TOKEN = 0.05, 0.0015
"""The seconds of the fake model's step, and of each of its tokens."""


class TimedModel(FakeModel):
    """A model whose steps advance its own clock."""

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
        learn(costs, num_decodes, seconds, num_prefill_tokens=num_prefill_tokens)
    return PrefillPacing(costs)


BUDGET = 256


def prompt(length: int = 1600, start: int = 0) -> Sequence:
    """Returns a prompt whose tokens before `start` are computed."""
    request = GenerationRequest("r", [1] * length, SamplingParams())
    made = Sequence(0, request, 0, token_limit=length + 9)
    made.num_computed_tokens = start
    return made


def test_prompt_of_less_than_a_second_is_not_split() -> None:
    """One second of a prompt's tokens, without the cached ones."""
    pacing = pacing_after(*[(4, 0, 0.001)] * 3, *[(4, 100, 0.101)] * 3)
    assert pacing.max_prefill_tokens(4, 4, prompt(1000), BUDGET) == BUDGET
    assert pacing.max_prefill_tokens(4, 4, prompt(1020), BUDGET) < BUDGET
    cached = prompt(4000, 3600)
    cached.num_cached_tokens = 3600
    assert pacing.max_prefill_tokens(4, 4, cached, BUDGET) == BUDGET


def run_streams(
    num_streams: int,
    num_late: int,
    late_length: int,
    *,
    base: float = BASE,
    token_seconds: float = TOKEN,
    late_priority: int = 0,
) -> TimedModel:
    """Runs streams that decode, and later prompts, until the prompts are computed."""
    model = TimedModel()
    model.base, model.token_seconds = base, token_seconds
    model.allocate_cache(4096)
    engine = full_engine(
        model,
        EngineConfig(enable_prompt_lookup=False, enable_prefix_caching=False),
        num_blocks=4096,
        max_model_len=2048,
        clock=lambda: model.now,
    )
    for i in range(num_streams):
        engine.add(greedy(f"stream {i}", [i, 2, 3], max_tokens=400))
    for _ in range(20):
        engine.step()
    del model.num_tokens_per_step[:]
    for i in range(num_late):
        late = greedy(f"late {i}", [i] * late_length, max_tokens=400)
        engine.add(replace(late, priority=late_priority))
    while engine.scheduler.waiting or any(
        sequence.num_uncomputed_tokens > 1 for sequence in engine.scheduler.running
    ):
        engine.step()
    return model


@pytest.mark.parametrize("num_streams", [1, 4, 16])
def test_a_long_prompt_at_most_doubles_the_steps_of_those_who_decode(num_streams: int) -> None:
    model = run_streams(num_streams, 1, 1500)
    undisturbed = BASE + TOKEN * num_streams
    first, *further = model.step_seconds
    assert max(further) <= 2.05 * undisturbed
    assert first <= 2.5 * undisturbed
    assert sum(model.num_tokens_per_step) >= 1500


@pytest.mark.parametrize("num_streams", [1, 8])
def test_steps_that_no_reader_sees_are_filled(num_streams: int) -> None:
    """Although they take ten times as long as without the prompt."""
    model = run_streams(num_streams, 1, 1900, base=0.003, token_seconds=0.0006)
    whole = model.step_seconds[1:-1]
    assert max(whole) <= 1.05 * UNSEEN_SECONDS
    assert min(whole) >= 0.7 * UNSEEN_SECONDS


def test_prompts_that_wait_for_each_other_get_the_whole_budget() -> None:
    """Until only the last one remains: then decoding streams limit it."""
    model = run_streams(8, 4, 900)
    undisturbed = BASE + TOKEN * 12
    num_crowded = 3 * 900 // 248
    assert model.num_tokens_per_step[:num_crowded] == [256] * num_crowded
    assert max(model.step_seconds[num_crowded + 1 :]) <= 2.05 * undisturbed
    assert len(model.num_tokens_per_step) > num_crowded + 5


@pytest.mark.slow
def test_a_crowd_of_lower_priority_waits_for_those_who_decode() -> None:
    model = run_streams(8, 4, 900, late_priority=1)
    undisturbed = BASE + TOKEN * 12
    assert max(model.step_seconds[1:]) <= 2.05 * undisturbed


def test_short_prompts_are_not_held_back() -> None:
    """Each delays decoding streams once: small pieces would cost further steps."""
    model = run_streams(8, 1, 240)
    assert model.num_tokens_per_step[0] == 8 + 240


def test_a_long_prompt_advances_however_dear_its_tokens_are() -> None:
    """In chunks that are worth a step, though decoding takes more than twice as long meanwhile."""
    num_streams = 4
    model = run_streams(num_streams, 1, 600, token_seconds=BASE)
    *whole, last = model.num_tokens_per_step
    assert set(whole[1:]) == {num_streams + MIN_PREFILL_TOKENS}
    assert last <= num_streams + MIN_PREFILL_TOKENS
