"""Beam searches in the engine's cache: shared blocks, aborts, preemption."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.errors import RequestError
from fastovms.params import BeamSearch, EarlyStopping
from tests.engine.beam_searches import (
    Outputs,
    RandomModel,
    beam_request,
    found_by,
    make_engine,
    random_prompts,
    run,
    search_alone,
    step,
)
from tests.engine.engines import greedy
from tests.engine.fake_model import VOCAB_SIZE

ENDLESS: dict[str, Any] = {"eos_token_ids": frozenset(), "max_tokens": 8}


def test_beams_share_what_they_have_in_common() -> None:
    """Without sharing, 4 beams of 48 tokens would need twice as many blocks."""
    engine = make_engine(num_blocks=24)
    request = beam_request(
        "r", list(range(40)), BeamSearch(4), max_tokens=8, eos_token_ids=frozenset()
    )
    assert found_by(run(engine, request), request) == search_alone(request)
    assert engine.counters.num_preemptions == 0
    model = engine._model
    assert isinstance(model, RandomModel)
    assert 0 < model.num_copies <= 3 * 8


def test_a_search_goes_on_while_one_of_its_samples_is_wanted() -> None:
    request = beam_request("r", [1, 2, 3], BeamSearch(4), n=3)
    engine = make_engine()
    engine.add(request)
    engine.step()
    engine.abort("r", 0)
    engine.abort("r", 2)
    outputs = run(engine)
    assert {key: o.token_ids for key, o in outputs.items()} == {("r", 1): search_alone(request)[1]}
    engine.add(request)
    engine.step()
    for index in range(3):
        engine.abort("r", index)
        engine.check()
    assert not engine.has_work


@pytest.mark.parametrize(
    ("config", "num_beams", "message"),
    [
        ({"max_num_seqs": 4}, 5, "allows 4 sequences"),
        ({"max_num_batched_tokens": 3}, 4, "allows 3 sequences"),
        ({"num_blocks": 6}, 5, "no room for 5 beams"),
    ],
    ids=str,
)
def test_beams_that_could_never_run_are_refused(
    config: dict[str, int], num_beams: int, message: str
) -> None:
    engine = make_engine(**config)
    with pytest.raises(RequestError, match=message) as caught:
        engine.validate(beam_request("r", list(range(9)), BeamSearch(num_beams)))
    assert caught.value.param == "best_of"
    request = beam_request("r", list(range(9)), BeamSearch(num_beams - 1), ignore_eos=True)
    engine.validate(request)
    outputs = run(engine, request)
    assert all(output.token_ids for output in outputs.values())


def test_beams_that_come_back_share_their_prompt_again() -> None:
    """A sample that grows preempts them; without sharing they would never fit again."""
    engine = make_engine(num_blocks=24, enable_prefix_caching=False)
    request = beam_request(
        "r", list(range(40)), BeamSearch(4), eos_token_ids=frozenset(), max_tokens=8
    )
    outputs = run(engine, greedy("s", [1] * 28, max_tokens=20), request)
    assert engine.counters.num_preemptions >= 4
    assert found_by(outputs, request) == search_alone(request)


def test_request_of_higher_rank_does_not_split_a_group_of_beams() -> None:
    """A preempted group is admitted again in several steps; in each one, a request of higher
    priority arrives."""
    engine = make_engine(
        num_blocks=20, enable_prefix_caching=False, max_num_seqs=12, max_num_batched_tokens=12
    )
    request = beam_request("r", [2] * 21, BeamSearch(4), **ENDLESS)
    engine.add(greedy("s", [1] * 28, max_tokens=20))
    engine.add(request)
    outputs: Outputs = {}
    num_intruders = 0
    while engine.has_work:
        step(engine, outputs)
        if len({s.status for s in engine._requests.get("r", ())}) == 2:
            engine.add(replace(greedy(f"i{num_intruders}", [3], max_tokens=2), priority=-1))
            num_intruders += 1
    assert num_intruders > 0
    assert found_by(outputs, request) == search_alone(request)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(16, 40),
    config=st.fixed_dictionaries(
        {
            "max_num_seqs": st.integers(4, 10),
            "max_num_batched_tokens": st.integers(4, 40),
            "enable_prefix_caching": st.booleans(),
        }
    ),
)
def test_random_operations_never_lose_a_block_or_a_beam(
    seed: int, num_blocks: int, config: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    engine = make_engine(num_blocks=num_blocks, max_model_len=num_blocks * 4, **config)
    stems = random_prompts(3, seed)
    expected: dict[tuple[str, int], list[int]] = {}
    outputs: Outputs = {}
    for operation in range(80):
        choice, request_id = rng.random(), str(operation)
        prompt = rng.choice(stems) + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 6))]
        if choice < 0.12 and len(engine._requests) < 10:
            search = BeamSearch(rng.randint(2, 4), early_stopping=rng.choice(list(EarlyStopping)))
            request = beam_request(request_id, prompt, search, max_tokens=rng.randint(1, 8))
            try:
                engine.validate(request)
            except RequestError:
                continue
            request = replace(request, priority=rng.choice([0, 0, -1, 1]))
            if engine._maker.token_limit(request) == len(prompt) + (request.params.max_tokens or 0):
                engine.add(request)
                texts = enumerate(search_alone(request))
                expected |= {(request_id, index): text for index, text in texts}
        elif choice < 0.24 and len(engine._requests) < 10:
            params = {"max_tokens": rng.randint(1, 8), "n": rng.choice([1, 2])}
            engine.add(greedy(request_id, prompt, **params))
        elif choice < 0.3 and engine._requests:
            victim = rng.choice(list(engine._requests))
            index = rng.choice([None, 0, 1])
            engine.abort(victim, index)
            for key in [k for k in expected if k[0] == victim and index in (None, k[1])]:
                del expected[key]
        elif engine.has_work:
            step(engine, outputs)
        engine.check()
    while engine.has_work:
        step(engine, outputs)
    assert {key: outputs[key].token_ids for key in expected} == expected
    assert engine.blocks.num_free_blocks == num_blocks
