"""Beam searches in the engine, over a fake model: they find what the search finds alone."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.config import EngineConfig
from fastovms.engine.beam import BeamSearcher
from fastovms.engine.engine import Engine
from fastovms.engine.grammar import GrammarCompiler
from fastovms.engine.logits import Penalties, logits_processors
from fastovms.errors import RequestError
from fastovms.params import (
    BeamSearch,
    EarlyStopping,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
)
from tests.engine.fake_model import VOCAB_SIZE, FakeModel

EOS = 3
Outputs = dict[tuple[str, int], GenerationOutput]


def logits_after(context: Sequence[int]) -> np.ndarray:
    """Random numbers that every token of the context changes."""
    logits = np.random.default_rng([len(context), *context]).standard_normal(VOCAB_SIZE)
    logits[EOS] += 1.5
    return (logits * 2).astype(np.float32)


class RandomModel(FakeModel):
    num_copies = 0

    def copy_blocks(self, copies: Sequence[object]) -> None:  # type: ignore[override]
        self.num_copies += len(copies)
        super().copy_blocks(copies)  # type: ignore[arg-type]

    def logits_after(self, context: Sequence[int]) -> np.ndarray:
        return logits_after(context)


def make_engine(
    *, num_blocks: int = 128, max_model_len: int = 64, block_size: int = 4, **config: object
) -> Engine:
    model = RandomModel(block_size)
    model.allocate_cache(num_blocks)
    return Engine(
        model,
        EngineConfig(**config),  # type: ignore[arg-type]
        num_blocks=num_blocks,
        max_model_len=min(max_model_len, num_blocks * block_size),
        new_seed=lambda: 0,
    )


def beam_request(
    request_id: str, prompt: list[int], search: BeamSearch, **params: object
) -> GenerationRequest:
    defaults: dict[str, object] = {
        "n": search.num_beams,
        "max_tokens": 10,
        "eos_token_ids": frozenset({EOS}),
    }
    sampling = SamplingParams(beam_search=search, **{**defaults, **params})  # type: ignore[arg-type]
    return GenerationRequest(request_id, prompt, sampling)


def step(engine: Engine, outputs: Outputs) -> None:
    for request_id, output in engine.step():
        key = request_id, output.index
        if key in outputs:  # of a sample; those of a search come whole
            outputs[key].token_ids = [*outputs[key].token_ids, *output.token_ids]
        else:
            outputs[key] = output
    engine.check()


def run(engine: Engine, *requests: GenerationRequest) -> Outputs:
    outputs: Outputs = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        step(engine, outputs)
    assert engine.blocks.num_free_blocks == engine.blocks.num_blocks
    return outputs


def processed_logits(request: GenerationRequest, text: list[int]) -> np.ndarray:
    logits = logits_after(text)
    for process in logits_processors(request.params, array("q", request.prompt_token_ids)):
        process(logits, array("q", text))
    return logits


def search_alone(request: GenerationRequest) -> list[list[int]]:
    """The texts without their ends."""
    params = request.params
    assert params.beam_search is not None
    assert params.max_tokens is not None
    searcher = BeamSearcher(
        params.beam_search,
        end_token_ids=params.eos_token_ids | params.stop_token_ids,
        max_new_tokens=params.max_tokens,
    )
    texts = [list(request.prompt_token_ids)]
    while continuations := searcher.advance([processed_logits(request, t) for t in texts]):
        texts = [[*texts[parent], token_id] for parent, token_id in continuations]
    return [
        [searcher.steps[i][j].token_id for i, j in enumerate(hypothesis.path)]
        for hypothesis in searcher.best(params.n)
    ]


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 20))] for _ in range(count)]


SEARCHES = [
    BeamSearch(2),
    BeamSearch(4, early_stopping=EarlyStopping.EARLY),
    BeamSearch(3, length_penalty=-0.5, early_stopping=EarlyStopping.NEVER),
    BeamSearch(6, num_beam_groups=3, diversity_penalty=1.0),
    BeamSearch(2, num_beam_groups=2, diversity_penalty=0.3, length_penalty=2),
]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_num_batched_tokens": 6},
        {"max_num_seqs": 6},
        {"enable_prefix_caching": False},
        {"num_blocks": 28},
        {"num_blocks": 28, "enable_prefix_caching": False, "max_num_batched_tokens": 20},
        {"block_size": 1, "num_blocks": 128},
    ],
    ids=str,
)
def test_searches_and_samples_in_one_batch_find_what_they_find_alone(
    config: dict[str, int],
) -> None:
    prompts = random_prompts(8)
    prompts[6] = [*prompts[5], 1, 2]
    searches = [
        beam_request(f"search {i}", prompt, SEARCHES[i % len(SEARCHES)])
        for i, prompt in enumerate(prompts)
    ]
    samples = [
        GenerationRequest(f"sample {i}", prompt, SamplingParams(temperature=0, max_tokens=8, n=2))
        for i, prompt in enumerate(prompts)
    ]
    engine = make_engine(**config)
    mixed = [request for pair in zip(searches, samples, strict=True) for request in pair]
    outputs = run(engine, *mixed)
    for request in searches:
        for index, text in enumerate(search_alone(request)):
            assert outputs[request.request_id, index].token_ids == text
    alone = run(make_engine(), *samples)
    assert all(outputs[key].token_ids == alone[key].token_ids for key in alone)
    assert len(outputs) == len(alone) + sum(request.params.n for request in searches)
    if config.get("num_blocks") == 28:
        assert engine.scheduler.num_preemptions > 0


def test_what_the_outputs_say() -> None:
    prompt = list(range(10))
    search = BeamSearch(4, early_stopping=EarlyStopping.NEVER)
    stop = search_alone(beam_request("", prompt, search, max_tokens=3))[0][1]
    request = beam_request(
        "r", prompt, search, n=3, logprobs=2, prompt_logprobs=1, stop_token_ids=frozenset({stop})
    )
    engine = make_engine()
    outputs = run(engine, request)
    assert [outputs["r", i].token_ids for i in range(3)] == search_alone(request)
    reasons = set()
    for (_, index), output in outputs.items():
        reasons.add((output.finish_reason, output.stop_token_id))
        num_ends = output.finish_reason is FinishReason.STOP
        assert output.num_generated_tokens == len(output.token_ids) + num_ends
        assert [entry.token_id for entry in output.logprobs] == output.token_ids
        for i, entry in enumerate(output.logprobs):
            logits = logits_after([*prompt, *output.token_ids[:i]])
            expected = logits[entry.token_id] - np.log(np.exp(logits).sum())
            assert entry.logprob == pytest.approx(expected, abs=1e-5)
            assert len(entry.top_token_ids) == 2
        assert len(output.prompt_logprobs) == (len(prompt) if index == 0 else 0)
    assert (FinishReason.STOP, stop) in reasons
    assert engine.num_generated_tokens == sum(o.num_generated_tokens for o in outputs.values())
    again = run(engine, beam_request("again", prompt, search))
    assert all(output.num_cached_tokens == 8 for output in again.values())


def test_a_stop_string_ends_a_beam_with_the_token_that_completes_it() -> None:
    prompt, search = list(range(10)), BeamSearch(4)
    first, *_ = search_alone(beam_request("", prompt, search))
    stop = first[1]
    assert stop != first[0]
    request = beam_request("r", prompt, search, logprobs=1)
    outputs = run(make_engine(), replace(request, ends_text=lambda _, ids: next(iter(ids)) == stop))
    ended = [output for output in outputs.values() if stop in output.token_ids]
    assert first[:2] in [output.token_ids for output in ended]
    for output in ended:
        assert output.token_ids.index(stop) == len(output.token_ids) - 1
        assert (output.finish_reason, output.stop_token_id) == (FinishReason.STOP, None)
        assert output.num_generated_tokens == len(output.token_ids)
    for output in outputs.values():
        for i, entry in enumerate(output.logprobs):
            logits = logits_after([*prompt, *output.token_ids[:i]])
            expected = logits[entry.token_id] - np.log(np.exp(logits).sum())
            assert entry.token_id == output.token_ids[i]
            assert entry.logprob == pytest.approx(expected, abs=1e-5)
    texts = [tuple(output.token_ids) for output in outputs.values()]
    assert len(set(texts)) == len(texts)


def test_end_of_text_can_be_ignored() -> None:
    request = beam_request("r", [1, 2], BeamSearch(3), ignore_eos=True, max_tokens=12)
    outputs = run(make_engine(), request)
    assert all(len(output.token_ids) == 12 for output in outputs.values())
    assert all(output.finish_reason is FinishReason.LENGTH for output in outputs.values())
    assert any(EOS in output.token_ids for output in outputs.values())


def test_beams_share_what_they_have_in_common() -> None:
    """Without sharing, 4 beams of 48 tokens would need twice as many blocks."""
    engine = make_engine(num_blocks=24)
    request = beam_request("r", list(range(40)), BeamSearch(4), max_tokens=8, ignore_eos=True)
    outputs = run(engine, request)
    assert [outputs["r", i].token_ids for i in range(4)] == search_alone(
        beam_request("", list(range(40)), BeamSearch(4), max_tokens=8, eos_token_ids=frozenset())
    )
    assert engine.scheduler.num_preemptions == 0
    model = engine._model
    assert isinstance(model, RandomModel)
    assert 0 < model.num_copies <= 3 * 8


@pytest.mark.parametrize("num_steps", [0, 1, 3, 6])
def test_abort_frees_everything_at_any_stage(num_steps: int) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(beam_request("gone", list(range(30)), BeamSearch(4), ignore_eos=True))
    engine.add(beam_request("kept", [7, 8], BeamSearch(2), n=2))
    outputs: Outputs = {}
    for _ in range(num_steps):
        step(engine, outputs)
    engine.abort("gone")
    engine.check()
    while engine.has_work:
        step(engine, outputs)
    assert sorted(outputs) == [("kept", 0), ("kept", 1)]
    assert engine.blocks.num_free_blocks == engine.blocks.num_blocks


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
        ({"max_num_seqs": 4}, 5, "at most 4 sequences"),
        ({"max_num_batched_tokens": 3}, 4, "at most 3 sequences"),
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


def test_processors_see_each_beam_on_its_own() -> None:
    request = beam_request(
        "r",
        [1, 2, 3],
        BeamSearch(4),
        repetition_penalty=1.5,
        frequency_penalty=2.0,
        logit_bias=((7, 1.5), (8, -2.0)),
        min_tokens=6,
    )
    outputs = run(make_engine(), request)
    assert [outputs["r", i].token_ids for i in range(4)] == search_alone(request)


def test_a_fork_of_penalties_remembers_for_itself() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    ones = np.ones(5, np.float32)
    original = Penalties(params, array("q", [0]))
    original(ones.copy(), array("q", [0, 1]))
    fork = copy(original)
    original(ones.copy(), array("q", [0, 1, 1]))
    logits = ones.copy()
    fork(logits, array("q", [0, 1, 2]))
    assert logits.tolist() == [1, 0, 0, 1, 1]


class GrammarModel(FakeModel):
    """Likes tokens the less the higher they are, the end least of all."""

    vocab_size = 512

    def logits_after(self, context: Sequence[int]) -> np.ndarray:
        return np.roll(np.linspace(0, -3, self.vocab_size, dtype=np.float32), 1)


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    path = Path(__file__).parents[1] / "text" / "fixtures" / "byte_level" / "tokenizer.json"
    return GrammarCompiler(path.read_text(), vocab_size=512, eos_token_ids=[0])


def run_grammar(
    grammars: GrammarCompiler, source: str, num_beams: int, **params: object
) -> list[GenerationOutput]:
    model = GrammarModel()
    model.allocate_cache(64)
    engine = Engine(model, EngineConfig(), num_blocks=64, max_model_len=64, grammars=grammars)
    grammar = Grammar(GrammarKind.REGEX, source)
    request = beam_request(
        "r",
        [5, 6],
        BeamSearch(num_beams),
        grammar=grammar,
        eos_token_ids=frozenset({0}),
        **params,
    )
    outputs = run(engine, request)
    return [outputs["r", i] for i in range(num_beams)]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_every_beam_follows_the_grammar_to_its_own_end(
    grammars: GrammarCompiler, ignore_eos: bool
) -> None:
    a, b, c = 67, 68, 69
    outputs = run_grammar(grammars, "a[bc]|bbb", 3, ignore_eos=ignore_eos)
    assert sorted(map(list, (o.token_ids for o in outputs))) == [[a, b], [a, c], [b, b, b]]
    assert all(o.finish_reason is FinishReason.STOP for o in outputs)
    assert {o.num_generated_tokens for o in outputs} == {3, 4}


def test_texts_that_a_grammar_does_not_allow_are_empty(grammars: GrammarCompiler) -> None:
    outputs = run_grammar(grammars, "a|b", 4)
    assert sorted(map(list, (o.token_ids for o in outputs))) == [[], [], [67], [68]]
    assert [o.num_generated_tokens for o in outputs] == [2, 2, 0, 0]


def test_a_grammar_that_cannot_go_on_ends_the_search(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastovms.engine.grammar.GrammarState.error", "too complex")
    outputs = run_grammar(grammars, "a|b", 2)
    assert all(o.finish_reason is FinishReason.ERROR for o in outputs)
    for output in outputs:
        assert output.refusal is not None
        assert output.refusal.param == "response_format"
        assert output.refusal.message.endswith("the regex cannot go on: too complex")


def test_the_fault_of_a_search_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastovms.engine.beam_request.token_logprobs", lambda *_: 1 // 0)
    engine = make_engine()
    kept = beam_request("kept", [1, 2], BeamSearch(2))
    outputs = run(engine, beam_request("bad", [1, 2], BeamSearch(3), logprobs=1), kept)
    errors = [outputs["bad", i].error for i in range(3)]
    assert errors == ["ZeroDivisionError: integer division or modulo by zero"] * 3
    assert [outputs["kept", i].token_ids for i in range(2)] == search_alone(kept)


def test_beams_that_come_back_share_their_prompt_again() -> None:
    """They are preempted by a sample that grows; without sharing they would never fit again."""
    engine = make_engine(num_blocks=24, enable_prefix_caching=False)
    sample = GenerationRequest("s", [1] * 28, SamplingParams(temperature=0, max_tokens=20))
    prompt = list(range(40))
    request = beam_request("r", prompt, BeamSearch(4), eos_token_ids=frozenset(), max_tokens=8)
    outputs = run(engine, sample, request)
    assert engine.scheduler.num_preemptions >= 4
    assert [outputs["r", i].token_ids for i in range(4)] == search_alone(request)


def test_who_may_go_first_does_not_come_between_the_beams_of_a_group() -> None:
    """A preempted group comes back in several steps; each time one arrives that goes first."""
    engine = make_engine(
        num_blocks=20, enable_prefix_caching=False, max_num_seqs=12, max_num_batched_tokens=12
    )
    search = BeamSearch(4)
    sample = GenerationRequest("s", [1] * 28, SamplingParams(temperature=0, max_tokens=20))
    request = beam_request("r", [2] * 21, search, eos_token_ids=frozenset(), max_tokens=8)
    engine.add(sample)
    engine.add(request)
    outputs: Outputs = {}
    num_intruders = 0
    while engine.has_work:
        step(engine, outputs)
        states = {s.status for s in engine._requests.get("r", ())}
        if len(states) == 2:
            intruder = GenerationRequest(
                f"i{num_intruders}", [3], SamplingParams(max_tokens=2), priority=-1
            )
            engine.add(intruder)
            num_intruders += 1
    assert num_intruders > 0
    assert [outputs["r", i].token_ids for i in range(4)] == search_alone(request)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(16, 40),
    max_num_seqs=st.integers(4, 10),
    budget=st.integers(4, 40),
    caching=st.booleans(),
)
def test_random_operations_never_lose_a_block_or_a_beam(
    seed: int, num_blocks: int, max_num_seqs: int, budget: int, caching: bool
) -> None:
    rng = random.Random(seed)
    engine = make_engine(
        num_blocks=num_blocks,
        max_model_len=num_blocks * 4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
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
            if engine._token_limit(request) == len(prompt) + (request.params.max_tokens or 0):
                engine.add(request)
                texts = enumerate(search_alone(request))
                expected |= {(request_id, index): text for index, text in texts}
        elif choice < 0.24 and len(engine._requests) < 10:
            params = SamplingParams(
                temperature=0, max_tokens=rng.randint(1, 8), n=rng.choice([1, 2])
            )
            engine.add(GenerationRequest(request_id, prompt, params))
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
