"""Tests of `fastovms/parts/beams.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import pytest

from fastovms.config import EngineConfig
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import (
    BeamSearch,
    EarlyStopping,
    EndsText,
    FinishReason,
    GenerationOutput,
    Grammar,
    GrammarKind,
)
from fastovms.parts.beams import BeamSearcher, Floats, Hypothesis
from tests.engine.beam_searches import (
    EOS,
    beam_request,
    found_by,
    logits_after,
    make_engine,
    random_prompts,
    run,
    search_alone,
)
from tests.engine.engines import full_engine, greedy
from tests.engine.fake_model import FakeModel
from tests.paths import BYTE_LEVEL_TOKENIZER

# The search alone, compared with brute force and worked examples.


END = 0
VOCAB_SIZE = 4
Model = Callable[[Sequence[int]], Floats]


def random_model(seed: int) -> Model:
    def logits_after(token_ids: Sequence[int]) -> Floats:
        rng = np.random.default_rng([seed, len(token_ids), *token_ids])
        return rng.standard_normal(VOCAB_SIZE).astype(np.float32) * 2

    return logits_after


def probabilities(**of: float) -> Floats:
    """Returns logits of a vocabulary of "e" (the end), "a", "b", "c"; unnamed tokens are
    impossible."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([of.get(token, 0) for token in "eabc"], np.float32))


def search(
    model: Model,
    params: BeamSearch,
    max_new_tokens: int,
    n: int,
    ends_text: EndsText | None = None,
) -> tuple[list[tuple[float, list[int]]], int]:
    """Returns the texts with their scores, including ends, and the number of steps."""
    searcher = BeamSearcher(
        params,
        end_token_ids=frozenset({END}),
        max_new_tokens=max_new_tokens,
        ends_text=ends_text,
    )
    texts: list[list[int]] = [[]]
    while continuations := searcher.advance([model(text) for text in texts]):
        assert len(continuations) <= params.num_beams
        texts = [[*texts[parent], token_id] for parent, token_id in continuations]

    def text(hypothesis: Hypothesis) -> list[int]:
        tokens = [searcher.steps[i][j].token_id for i, j in enumerate(hypothesis.path)]
        assert hypothesis.is_ended == (END in tokens[-1:])
        return tokens

    return [(h.score, text(h)) for h in searcher.best(n)], len(searcher.steps)


def score(model: Model, text: Sequence[int], length_penalty: float) -> float:
    total = 0.0
    for i, token_id in enumerate(text):
        logits = model(text[:i]).astype(np.float64)
        total += logits[token_id] - np.log(np.exp(logits).sum())
    return float(total / len(text) ** length_penalty)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_a_search_that_is_wide_enough_finds_the_best_of_all_texts(
    seed: int, length_penalty: float
) -> None:
    model, length = random_model(seed), 4
    going_on = [t for t in product(range(VOCAB_SIZE), repeat=length) if END not in t[:-1]]
    ended = [(*t, END) for k in range(length - 1) for t in product(range(1, VOCAB_SIZE), repeat=k)]
    every = sorted((score(model, t, length_penalty), t) for t in (*going_on, *ended))[::-1]
    params = BeamSearch(500, length_penalty=length_penalty, early_stopping=EarlyStopping.NEVER)
    found, num_steps = search(model, params, length, n=10)
    assert num_steps == length
    assert [tuple(text) for _, text in found] == [text for _, text in every[:10]]
    assert [s for s, _ in found] == pytest.approx([s for s, _ in every[:10]], abs=1e-5)


@pytest.mark.parametrize("num_beam_groups", [1, 2])
def test_a_text_may_be_complete_with_a_token_that_is_part_of_it(num_beam_groups: int) -> None:
    """They are found like those before an end token, but are one token shorter."""
    model, length, stop = random_model(1), 4, (2, 3)

    def ends_text(num_tokens: int, backwards: Iterable[int]) -> bool:
        text = tuple(backwards)[::-1]
        assert len(text) == num_tokens
        return text[-2:] == stop

    texts = [
        t
        for k in range(1, length + 1)
        for t in product(range(VOCAB_SIZE), repeat=k)
        if END not in t[:-1] and stop not in pairwise(t[:-1])
        if k == length or t[-1] == END or t[-2:] == stop
    ]
    every = sorted((score(model, t, 1.0), t) for t in texts)[::-1]
    params = BeamSearch(400, num_beam_groups, early_stopping=EarlyStopping.NEVER)
    found, _ = search(model, params, length, n=10 * num_beam_groups, ends_text=ends_text)
    assert [tuple(text) for _, text in found[::num_beam_groups]] == [t for _, t in every[:10]]
    assert any(tuple(text[-2:]) == stop and len(text) < length for _, text in found)


