"""Tests of `fastovms/engine/engine.py`."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.engine.blocks import BlockManager
from fastovms.engine.engine import Engine, SequenceFactory
from fastovms.engine.extensions import EngineExtensions
from fastovms.engine.model.kv_cache import MAX_DRAFT_STATE_BYTES, States
from fastovms.errors import RequestError
from fastovms.params import (
    BeamSearch,
    FinishReason,
    GenerationRequest,
    SamplingParams,
)
from fastovms.parts.beams import BeamSearches
from tests.engine.engines import fake_engine, greedy, run, text, texts
from tests.engine.fake_model import FakeModel, continue_greedily
from tests.engine.random_operations import RandomOperations

PROMPT = [1, 2, 3]


@pytest.fixture
def maker() -> SequenceFactory:
    blocks = BlockManager(5, 4, enable_prefix_caching=False)
    extensions = EngineExtensions(searches=BeamSearches)
    return SequenceFactory(
        blocks, max_model_len=20, max_num_seqs=4, extensions=extensions, new_seed=lambda: 7
    )


def request(prompt: list[int] = PROMPT, **params: Any) -> GenerationRequest:
    return GenerationRequest("r", prompt, SamplingParams(**params))


def test_samples_share_a_prompt_and_draw_otherwise(maker: SequenceFactory) -> None:
    first, *others = maker.make(request(n=3, max_tokens=5))
    assert [sample.parent for sample in others] == [first, first]
    assert [sample.index for sample in (first, *others)] == [0, 1, 2]
    assert len({sample.seed for sample in (first, *others)}) == 3
    assert {sample.token_limit for sample in (first, *others)} == {len(PROMPT) + 5}
    [again] = maker.make(request(seed=7))
    assert again.seed == first.seed
    assert again.seq_id == 3


def test_samples_have_tokens_and_processors_of_their_own(maker: SequenceFactory) -> None:
    asked = replace(request(n=2, repetition_penalty=1.5), generated_token_ids=(4, 5))
    first, second = maker.make(asked)
    assert first.token_ids == second.token_ids == array("q", [*PROMPT, 4, 5])
    assert first.token_ids is not second.token_ids
    [mine], [other] = first.processors, second.processors
    assert mine is not other
    logits = np.ones(9, np.float32)
    mine(logits, array("q", [*PROMPT, 8]))
    logits = np.ones(9, np.float32)
    other(logits, array("q", PROMPT))
    assert np.flatnonzero(logits != 1).tolist() == PROMPT


@pytest.mark.parametrize(
    ("width", "num_prompt_tokens", "message"),
    [
        (5, 3, "5 beams cannot run: --max-num-seqs allows 4 sequences"),
        (4, 19, "no room for 4 beams over a prompt of 19"),
    ],
)
def test_search_that_could_never_run_is_refused(
    maker: SequenceFactory, width: int, num_prompt_tokens: int, message: str
) -> None:
    search = request(list(range(num_prompt_tokens)), beam_search=BeamSearch(width))
    with pytest.raises(RequestError, match=message):
        maker.validate(search)
    maker.validate(replace(search, params=SamplingParams(n=width)))


# The engine with a fake model, whose next token depends on every token in the cache.


def make_engine(
    *,
    block_size: int = 4,
    rope_switch_len: int | None = None,
    states: States | None = None,
    **options: Any,
) -> tuple[Engine, FakeModel]:
    model = FakeModel(block_size, rope_switch_len, states)
    return fake_engine(model, **options), model


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(97) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def test_seeded_samples_differ_and_repeat() -> None:
    def draw(seed: int) -> list[list[int]]:
        engine, _ = make_engine()
        params = SamplingParams(temperature=8, seed=seed, n=3, max_tokens=12)
        noise = [greedy(f"{i}", prompt, max_tokens=9) for i, prompt in enumerate(prompts(5))]
        said = texts(engine, GenerationRequest("r", [1, 2, 3], params), *noise)
        return [said["r", index] for index in range(3)]

    first = draw(5)
    assert first == draw(5)
    assert first != draw(6)
    assert len(set(map(tuple, first))) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 8, "seed": 7, "top_k": 20},
        {"temperature": 8, "seed": 7, "frequency_penalty": 1.5, "repetition_penalty": 1.2},
        {"temperature": 8, "seed": 7, "min_tokens": 9, "eos_token_ids": frozenset(range(60))},
        {"bad_words_token_ids": ((1, 2), (50,)), "logprobs": 2},
        {"max_tokens": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("config", [{}, {"num_blocks": 16, "max_num_batched_tokens": 7}], ids=str)
def test_resumed_request_continues_with_the_same_tokens(
    params: dict[str, object], config: dict[str, int]
) -> None:
    asked = greedy("r", prompts(1)[0], **{"max_tokens": 25, **params})
    whole = run(make_engine(**config)[0], asked)["r", 0]
    said = text(whole)
    everything = [entry for output in whole for entry in output.logprobs]
    engine, _ = make_engine(**config)
    resumed = [
        replace(asked, request_id=str(position), generated_token_ids=said[:position])
        for position in range(1, len(said))
    ]
    for (id, _), outputs in run(engine, *resumed).items():
        position = int(id)
        assert text(outputs) == said[position:]
        assert outputs[-1].finish_reason is whole[-1].finish_reason
        assert outputs[-1].num_generated_tokens == whole[-1].num_generated_tokens
        assert outputs[0].num_generated_tokens == position + len(outputs[0].token_ids)
        told = [entry for output in outputs for entry in output.logprobs]
        assert told == everything[len(everything) - len(told) :]
    assert engine.blocks.num_free_blocks == engine.blocks.num_blocks


def test_ends_at_eos_which_is_counted_but_not_shown() -> None:
    expected = continue_greedily([5, 6, 7], 10)
    stop_at = expected.index(expected[4])
    ends = {"eos_token_ids": frozenset({expected[4]}), "max_tokens": 10}
    engine, _ = make_engine()
    outputs = run(
        engine,
        greedy("r", [5, 6, 7], **ends),
        greedy("ignore", [5, 6, 7], ignore_eos=True, **ends),
    )
    assert text(outputs["r", 0]) == expected[:stop_at]
    assert outputs["r", 0][-1].finish_reason is FinishReason.STOP
    assert outputs["r", 0][-1].num_generated_tokens == stop_at + 1
    assert text(outputs["ignore", 0]) == expected


@pytest.mark.parametrize(
    ("params", "is_told"),
    [
        ({"eos_token_ids": "end"}, False),
        ({"stop_token_ids": "end"}, True),
        ({"eos_token_ids": "end", "stop_token_ids": "end"}, False),
        ({"eos_token_ids": "end", "stop_token_ids": "end", "ignore_eos": True}, True),
    ],
)
@pytest.mark.parametrize("drafts", [False, True])
def test_log_probabilities_are_those_of_the_tokens_and_the_stop_token(
    params: dict[str, object], is_told: bool, drafts: bool
) -> None:
    prompt = [1, 2, 3] * 3
    said = continue_greedily(prompt, 4)
    assert said.index(said[3]) == 3
    end = frozenset({said[3]})
    params = {name: end if value == "end" else value for name, value in params.items()}
    engine, _ = make_engine(enable_prompt_lookup=drafts)
    engine.add(greedy("r", prompt, logprobs=1, **params))
    (outputs,) = run(engine).values()
    assert text(outputs) == said[:3]
    assert outputs[-1].stop_token_id == (said[3] if is_told else None)
    entries = [entry for output in outputs for entry in output.logprobs]
    assert [entry.token_id for entry in entries] == said[: 3 + is_told]


def test_text_ends_at_the_context_length() -> None:
    engine, _ = make_engine(max_model_len=16)
    (outputs,) = run(engine, greedy("r", list(range(10)))).values()
    assert len(text(outputs)) == 6
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("num_steps", [0, 1, 3, 8])
def test_aborted_request_frees_its_blocks_at_any_step(num_steps: int) -> None:
    engine, _ = make_engine(max_num_batched_tokens=8)
    engine.add(greedy("kept", [1, 2, 3], max_tokens=30))
    engine.add(greedy("gone", list(range(40)), max_tokens=20, n=2))
    for _ in range(num_steps):
        engine.step()
    for request_id, index in (("gone", 0), ("gone", None), ("gone", None), ("never seen", None)):
        engine.abort(request_id, index)
        engine.check()
    assert list(run(engine)) == [("kept", 0)]
    assert engine.blocks.num_free_blocks == engine.blocks.num_blocks


def states_for(num_drafts: int) -> States:
    """Returns states of such a size that a step may have the given number of drafts."""
    return States(MAX_DRAFT_STATE_BYTES // num_drafts if num_drafts else MAX_DRAFT_STATE_BYTES + 1)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(12, 40),
    switch_len=st.one_of(st.none(), st.integers(5, 30)),
    states=st.sampled_from([None, *map(states_for, (0, 3, 64))]),
    config=st.fixed_dictionaries(
        {
            "max_num_seqs": st.integers(1, 8),
            "max_num_batched_tokens": st.integers(1, 40),
            "enable_prefix_caching": st.booleans(),
            "enable_prompt_lookup": st.booleans(),
        }
    ),
)
def test_random_operations_never_lose_a_block_or_a_token(
    seed: int,
    num_blocks: int,
    switch_len: int | None,
    states: States | None,
    config: dict[str, Any],
) -> None:
    engine, _ = make_engine(
        num_blocks=num_blocks,
        max_model_len=num_blocks * 4,
        rope_switch_len=switch_len if states is None else None,
        states=states,
        **config,
    )
    RandomOperations(engine, random.Random(seed)).run(120)


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [None, 0, 3, 64])
def test_thousands_of_operations_never_lose_a_block_or_a_token(num_drafts: int | None) -> None:
    """For models without states, and with states for the given numbers of drafts."""
    states = None if num_drafts is None else states_for(num_drafts)
    engine, _ = make_engine(
        num_blocks=20, max_model_len=80, max_num_batched_tokens=32, states=states
    )
    RandomOperations(engine, random.Random(0)).run(3_000)
    assert engine.counters.num_preemptions > 30
    assert engine.counters.num_prefix_cache_hits > 1000
    assert (engine.counters.num_accepted_tokens > 300) is (num_drafts != 0)


def test_a_request_that_breaks_sampling_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = make_engine()
    broken = greedy("broken", [1, 2], logit_bias=((10**6, 1.0),))
    outputs = run(engine, broken, greedy("fine", [1, 2], max_tokens=5))
    assert outputs["broken", 0][-1].finish_reason is FinishReason.ERROR
    assert "IndexError" in (outputs["broken", 0][-1].error or "")
    assert text(outputs["fine", 0]) == continue_greedily([1, 2], 5)
    assert "request broken failed" in caplog.text


def test_prompt_scores_come_even_if_the_first_token_ends_it() -> None:
    ends = frozenset(continue_greedily([5, 6, 7], 1))
    asked = greedy("r", [5, 6, 7], eos_token_ids=ends, prompt_logprobs=0)
    (outputs,) = run(make_engine()[0], asked).values()
    assert len(outputs[0].prompt_logprobs) == 3
    assert text(outputs) == []
