"""Tests of `fastovms/parts/drafts/draft_model.py`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.backend_stats import EngineCounters
from fastovms.engine.engine import Engine
from fastovms.engine.step_costs import StepCosts
from fastovms.params import BeamSearch, GenerationRequest
from fastovms.parts.drafts.draft_model import AUTOMATIC_CONFIDENCE, DraftModel
from fastovms.parts.drafts.draft_policy import DraftPolicy, DraftRequest
from tests.engine.engines import Texts, drafted_engine, greedy, run, texts
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily, next_token
from tests.engine.random_operations import DRAFTING, RandomOperations
from tests.engine.test_draft_lengths import costs


def play(
    policy: DraftPolicy, num_tokens: int, share: float, row_seconds: float = 0.0005
) -> list[int]:
    """Generates `num_tokens` tokens, of which `share` can be predicted, and returns the lengths of
    the drafts."""
    known = costs(1, row_seconds)
    lengths = []
    length = 0
    while length < num_tokens:
        num_drafted = policy.plan(length, known, num_sequences=1, max_tokens=32).num_tokens
        num_accepted = int(share * num_drafted)
        length += 1 + num_accepted
        if num_drafted:
            lengths.append(num_drafted)
            policy.learn(num_drafted, num_accepted, length)
    return lengths


def test_drafts_grow_while_they_are_right() -> None:
    lengths = play(DraftPolicy(None), 300, 1)
    assert lengths == sorted(lengths)
    assert lengths[0] < 6
    assert lengths[-1] > 20


@pytest.mark.parametrize("tolerated_misses", [0, 3])
def test_drafts_that_are_wrong_become_short_and_rare(tolerated_misses: int) -> None:
    lengths = play(DraftPolicy(None, tolerated_misses=tolerated_misses), 2000, 0)
    assert 8 <= len(lengths) <= 16, "one at first, then after 8, 16, ... 256 tokens"
    assert set(lengths[tolerated_misses + 1 :]) == {2}


def test_mediocre_drafts_pay_where_rows_are_cheap_but_not_where_they_are_dear() -> None:
    always = len(play(DraftPolicy(None), 1000, 0.4))
    assert len(play(DraftPolicy(None), 1000, 0.4, row_seconds=0.01)) < 0.3 * always
    assert len(play(DraftPolicy(None, cost=0.7), 1000, 0.4)) < 0.3 * always


@pytest.mark.slow
def test_a_cost_that_was_too_high_is_found_out_by_the_draft_model_too() -> None:
    policy, known = DraftPolicy(None), StepCosts()
    for num_tokens in (256, 256):
        known.learn(num_decodes=0, num_rows=0, num_prefill_tokens=num_tokens, seconds=0.256)
    lengths = []
    for length in range(2000):
        planned = policy.plan(length, known, num_sequences=1, max_tokens=8).num_tokens
        seconds = 0.010 + 0.001 * planned + 0.2 * (0 < len(lengths) < 4)
        known.learn(num_decodes=1, num_rows=1 + planned, num_prefill_tokens=0, seconds=seconds)
        if planned:
            lengths.append(planned)
            policy.learn(planned, planned, length)
    assert 900 < len(lengths) < 1995, "nearly all again, except those without which none is told"


# Speculation with fake models: the state of the draft model, compared with the expected drafts.


def says_wrong(context: Sequence[int]) -> bool:
    return sum(context) % 4 == 0


def is_unsure(context: Sequence[int]) -> bool:
    return sum(context) % 7 == 1


class FakeDraft(FakeModel):
    """Mostly right, and sometimes uncertain."""

    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        logits = np.zeros(self.vocab_size, np.float32)
        token_id = (next_token(context) + says_wrong(context)) % VOCAB_SIZE
        logits[token_id] = 1 if is_unsure(context) else 30
        return logits


class UselessDraft(FakeModel):
    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        return np.roll(super().logits_after(context), 1)


def expected_draft(
    sequence_token_ids: Iterable[int], num_tokens: int, threshold: float
) -> list[int]:
    context = list(sequence_token_ids)
    start = len(context)
    while len(context) < start + num_tokens and not (threshold > 0.1 and is_unsure(context)):
        context.append((next_token(context) + says_wrong(context)) % VOCAB_SIZE)
    return context[start:]


class CheckedDraftModel(DraftModel):
    """Compares each of its drafts with those of a model without a cache."""

    num_drafts = 0
    least_free = 1000

    def propose(self, wanted: Iterable[DraftRequest]) -> None:
        wanted = list(wanted)
        super().propose(wanted)
        self.check()
        self.least_free = min(self.least_free, self.blocks.num_free_blocks)
        for sequence, *_, num_tokens in wanted:
            if sequence.draft_token_ids:
                params = sequence.params
                threshold = params.assistant_confidence_threshold
                if threshold is None:
                    is_automatic = params.num_assistant_tokens is None
                    threshold = AUTOMATIC_CONFIDENCE if is_automatic else 0
                expected = expected_draft(sequence.token_ids, num_tokens, threshold)
                assert sequence.draft_token_ids.tolist() == expected
                self.num_drafts += 1


def make_engine(
    draft: FakeModel, *, num_token_ids: int = VOCAB_SIZE, cost: float = 0.0, **options: Any
) -> tuple[Engine, DraftModel]:
    kind = CheckedDraftModel if isinstance(draft, FakeDraft) else DraftModel
    make_draft = partial(kind, draft, num_token_ids=num_token_ids, cost=cost)
    engine = drafted_engine(make_draft, **options)
    return engine, engine.drafter._model


def request(request_id: str, prompt: list[int], **params: Any) -> GenerationRequest:
    return greedy(request_id, prompt, **{"max_tokens": 60, **params})


COPIED = [1, 2, 3, 4, 5, 6, 7] * 3
"""The model repeats the token seven positions before, which the text contains."""

PROMPTS = [[i, 1, 2, 3, 4, 5, 6, 7][: 3 + i] for i in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_assistant_tokens": 3},
        {"num_assistant_tokens": 12},
        {"assistant_confidence_threshold": 0.9},
        {"assistant_confidence_threshold": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0, 4])
def test_draft_model_saves_steps_without_changing_texts(
    settings: dict[str, float], temperature: float
) -> None:
    def generate(**drafts: float) -> tuple[Texts, EngineCounters]:
        engine, _ = make_engine(FakeDraft())
        asked = [
            request(str(i), prompt, n=2, temperature=temperature, seed=i, **drafts)
            for i, prompt in enumerate(PROMPTS)
        ]
        return texts(engine, *asked), engine.counters

    plain, without = generate(num_assistant_tokens=0)
    drafted, counters = generate(**settings)
    assert drafted == plain
    assert counters.num_steps < 0.8 * without.num_steps
    assert 0.1 * counters.num_draft_tokens < counters.num_accepted_tokens
    assert counters.num_accepted_tokens < counters.num_draft_tokens
    assert counters.num_generated_tokens == without.num_generated_tokens == 720


def test_a_draft_model_that_is_always_right_is_always_believed() -> None:
    engine, _ = make_engine(FakeModel())
    asked = request("r", [1, 2, 3], num_assistant_tokens=4, max_tokens=50)
    assert texts(engine, asked)["r", 0] == continue_greedily([1, 2, 3], 50)
    # The prompt's token, and then five per step, the last four.
    assert engine.counters.num_steps == 1 + 10
    assert engine.counters.num_draft_tokens == engine.counters.num_accepted_tokens


@pytest.mark.parametrize(
    "settings",
    [
        {"num_assistant_tokens": 0},
        {"beam_search": BeamSearch(num_beams=2)},
        {"max_tokens": 2},  # the single token after the next one is not worth a draft
    ],
    ids=str,
)
def test_requests_without_drafts_never_run_the_draft_model(settings: dict[str, object]) -> None:
    draft = FakeDraft()
    run(make_engine(draft)[0], request("r", [1, 2, 3], **settings))
    assert draft.num_tokens_per_step == []


@pytest.mark.slow
def test_a_useless_model_falls_silent_unless_the_request_fixes_the_number() -> None:
    steps = {}
    for num_tokens in (None, 3):
        draft = UselessDraft()
        engine, _ = make_engine(draft, max_model_len=1000)
        asked = request("r", [1, 2, 3], num_assistant_tokens=num_tokens, max_tokens=600)
        assert texts(engine, asked)["r", 0] == continue_greedily([1, 2, 3], 600)
        steps[num_tokens] = len(draft.num_tokens_per_step)
        assert engine.counters.num_accepted_tokens == 0
    assert steps[None] < 40
    assert steps[3] > 3 * 590


@pytest.mark.slow
def test_an_unsure_model_falls_silent() -> None:
    class Unsure(FakeModel):
        def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
            return super().logits_after(context) / np.float32(30)

    draft = Unsure()
    engine, _ = make_engine(draft, max_model_len=1000)
    run(engine, request("r", [1, 2, 3], max_tokens=600))
    assert engine.counters.num_draft_tokens == 0
    assert 0 < len(draft.num_tokens_per_step) < 20


def test_a_model_as_expensive_as_the_target_drafts_only_on_demand() -> None:
    draft = FakeDraft()
    engine, _ = make_engine(draft, cost=1.0)
    run(engine, request("r", [1, 2, 3]))
    assert draft.num_tokens_per_step == []
    run(engine, request("r", [1, 2, 3], num_assistant_tokens=2))
    assert engine.counters.num_accepted_tokens > 0


def test_prompt_lookup_goes_first_unless_the_request_speaks_to_the_model() -> None:
    def drafters(**settings: object) -> tuple[bool, bool]:
        """Returns whether prompt lookup and the draft model have made a draft."""
        draft = FakeDraft()
        engine, _ = make_engine(draft, enable_prompt_lookup=True)
        (last,) = continue_greedily(COPIED, 1)
        engine.add(request("r", COPIED, **settings))
        engine.step()
        engine.drafter._costs.learn(num_decodes=1, num_rows=1, num_prefill_tokens=0, seconds=0.0)
        engine.drafter.propose(engine.scheduler.running)
        (sequence,) = engine.scheduler.running
        chosen = engine.drafter._drafters[sequence.seq_id]
        by_model = chosen.drafted_by is not None
        assert sequence.token_ids[-1] == last
        return bool(sequence.draft_token_ids) and not by_model, bool(draft.num_tokens_per_step)

    assert drafters() == (True, False)
    assert drafters(num_assistant_tokens=2, max_ngram_size=3) == (True, False)
    assert drafters(num_assistant_tokens=2) == (False, True)
    assert drafters(assistant_confidence_threshold=0.0) == (False, True)


def test_a_long_prompt_holds_no_drafts_up() -> None:
    draft = FakeDraft()
    engine, _ = make_engine(draft, max_num_batched_tokens=16)
    engine.add(request("short", [1, 2, 3], num_assistant_tokens=2, max_tokens=80))
    for _ in range(4):
        engine.step()
    engine.add(request("long", list(range(90)), num_assistant_tokens=2, max_tokens=40))
    num_drafted: dict[str, int] = defaultdict(int)
    num_without = 0
    while "short" in engine._requests and "long" in engine._requests:
        before = dict(num_drafted)
        draft_steps = len(draft.num_tokens_per_step)
        engine.step()
        for sequence in engine.scheduler.running:
            drafters = engine.drafter._drafters[sequence.seq_id]
            drafted = drafters.drafted_by is not None
            num_drafted[sequence.request_id] += drafted
            num_without += not drafted and sequence.num_generated_tokens > 0
        assert draft_steps + 2 >= len(draft.num_tokens_per_step)
        assert num_drafted["short"] > before.get("short", 0)
    assert max(draft.num_tokens_per_step) <= 16
    assert 5 <= num_without <= 8, "90 tokens to catch up with, 16 a step less those of the other"
    assert num_drafted["long"] > 0


def test_sequence_without_room_in_the_draft_model_gets_no_drafts() -> None:
    engine, model = make_engine(FakeDraft(), draft_tokens=60)
    assert isinstance(model, CheckedDraftModel)
    asked = [
        request(str(i), [i] * 10, num_assistant_tokens=3, max_tokens=20 + 10 * i) for i in range(6)
    ]
    assert texts(engine, *asked) == {
        (str(i), 0): continue_greedily([i] * 10, 20 + 10 * i) for i in range(6)
    }
    assert model.least_free <= 1
    assert model.num_drafts > 20
    assert model.blocks.num_free_blocks == model.blocks.num_blocks


def test_samples_and_later_requests_share_what_is_computed_of_the_prompt() -> None:
    draft = FakeDraft()
    engine, _ = make_engine(draft)
    for _ in range(2):
        run(engine, request("r", list(range(42)), num_assistant_tokens=2, max_tokens=4))
    assert [n for n in draft.num_tokens_per_step if n > 5] == [43]
    assert draft.num_tokens_per_step.count(3) == 1, "40 cached, 2 left and a new one"


@pytest.mark.parametrize("limits", [{"num_token_ids": 50}, {"draft_len": 20}], ids=str)
def test_a_sequence_that_the_model_cannot_follow_goes_without(limits: dict[str, int]) -> None:
    engine, model = make_engine(FakeModel(), **limits)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    asked = request("r", prompt, num_assistant_tokens=3)
    assert texts(engine, asked)["r", 0] == continue_greedily(prompt, 60)
    assert 0 < engine.counters.num_accepted_tokens < 20
    assert model.blocks.num_free_blocks == model.blocks.num_blocks


@pytest.mark.slow
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), options=DRAFTING)
def test_random_operations_never_lose_a_block_of_the_draft_cache(
    seed: int, options: dict[str, Any]
) -> None:
    engine, model = make_engine(FakeDraft(), max_model_len=options["num_blocks"] * 4, **options)
    RandomOperations(engine, random.Random(seed)).run(100)
    assert model.blocks.num_free_blocks == model.blocks.num_blocks