def test_an_end_beyond_the_first_beams_does_not_count() -> None:
    """In the second step "ae" has 0.3, "ac" 0.18, "be" 0.16 and "bc" 0.12: "be" is not among the
    two beams, though it is more likely than any longer text."""

    def model(text: Sequence[int]) -> Floats:
        if not text:
            return probabilities(a=0.6, b=0.4)
        if len(text) == 2:
            return probabilities(a=0.6, b=0.4)
        if text == [1]:
            return probabilities(e=0.5, c=0.3, a=0.1, b=0.1)
        return probabilities(e=0.4, c=0.3, a=0.2, b=0.1)

    found, _ = search(model, BeamSearch(2, length_penalty=0), 3, n=2)
    assert [text for _, text in found] == [[1, END], [1, 3, 1]]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "num_steps"),
    [
        (EarlyStopping.EARLY, 1.0, 2),
        (EarlyStopping.HEURISTIC, 2.0, 2),
        (EarlyStopping.HEURISTIC, 1.0, 3),
        (EarlyStopping.HEURISTIC, 0.0, 3),
        (EarlyStopping.NEVER, 0.0, 3),
        (EarlyStopping.NEVER, -1.0, 3),
        (EarlyStopping.NEVER, 1.0, 20),
    ],
    ids=str,
)
def test_beam_search_stops_by_its_early_stopping(
    early_stopping: EarlyStopping, length_penalty: float, num_steps: int
) -> None:
    """Two texts end in the second step, with probabilities of 0.33 and 0.3. The best beam has 0.6
    before and 0.27 after it."""

    def model(text: Sequence[int]) -> Floats:
        if not text:
            return probabilities(a=0.6, b=0.4)
        if len(text) == 1:
            return probabilities(e=0.55, c=0.45) if text == [1] else probabilities(e=0.75, c=0.25)
        return probabilities(c=0.9, a=0.1)

    params = BeamSearch(2, length_penalty=length_penalty, early_stopping=early_stopping)
    _, steps = search(model, params, 20, n=2)
    assert steps == num_steps


@pytest.mark.parametrize(
    ("diversity_penalty", "expected"),
    [(0.0, [[1, 1], [1, 1]]), (0.5, [[1, 1], [2, 1]]), (9.0, [[1, 1], [2, 2]])],
)
def test_diversity_penalty_lowers_tokens_of_earlier_groups(
    diversity_penalty: float, expected: list[list[int]]
) -> None:
    rows = [probabilities(a=0.4, b=0.3, c=0.3), probabilities(a=0.8, b=0.2)]
    params = BeamSearch(2, num_beam_groups=2, diversity_penalty=diversity_penalty)
    found, _ = search(lambda text: rows[len(text)], params, 2, n=2)
    assert [text for _, text in found] == expected


def test_beam_search_finds_fewer_texts_where_fewer_are_possible() -> None:
    def model(text: Sequence[int]) -> Floats:
        return probabilities(e=1) if text else probabilities(a=0.9, c=0.1)

    found, _ = search(model, BeamSearch(4), 9, n=4)
    assert [text for _, text in found] == [[1, END], [3, END]]
    nothing = np.full(VOCAB_SIZE, -np.inf, np.float32)
    assert search(lambda text: nothing, BeamSearch(4), 9, n=4) == ([], 1)


@pytest.mark.parametrize("length_penalty", [1e6, -1e6])
def test_no_length_penalty_is_too_large(length_penalty: float) -> None:
    found, _ = search(random_model(1), BeamSearch(3, length_penalty=length_penalty), 5, n=3)
    assert len(found) == 3


# Beam searches in the engine with a fake model find the same texts as the search alone.


SEARCHES = [
    BeamSearch(2),
    BeamSearch(4, early_stopping=EarlyStopping.EARLY),
    BeamSearch(3, length_penalty=-0.5, early_stopping=EarlyStopping.NEVER),
    BeamSearch(6, num_beam_groups=3, diversity_penalty=1.0),
    BeamSearch(2, num_beam_groups=2, diversity_penalty=0.3, length_penalty=2),
]


@pytest.mark.slow
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
    samples = [greedy(f"sample {i}", prompt, max_tokens=8, n=2) for i, prompt in enumerate(prompts)]
    engine = make_engine(**config)
    outputs = run(engine, *chain(*zip(searches, samples, strict=True)))
    alone = run(make_engine(), *samples)
    for request in searches:
        assert found_by(outputs, request) == search_alone(request)
    for request in samples:
        assert found_by(outputs, request) == found_by(alone, request)
    if config.get("num_blocks") == 28:
        assert engine.counters.num_preemptions > 0


