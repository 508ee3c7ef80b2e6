"""What a step would cost, by the steps that have run."""

from __future__ import annotations

import pytest

from fastovms.engine.scheduling.step_costs import StepCosts

CHANGE = 3.0


class Machine:
    """Steps whose seconds are known: 10, a half for each sequence, a tenth for each row of a draft,
    a quarter for each token of a prompt, and `CHANGE` where the shape changes."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._shape: tuple[int, int, int] | None = None

    def run(self, num_decodes: int, num_drafts: int = 0, num_prefill_tokens: int = 0) -> None:
        shape = (num_decodes, num_decodes + num_drafts, num_prefill_tokens)
        seconds = 10 + num_decodes / 2 + num_drafts / 10 + num_prefill_tokens / 4
        self.costs.learn(
            num_decodes=num_decodes,
            num_rows=num_decodes + num_drafts,
            num_prefill_tokens=num_prefill_tokens,
            seconds=seconds + CHANGE * (shape != self._shape),
        )
        self._shape = shape


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    for num_decodes in (1, 4, 8, 1):
        for _ in range(4):
            made.run(num_decodes)
    return made


def test_nothing_is_known_at_first() -> None:
    machine = Machine()
    assert machine.costs.decode_seconds(1, 1) is None
    assert machine.costs.prefills.seconds(100, 0) is None
    assert machine.costs.shape_change_seconds == 0
    machine.run(1)
    machine.run(1)
    assert machine.costs.decode_seconds(1, 1) == 10.5
    assert machine.costs.decode_seconds(1, 4) is None, "nothing tells what further rows cost"


@pytest.mark.parametrize(("num_sequences", "seconds"), [(1, 10.5), (2, 11.0), (6, 13.0), (8, 14.0)])
def test_decodes_without_drafts(machine: Machine, num_sequences: int, seconds: float) -> None:
    assert machine.costs.decode_seconds(num_sequences, num_sequences) == pytest.approx(seconds)


def test_a_change_of_shape_is_learned_apart(machine: Machine) -> None:
    assert machine.costs.shape_change_seconds == pytest.approx(CHANGE)


def test_rows_of_drafts(machine: Machine) -> None:
    for num_drafts in (4, 0, 8, 0, 4, 0, 8, 0):
        machine.run(1, num_drafts)
    costs = machine.costs
    assert costs.shape_change_seconds == pytest.approx(CHANGE)
    for num_drafts in (1, 4, 6, 8):
        expected = pytest.approx(10.5 + num_drafts / 10)
        assert costs.decode_seconds(1, 1 + num_drafts) == expected
    assert costs.decode_seconds(8, 12) == pytest.approx(14.4), "as the nearest number had them"


def test_tokens_of_prompts_tell_what_rows_cost_where_no_drafts_have_been(machine: Machine) -> None:
    for _ in range(3):
        machine.run(4, 0, 64)
        machine.run(4, 0, 16)
    costs = machine.costs
    assert costs.prefills.seconds(40, 0) == pytest.approx(10 + CHANGE)
    assert costs.prefills.seconds(164, 0) == pytest.approx((16 + CHANGE) / 64 * 164)
    estimate = costs.decode_seconds(4, 8)
    assert estimate == pytest.approx(12 + 4 * (16 + CHANGE) / 64)


def test_what_a_prompt_alone_costs_does_not_hold_the_weights(machine: Machine) -> None:
    for _ in range(3):
        machine.run(0, 0, 64)
    assert machine.costs.prefills.seconds(64, 0) == pytest.approx(64 / 4 - 0.5)


def test_drafts_before_any_plain_step_teach_nothing() -> None:
    machine = Machine()
    machine.run(1, 4)
    assert machine.costs.decode_seconds(1, 5) is None


def test_a_first_measurement_that_is_far_too_slow_does_not_prevent_a_second(
    machine: Machine,
) -> None:
    for _ in range(4):
        machine.run(1, num_prefill_tokens=32)
    costs = machine.costs
    as_prompt = costs.decode_seconds(4, 9)
    costs.learn(num_decodes=4, num_rows=9, num_prefill_tokens=0, seconds=500.0)
    assert costs.decode_seconds(4, 9) == as_prompt
    machine.run(4, 5)
    machine.run(4, 5)
    assert costs.decode_seconds(4, 9) == pytest.approx(14.0), "12.5 and what a change takes"
