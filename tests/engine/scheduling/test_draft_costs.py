"""What drafts are estimated to cost after something that was no fault of theirs has made steps slow
for a while."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pytest

from fastovms.engine.drafting.draft_lengths import draft_lengths
from fastovms.engine.scheduling.draft_costs import DraftCosts
from fastovms.engine.scheduling.step_costs import StepCosts

STEP, ROW = 0.020, 0.005
GOOD, MIDDLING, RANDOM = (0.6, 0.97), (0.2, 0.5), (0.01, 0.1)
"""Between which chances the next token of a guess is right."""

QUIET = 5000
RECOVERY = 1536
"""Steps until drafts are worth what they were: those after which steps without drafts are measured
anew, the longest pause of those that do not pay, and some."""


class Phase(NamedTuple):
    """Steps of one stream, on a machine that takes so much longer for all, and for the context."""

    num_steps: int
    slowdown: float = 1.0
    context_seconds: float = 0.0


class Result(NamedTuple):
    """Of one phase: the share of steps with drafts, and tokens a second."""

    share: float
    speed: float


class Simulation:
    """Steps of which nine in ten have a guess, which costs what it costs and is right as often as
    it says."""

    def __init__(
        self,
        odds: tuple[float, float],
        *,
        change_seconds: float = 0.0,
        slow_drafts: Collection[int] = (),
        first_row_seconds: float = 0.0,
    ) -> None:
        self._costs = StepCosts()
        self._odds = odds
        self._change_seconds = change_seconds
        self._slow_drafts = slow_drafts
        self._first_row_seconds = first_row_seconds
        self._rng = np.random.default_rng(0)
        self._num_drafts = 0
        self._last = 0
        for _ in range(4):
            self._costs.learn(
                num_decodes=0,
                num_rows=0,
                num_prefill_tokens=256,
                prefill_context=128,
                seconds=256 * ROW,
            )

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
        if count:
            self._num_drafts += 1
            seconds += 0.2 * (self._num_drafts in self._slow_drafts)
        self._costs.learn(num_decodes=1, num_rows=1 + count, num_prefill_tokens=0, seconds=seconds)
        return gain, seconds


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


@pytest.mark.parametrize("odds", [GOOD, MIDDLING], ids=["good", "middling"])
@pytest.mark.parametrize("slow_drafts", [(1, 2), (2, 3), range(1, 8)], ids=str)
def test_slow_drafts_at_the_start_are_not_held_against_those_that_follow(
    odds: tuple[float, float], slow_drafts: Collection[int]
) -> None:
    undisturbed = Simulation(odds).run(Phase(QUIET))
    simulation = Simulation(odds, slow_drafts=slow_drafts)
    simulation.run(Phase(RECOVERY))
    result = simulation.run(Phase(QUIET))
    assert result.share == pytest.approx(undisturbed.share, abs=0.05)
    assert result.speed > 0.99 * undisturbed.speed


def test_while_all_steps_draft_few_are_spared_to_measure_those_without() -> None:
    chances, costs = [np.array([0.9, 0.8])], StepCosts()
    num_plain = 0
    for step in range(10_000):
        (count,) = draft_lengths(chances, costs, num_sequences=1, num_rows=1)
        num_plain += count == 0
        is_slow = 2000 <= step < 4000
        costs.learn(
            num_decodes=1,
            num_rows=1 + count,
            num_prefill_tokens=0,
            seconds=(0.020 + 0.001 * count) * (1 + is_slow),
        )
        if step == 0:
            costs.learn(num_decodes=0, num_rows=0, num_prefill_tokens=256, seconds=0.3)
        if step in (1999, 3999, 9999):
            plain = costs.decode_seconds(1, 1)
            assert plain == pytest.approx(0.020 * (1 + is_slow))
            assert costs.decode_seconds(1, 3) == pytest.approx(plain + 0.002 * (1 + is_slow))
    assert 10 <= num_plain < 100


@pytest.mark.parametrize(
    ("odds", "first_row_seconds"), [(RANDOM, 0.0), (MIDDLING, 0.020)], ids=["random", "dear rows"]
)
def test_what_does_not_pay_costs_less_than_one_in_a_hundred(
    odds: tuple[float, float], first_row_seconds: float
) -> None:
    simulation = Simulation(odds, first_row_seconds=first_row_seconds)
    result = simulation.run(Phase(2 * QUIET))
    assert result.speed > 0.99 / STEP
    assert result.share < 0.01


def test_pauses_grow_as_long_as_nothing_pays_and_are_short_again_once_it_does() -> None:
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


def test_a_measurement_between_refusals_begins_the_pause_anew() -> None:
    costs = DraftCosts()
    costs.learn(4, 1.0, 0)
    for now in range(0, 600, 60):
        costs.learn(4, 1.0, now)
        costs.refuse(now + 1)
        assert costs.seconds(4, 0.01, now + 60) == 1.0


def test_a_length_that_was_slow_is_forgotten_while_others_are_drafted() -> None:
    costs = DraftCosts()
    for _ in range(4):
        costs.learn(8, 9.0, 0)
    for _ in range(100):
        costs.learn(2, 0.002, 0)
    assert costs.seconds(8, 0.001, 0) == pytest.approx(0.008)
