"""Tests of `fastovms/engine/sampler.py`."""

from __future__ import annotations

from array import array
from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine import sampler as sampler_module
from fastovms.engine.model.model import RawLogits
from fastovms.engine.processors import logits_processors
from fastovms.engine.sampler import Drawn, Sampler, sample_seed, token_logprobs
from fastovms.engine.scheduler import SampledTokens
from fastovms.engine.sequence import DrawState, Sequence, SequenceGroup
from fastovms.params import ALL_LOGPROBS, GREEDY_TEMPERATURE, GenerationRequest, SamplingParams
from tests.engine.bf16 import as_bf16, bf16_bits


def test_samples_and_requests_draw_apart_and_always_alike() -> None:
    seeds = {sample_seed(seed, index) for seed in (0, 1, -1, 2**63) for index in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert sample_seed(7, 3) == sample_seed(7, 3) == sample_seed(7 + 2**64, 3)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 999, 1000, ALL_LOGPROBS])
def test_token_logprobs_equal_a_full_log_softmax(num_top: int) -> None:
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


def test_impossible_token_has_logprob_minus_infinity_and_last_rank() -> None:
    logits = np.array([0, -np.inf, 0], np.float32)
    result = token_logprobs(logits, 1, 1)
    assert result.logprob == -np.inf
    assert result.rank == 3


PROMPT = [1, 2, 2]
INF = np.inf


def process(
    params: SamplingParams, generated: list[int], logits: list[float]
) -> NDArray[np.float32]:
    """Applies the processors as the sampler does: once for each token."""
    processors = logits_processors(params, array("q", PROMPT))
    row = np.array(logits, np.float32)
    for length in range(len(generated) + 1):
        row = np.array(logits, np.float32)
        for processor in processors:
            processor(row, array("q", PROMPT + generated[:length]))
    return row


@pytest.mark.parametrize(
    ("params", "generated", "expected"),
    [
        (SamplingParams(logit_bias=((0, 5.0), (4, -INF))), [], [6, 1, -1, 2, -INF]),
        (SamplingParams(allowed_token_ids=(1, 3)), [], [-INF, 1, -INF, 2, -INF]),
        (SamplingParams(bad_words_token_ids=((3,), (1, 0))), [], [1, 1, -1, -INF, 0]),
        (SamplingParams(bad_words_token_ids=((3,), (1, 0))), [4, 1], [-INF, 1, -1, -INF, 0]),
        # A bad word does not begin in the prompt.
        (SamplingParams(bad_words_token_ids=((2, 0),)), [], [1, 1, -1, 2, 0]),
        (
            SamplingParams(
                min_tokens=2, eos_token_ids=frozenset({0}), stop_token_ids=frozenset({3})
            ),
            [4],
            [-INF, 1, -1, -INF, 0],
        ),
        (SamplingParams(min_tokens=2, eos_token_ids=frozenset({0})), [4, 4], [1, 1, -1, 2, 0]),
        (SamplingParams(repetition_penalty=2.0), [], [1, 0.5, -2, 2, 0]),
        (SamplingParams(repetition_penalty=2.0), [3], [1, 0.5, -2, 1, 0]),
        (SamplingParams(frequency_penalty=0.5), [3, 3, 0], [0.5, 1, -1, 1, 0]),
        (SamplingParams(presence_penalty=-1), [3, 3, 0], [2, 1, -1, 3, 0]),
        (
            SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.5),
            [3, 3],
            [1, 0.5, -2, -1.5, 0],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_processors_apply_biases_bans_min_tokens_and_penalties(
    params: SamplingParams, generated: list[int], expected: list[float]
) -> None:
    assert process(params, generated, [1, 1, -1, 2, 0]).tolist() == expected


def test_ordinary_request_has_no_logits_processors() -> None:
    params = SamplingParams(temperature=0.3, top_k=5, top_p=0.5, eos_token_ids=frozenset({1}))
    assert logits_processors(params, array("q", PROMPT)) == ()


@pytest.mark.slow
@given(
    generated=st.lists(st.integers(0, 299), max_size=400),
    prompt=st.lists(st.integers(0, 299), max_size=40),
    repetition=st.sampled_from([1.0, 1.5]),
)
def test_penalties_count_every_token_however_many(
    generated: list[int], prompt: list[int], repetition: float
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, frequency_penalty=1.0, presence_penalty=0.25
    )
    (penalties,) = logits_processors(params, array("q", prompt))
    logits = np.linspace(-2, 2, 300, dtype=np.float32)
    half = len(generated) // 2
    penalties(logits.copy(), array("q", prompt + generated[:half]))
    other = copy(penalties)
    other(logits.copy(), array("q", [*prompt, *generated[:half], 7]))
    row = logits.copy()
    penalties(row, array("q", prompt + generated))
    counts = np.bincount(np.array(generated, np.int64), minlength=300).astype(np.float32)
    seen = np.isin(np.arange(300), prompt + generated)
    expected = logits.copy()
    repeated = np.where(logits > 0, logits / np.float32(repetition), logits * repetition)
    expected[seen] = repeated[seen]
    expected -= counts + np.float32(0.25) * (counts > 0)
    np.testing.assert_allclose(row, expected, rtol=1e-6)


Floats = NDArray[np.float32]

VOCAB_SIZE = 700


def sequence_of(settings: dict[str, Any], seed: int = 0, num_tokens: int = 1) -> Sequence:
    params = SamplingParams(**settings)
    request = GenerationRequest("r", range(num_tokens), params)
    processors = logits_processors(params, array("q", range(num_tokens)))
    return Sequence(0, request, 0, token_limit=99, drawing=DrawState(seed, processors))


def sample(
    logits: RawLogits, sequences: list[Sequence], sampler: Sampler | None = None
) -> list[Drawn]:
    sampled = [SampledTokens(sequence, 0) for sequence in sequences]
    with np.errstate(all="ignore"):
        return (sampler or Sampler(1)).draw(sampled, logits)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": GREEDY_TEMPERATURE},
    {},
    {"top_k": 3, "top_p": 0.9},
    {"min_p": 0.1, "temperature": 0.7},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 1.5, "logprobs": 2, "temperature": 0},
    {"logprobs": 2},
    {"logit_bias": ((3, 2.5), (4, -2.5)), "top_p": 0.8},
    {"logit_bias": ((3, 2.5),), "logprobs": 0},
]