def assert_logprobs(prompt: list[int], output: GenerationOutput) -> None:
    """Asserts that the log probabilities of a text are those of its tokens."""
    for i, entry in enumerate(output.logprobs):
        logits = logits_after([*prompt, *output.token_ids[:i]])
        expected = logits[entry.token_id] - np.log(np.exp(logits).sum())
        assert entry.logprob == pytest.approx(expected, abs=1e-5)


def test_outputs_of_beam_search_have_tokens_logprobs_and_finish_reasons() -> None:
    prompt = list(range(10))
    search = BeamSearch(4, early_stopping=EarlyStopping.NEVER)
    stop = search_alone(beam_request("", prompt, search, max_tokens=3))[0][1]
    request = beam_request(
        "r", prompt, search, n=3, logprobs=2, prompt_logprobs=1, stop_token_ids=frozenset({stop})
    )
    engine = make_engine()
    outputs = run(engine, request)
    assert found_by(outputs, request) == search_alone(request)
    reasons = set()
    for (_, index), output in outputs.items():
        reasons.add((output.finish_reason, output.stop_token_id))
        num_ends = output.finish_reason is FinishReason.STOP
        assert output.num_generated_tokens == len(output.token_ids) + num_ends
        end = [] if output.stop_token_id is None else [output.stop_token_id]
        assert [entry.token_id for entry in output.logprobs] == [*output.token_ids, *end]
        assert all(len(entry.top_token_ids) == 2 for entry in output.logprobs)
        assert_logprobs(prompt, output)
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
        assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
        assert_logprobs(prompt, output)
    assert len({tuple(output.token_ids) for output in outputs.values()}) == len(outputs)


def test_beams_with_ignore_eos_run_to_max_tokens() -> None:
    request = beam_request("r", [1, 2], BeamSearch(3), ignore_eos=True, max_tokens=12)
    outputs = run(make_engine(), request)
    assert all(len(output.token_ids) == 12 for output in outputs.values())
    assert all(output.finish_reason is FinishReason.LENGTH for output in outputs.values())
    assert any(EOS in output.token_ids for output in outputs.values())


def test_processors_see_each_beam_on_its_own() -> None:
    penalties = {"repetition_penalty": 1.5, "frequency_penalty": 2.0, "min_tokens": 6}
    biases = ((7, 1.5), (8, -2.0))
    request = beam_request("r", [1, 2, 3], BeamSearch(4), logit_bias=biases, **penalties)
    assert found_by(run(make_engine(), request), request) == search_alone(request)


class GrammarModel(FakeModel):
    """Prefers lower tokens; the end is least likely."""

    vocab_size = 512

    def logits_after(self, context: Sequence[int]) -> np.ndarray:
        return np.roll(np.linspace(0, -3, self.vocab_size, dtype=np.float32), 1)


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(BYTE_LEVEL_TOKENIZER.read_text(), vocab_size=512, eos_token_ids=[0])


def run_grammar(
    grammars: GrammarCompiler, source: str, num_beams: int, **params: Any
) -> list[GenerationOutput]:
    model = GrammarModel()
    model.allocate_cache(64)
    engine = full_engine(model, EngineConfig(), num_blocks=64, max_model_len=64, grammars=grammars)
    params = {"grammar": Grammar(GrammarKind.REGEX, source), **params}
    search = BeamSearch(num_beams)
    outputs = run(engine, beam_request("r", [5, 6], search, eos_token_ids=frozenset({0}), **params))
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
    monkeypatch.setattr("fastovms.grammar.state.GrammarState.error", "too complex")
    for output in run_grammar(grammars, "a|b", 2):
        assert output.finish_reason is FinishReason.ERROR
        assert output.refusal is not None
        assert output.refusal.param == "response_format"
        assert output.refusal.message.endswith("the regex cannot go on: too complex")


def test_the_fault_of_a_search_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastovms.parts.beams.token_logprobs", lambda *_: 1 // 0)
    kept = beam_request("kept", [1, 2], BeamSearch(2))
    outputs = run(make_engine(), beam_request("bad", [1, 2], BeamSearch(3), logprobs=1), kept)
    errors = [outputs["bad", i].error for i in range(3)]
    assert errors == ["ZeroDivisionError: integer division or modulo by zero"] * 3
    assert found_by(outputs, kept) == search_alone(kept)
