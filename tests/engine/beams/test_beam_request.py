"""Beam searches in the engine, over a fake model: they find what the search finds alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.sampling.logits_processors import Penalties
from fastovms.grammar.grammar_compiler import GrammarCompiler
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
from tests.engine.beams.beam_searches import (
    EOS,
    beam_request,
    logits_after,
    make_engine,
    random_prompts,
    run,
    search_alone,
)
from tests.engine.fake_model import FakeModel
from tests.paths import BYTE_LEVEL_TOKENIZER

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
        assert engine.counters.num_preemptions > 0


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
        end = [] if output.stop_token_id is None else [output.stop_token_id]
        assert [entry.token_id for entry in output.logprobs] == [*output.token_ids, *end]
        for i, entry in enumerate(output.logprobs):
            logits = logits_after([*prompt, *output.token_ids[:i]])
            expected = logits[entry.token_id] - np.log(np.exp(logits).sum())
            assert entry.logprob == pytest.approx(expected, abs=1e-5)
            assert len(entry.top_token_ids) == 2
        assert len(output.prompt_logprobs) == (len(prompt) if index == 0 else 0)
    assert (FinishReason.STOP, stop) in reasons
    assert engine.counters.num_generated_tokens == sum(
        o.num_generated_tokens for o in outputs.values()
    )
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
    return GrammarCompiler(BYTE_LEVEL_TOKENIZER.read_text(), vocab_size=512, eos_token_ids=[0])


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
    monkeypatch.setattr("fastovms.grammar.grammar_state.GrammarState.error", "too complex")
    outputs = run_grammar(grammars, "a|b", 2)
    assert all(o.finish_reason is FinishReason.ERROR for o in outputs)
    for output in outputs:
        assert output.refusal is not None
        assert output.refusal.param == "response_format"
        assert output.refusal.message.endswith("the regex cannot go on: too complex")


def test_the_fault_of_a_search_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastovms.engine.beams.beam_request.token_logprobs", lambda *_: 1 // 0)
    engine = make_engine()
    kept = beam_request("kept", [1, 2], BeamSearch(2))
    outputs = run(engine, beam_request("bad", [1, 2], BeamSearch(3), logprobs=1), kept)
    errors = [outputs["bad", i].error for i in range(3)]
    assert errors == ["ZeroDivisionError: integer division or modulo by zero"] * 3
    assert [outputs["kept", i].token_ids for i in range(2)] == search_alone(kept)
