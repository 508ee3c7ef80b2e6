"""Measures the speed of model variants, and chooses the fastest one."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from fastovms.config import DEFAULT_TOKEN_BUDGET
from fastovms.engine.model.model import Model
from fastovms.engine.model.step_inputs import StepInputs, StepLayout

NUM_SEQUENCES: Final = (1, 8, 32)
"""The numbers of sequences that decode concurrently in the measured loads, which have equal
weight."""

TOKEN_BUDGETS: Final = (DEFAULT_TOKEN_BUDGET, 512)

CONTEXT: Final = 192
PROMPT_CONTEXT: Final = 512
"""The number of tokens before a measured prompt chunk, so that its cost includes attention."""

MIN_GAIN: Final = 1.05
MIN_GAIN_OF_TWO: Final = 1.10
"""The minimum speedup of settings that need two copies of the weights over those that need one."""

MIN_ROUNDS: Final = 3

_PROMPT_TOKENS: Final = 128
_OUTPUT_TOKENS: Final = 64
_MIN_AGREEMENT: Final = 0.75
"""The fraction of rounds in which the faster settings must have been faster."""

_CALM: Final = 0.85
"""The minimum memory speed of a valid round, as a fraction of the fastest round's."""

_MAX_TRIES: Final = 4
"""The maximum number of attempts per valid round."""


class MeasuredStep(NamedTuple):
    """A step of `num_sequences` sequences that each compute `num_tokens` tokens after `context`
    tokens."""

    num_sequences: int
    context: int
    num_tokens: int


DECODES: Final = {n: MeasuredStep(n, CONTEXT, 1) for n in NUM_SEQUENCES}
PREFILLS: Final = {budget: MeasuredStep(1, PROMPT_CONTEXT, budget) for budget in TOKEN_BUDGETS}
LOAD_CASES: Final = (*DECODES.values(), PREFILLS[DEFAULT_TOKEN_BUDGET])
"""The steps by which settings are compared."""
BUDGET_CASES: Final = tuple(PREFILLS.values())

Times = dict[MeasuredStep, list[float]]
"""The seconds of each step, one value per round."""


@dataclass(frozen=True, slots=True)
class FastestWay:
    """The settings that were fastest in a measurement.

    Attributes:
        name: the name of the precisions.
        gain: the speed as a multiple of the default's.
    """

    name: str
    gain: float


def measure(
    models: Mapping[str, Model],
    cases: Sequence[MeasuredStep],
    clock: Callable[[], float],
    *,
    max_seconds: float,
    max_rounds: int,
    memory_speed: Callable[[], float] = lambda: 1.0,
) -> dict[str, Times]:
    """Returns the times of every step of every model, after a warm-up round. Replaces the models'
    KV caches. The models take turns within each round, so that other load on the machine affects
    all of them alike. Rounds in which memory was slow do not count.

    Args:
        memory_speed: returns the memory speed at the end of a round; 0 = the round is invalid.
            Rounds with slow memory are repeated a limited number of times.

    Returns:
        The times of as many complete rounds as fit into `max_seconds`. Fewer than `MIN_ROUNDS` are
            not conclusive.
    """
    end = clock() + max_seconds
    steps: list[tuple[str, MeasuredStep, Model, StepInputs]] = []
    for name, model in models.items():
        model.allocate_cache(max(_num_blocks(case, model.block_size) for case in cases))
        steps += [(name, case, model, inputs_of(case, model.block_size)) for case in cases]
    rounds: list[_Round] = []
    for number in range(_MAX_TRIES * max_rounds + 1):
        round_start = clock()
        seconds = []
        for _, _, model, inputs in steps:
            step_start = clock()
            if step_start > end:
                return _times(steps, rounds)
            model.infer(inputs)
            seconds.append(clock() - step_start)
        round_seconds = clock() - round_start
        speed = memory_speed()
        if number == 0:
            if clock() + MIN_ROUNDS * round_seconds > end:
                return _times(steps, rounds)  # the time is too short for the minimum of rounds
            continue
        rounds.append(_Round(speed, seconds))
        if len(_undisturbed(rounds)) == max_rounds or clock() + round_seconds > end:
            break
    return _times(steps, rounds)


class _Round(NamedTuple):
    """The seconds of all steps, in their order, and the memory speed of the round."""

    memory_speed: float
    seconds: Sequence[float]