def crowd() -> list[Sequence]:
    return [sequence_of(SETTINGS[i % len(SETTINGS)], i, 1 + i // 7) for i in range(40)]


def crowd_logits() -> Floats:
    return as_bf16(np.random.default_rng(0).normal(0, 2, (40, VOCAB_SIZE)).astype(np.float32))


def alone() -> list[Drawn]:
    return [sample(row[None], [s])[0] for row, s in zip(crowd_logits(), crowd(), strict=True)]


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("bytes_at_a_time", [1, 4000, 10_000, 2**20])
@pytest.mark.parametrize("prepare", [np.ascontiguousarray, bf16_bits])
def test_a_row_is_drawn_from_in_a_crowd_as_alone(
    monkeypatch: pytest.MonkeyPatch, num_threads: int, bytes_at_a_time: int, prepare: Any
) -> None:
    for name in ("_THREAD_BYTES", "_GREEDY_THREAD_BYTES", "_COPIED_BYTES"):
        monkeypatch.setattr(sampler_module, name, bytes_at_a_time)
    sampler = Sampler(num_threads)
    expected = alone()
    assert len(set(expected)) > 20
    for _ in range(3):
        assert sample(prepare(crowd_logits()), crowd(), sampler) == expected


def test_large_batch_is_drawn_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "_THREAD_BYTES", 1)
    sampler = Sampler(2)
    threads = []
    submit = sampler._others.submit
    monkeypatch.setattr(sampler._others, "submit", lambda f: threads.append(f) or submit(f))
    sample(crowd_logits(), crowd(), sampler)
    assert len(threads) > 0
    threads.clear()
    sample(crowd_logits()[:1], crowd()[:1], sampler)
    assert not threads


@pytest.mark.parametrize("prepare", [np.ascontiguousarray, bf16_bits])
def test_logits_whose_probabilities_are_wanted_are_left_alone(prepare: Any) -> None:
    logits = prepare(crowd_logits())
    before = logits.copy()
    sample(logits, crowd())
    for row, sequence in enumerate(crowd()):
        is_same = np.array_equal(logits[row], before[row])
        is_changeable = sequence.processors and sequence.params.logprobs is None
        assert is_same or (is_changeable and logits.dtype == np.float32)


def test_positions_decide_on_what_is_drawn() -> None:
    logits = np.zeros((200, VOCAB_SIZE), np.float32)
    drawn = sample(logits, [sequence_of({}, 5, 1 + i) for i in range(200)])
    assert len(set(drawn)) > 150
    assert len(set(sample(logits, [sequence_of({}, 5)] * 200))) == 1


def test_after_drafts_tokens_are_drawn_as_if_one_by_one() -> None:
    logits = crowd_logits()
    (first,) = sample(logits[:1], [sequence_of({}, 3, 10)])
    sampled = [SampledTokens(sequence_of({}, 3, 10), 2), SampledTokens(sequence_of({}, 3, 10), 0)]
    together = Sampler(1).draw(sampled, logits[[0, 1, 2, 0]])
    later = [sample(logits[i : i + 1], [sequence_of({}, 3, 10 + i)])[0] for i in (1, 2)]
    assert together == [first, *later, first]


def test_rows_that_depend_on_the_token_before_are_left_to_be_drawn_next() -> None:
    settings = {"repetition_penalty": 1.5, "temperature": 0.9}
    sequence = sequence_of(settings, 3, 4)
    logits = crowd_logits()[:3]
    sampled = [SampledTokens(sequence, 1), SampledTokens(sequence_of({}, 1), 0)]
    sampler = Sampler(1)
    assert sampler.draw(sampled, logits)[:2] == [None, None]
    for row in range(2):
        (expected,) = sample(logits[row : row + 1].copy(), [sequence])
        assert sampler.draw_next(sequence, logits[row]) == expected
        sequence.append(expected)  # type: ignore[arg-type]
    assert (logits == crowd_logits()[:3]).all()


def test_whole_number_settings_draw_as_floats() -> None:
    whole = sequence_of({"temperature": 1, "top_p": 1, "min_p": 0}, 5)
    assert sample(crowd_logits()[:1], [whole]) == sample(crowd_logits()[:1], [sequence_of({}, 5)])


def test_sampler_draws_nothing_for_beam_groups() -> None:
    beam = sequence_of({})
    beam.group = SequenceGroup(2)
    assert sample(crowd_logits()[:2], [beam, sequence_of({"temperature": 0})])[0] is None


class Fault:
    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        raise ValueError("at fault")


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_processor_that_fails_costs_only_its_own_request(logprobs: int | None) -> None:
    faulty = sequence_of({"logprobs": logprobs})
    faulty.processors = (Fault(),)
    sequences = crowd()
    sequences[5] = faulty
    drawn = sample(crowd_logits(), sequences)
    assert isinstance(drawn[5], ValueError)
    assert drawn[:5] + drawn[6:] == alone()[:5] + alone()[6:]
    with pytest.raises(ValueError, match="at fault"):
        Sampler(1).draw_next(faulty, crowd_logits()[0])


@pytest.mark.parametrize("eos_token_ids", [frozenset(), frozenset({600, 500})])
def test_banning_all_tokens_samples_an_end_token_or_token_zero(
    eos_token_ids: frozenset[int],
) -> None:
    bans = tuple((i,) for i in range(VOCAB_SIZE))
    settings = {"bad_words_token_ids": bans, "eos_token_ids": eos_token_ids}
    expected = [500 if eos_token_ids else 0]
    for temperature in (0, 1):
        sequence = sequence_of({**settings, "temperature": temperature})
        assert sample(crowd_logits()[:1], [sequence]) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_penalty_that_overflows_still_gives_a_token(seed: int) -> None:
    logits = np.linspace(-3, 3, VOCAB_SIZE, dtype=np.float32)[None]
    settings = {"repetition_penalty": 1e-46, "top_p": 0.5, "min_p": 0.5}
    (token_id,) = sample(logits, [sequence_of(settings, seed)])
    assert token_id in range(VOCAB_SIZE)