def _undisturbed(rounds: Sequence[_Round]) -> list[_Round]:
    fastest = max((one.memory_speed for one in rounds), default=0.0)
    return [one for one in rounds if 0 < one.memory_speed >= _CALM * fastest]


def _times(
    steps: Sequence[tuple[str, MeasuredStep, Model, StepInputs]], rounds: Sequence[_Round]
) -> dict[str, Times]:
    times: dict[str, Times] = {}
    calm = _undisturbed(rounds)
    for index, (name, case, *_) in enumerate(steps):
        times.setdefault(name, {})[case] = [one.seconds[index] for one in calm]
    return times


def choose(
    default: str, ratios: Mapping[str, Sequence[float]], twice: Set[str] = frozenset()
) -> FastestWay | None:
    """Returns the fastest settings: the default unless others are clearly faster in most rounds;
    None = not enough rounds.

    Args:
        ratios: the speedup of each alternative over the default, per round; see `speed_ratios`.
        twice: the alternatives that need two copies of the weights.
    """
    if any(len(found) < MIN_ROUNDS for found in ratios.values()):
        return None
    best = FastestWay(default, 1.0)
    for name, found in ratios.items():
        needed = MIN_GAIN
        if name in twice and default not in twice:
            needed = MIN_GAIN_OF_TWO
        elif default in twice and name not in twice:
            needed = 1 / MIN_GAIN_OF_TWO
        gain = statistics.median(found)
        is_clear = is_mostly_above(min(needed, 1.0), found)
        if gain >= needed and is_clear and (best.name == default or gain > best.gain):
            best = FastestWay(name, gain)
    return best


def choose_token_budget(times: Times) -> int | None:
    """Returns the fastest token budget of a step, from the times of `BUDGET_CASES`; None = not
    enough rounds."""
    if _num_rounds(times) < MIN_ROUNDS:
        return None
    best = TOKEN_BUDGETS[0]
    for budget in TOKEN_BUDGETS[1:]:
        ratios = [
            (small / best) / (large / budget)
            for small, large in zip(times[PREFILLS[best]], times[PREFILLS[budget]], strict=True)
        ]
        if statistics.median(ratios) >= MIN_GAIN and is_mostly_above(1.0, ratios):
            best = budget
    return best


def _num_rounds(times: Times) -> int:
    return min(map(len, times.values()))


def speed_ratios(times: Times, reference: Times) -> list[float]:
    """Returns the speedup over the reference in each round: the geometric mean over the loads."""
    ratios = []
    for i in range(_num_rounds(times)):
        logs = [math.log(_load(reference, n, i) / _load(times, n, i)) for n in NUM_SEQUENCES]
        ratios.append(math.exp(statistics.fmean(logs)))
    return ratios


def _load(times: Times, num_sequences: int, i: int) -> float:
    """Returns the seconds for `num_sequences` requests with a prompt and an answer that arrive
    together, in round `i`."""
    budget = TOKEN_BUDGETS[0]
    prompts = num_sequences * _PROMPT_TOKENS / budget * times[PREFILLS[budget]][i]
    return prompts + _OUTPUT_TOKENS * times[DECODES[num_sequences]][i]


def is_mostly_above(bound: float, ratios: Sequence[float]) -> bool:
    """Returns whether a large majority of the ratios is above a bound, so that a few disturbed
    rounds do not decide."""
    return sum(ratio > bound for ratio in ratios) >= _MIN_AGREEMENT * len(ratios)


def _num_blocks(case: MeasuredStep, block_size: int) -> int:
    return case.num_sequences * -(-(case.context + case.num_tokens) // block_size)


def inputs_of(case: MeasuredStep, block_size: int) -> StepInputs:
    """Returns the inputs of a step over the first blocks of the KV cache. All tokens have one id,
    which every vocabulary has; the time does not depend on tokens or cache content."""
    end = case.context + case.num_tokens
    num_blocks = -(-end // block_size)
    layout = StepLayout(block_size)
    token_ids = array("q", (0,)) * end
    last = array("q")
    for number in range(case.num_sequences):
        first = number * num_blocks
        blocks = array("i", range(first, first + num_blocks))
        last.append(layout.add(token_ids, case.context, end, blocks))
    return layout.finish(last)
