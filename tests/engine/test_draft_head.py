"""Tests of `parts/drafts/draft_head.py`, with a head that is right if its inputs are correct."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastovms.engine.model.step_inputs import StepInputs
from fastovms.parts.drafts.draft_head import DraftHead
from tests.engine.engines import Texts, drafted_engine, greedy, texts
from tests.engine.fake_head import TOKEN_IDS, FakeHead, FakeTarget, KnownTexts
from tests.engine.fake_model import continue_greedily
from tests.engine.random_operations import DRAFTING, RandomOperations


class Speculation:
    """An engine with a draft head and without prompt lookup."""

    def __init__(self, **options: Any) -> None:
        known = KnownTexts()
        self.target, self.head = FakeTarget(known), FakeHead(known)
        make_draft = partial(DraftHead, self.head, token_ids=TOKEN_IDS)
        self.engine = drafted_engine(make_draft, self.target, **options)
        self.drafts: DraftHead = self.engine.drafter._model

    def add(self, request_id: str, prompt: list[int], **params: Any) -> None:
        params = {"max_tokens": 60, "num_assistant_tokens": 3, **params}
        self.engine.add(greedy(request_id, prompt, **params))

    def run(self) -> Texts:
        return texts(self.engine)

    @property
    def num_wrong(self) -> int:
        counters = self.engine.counters
        return counters.num_draft_tokens - counters.num_accepted_tokens


PROMPTS = [[i, 1, 2, 3, 4, 5, 6, 7, 8, 9][: 1 + 2 * i] for i in range(5)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("budget", [2048, 24])
def test_a_head_fed_rightly_is_always_right(n: int, budget: int) -> None:
    one = Speculation(max_num_batched_tokens=budget)
    for i, prompt in enumerate(PROMPTS):
        one.add(str(i), prompt, n=n)
    texts = one.run()
    for i, prompt in enumerate(PROMPTS):
        for index in range(n):
            assert texts[str(i), index] == continue_greedily(prompt, 60)
    assert one.num_wrong == 0
    assert one.engine.counters.num_accepted_tokens > 150


def test_sampled_texts_are_those_without_drafts() -> None:
    texts = []
    for number in (0, 3):
        one = Speculation()
        for i, prompt in enumerate(PROMPTS):
            one.add(str(i), prompt, n=2, temperature=4, seed=i, num_assistant_tokens=number)
        texts.append(one.run())
    assert texts[0] == texts[1]
    assert one.num_wrong > 0, "hidden states of rejected drafts were dropped"


def test_a_cached_prefix_is_taken_from_the_cache_of_the_head() -> None:
    one = Speculation()
    prompt = list(range(42))
    for _ in range(2):
        one.add("r", prompt, max_tokens=8)
        assert one.run()["r", 0] == continue_greedily(prompt, 8)
    assert [n for n in one.head.num_tokens_per_step if n > 5] == [42]
    assert one.head.num_gaps == 0
    assert one.num_wrong == 0


def test_a_cached_prefix_that_the_head_does_not_have_is_left_out() -> None:
    one = Speculation()
    prompt = list(range(42))
    one.add("plain", prompt, max_tokens=8, num_assistant_tokens=0)
    one.run()
    assert not one.head.num_tokens_per_step
    one.add("drafted", prompt, max_tokens=8)
    assert one.run()["drafted", 0] == continue_greedily(prompt, 8)
    assert one.head.num_gaps > 0
    assert max(one.head.num_tokens_per_step) < 10
    assert one.num_wrong == 0


def test_head_cache_is_not_shared_between_different_first_tokens() -> None:
    one = Speculation()
    for first in (50, 60):
        one.add("r", [first, *range(41)], max_tokens=8)
        one.run()
    assert [n for n in one.head.num_tokens_per_step if n > 5] == [42, 42]


def test_a_long_prompt_is_followed_while_it_is_computed() -> None:
    one = Speculation(max_num_batched_tokens=80, max_model_len=400)
    one.add("r", [i % 90 for i in range(300)], max_tokens=8)
    pending = 0
    while one.engine.has_work:
        one.engine.step()
        pending = max(pending, *(f.num_pending for f in one.drafts._heads.values()), 0)
    assert pending <= 80
    assert one.num_wrong == 0


def test_pending_hidden_states_stay_bounded_while_drafting_pauses() -> None:
    one = Speculation(max_model_len=700)
    one.add("r", [1, 2, 3], max_tokens=600, num_assistant_tokens=None)
    most = 0
    while one.engine.has_work:
        one.engine.step()
        for policy in one.engine.drafter._drafters.values():
            if policy.model_policy is not None:
                policy.model_policy._pause_until = 10_000
        most = max(most, *(f.num_pending for f in one.drafts._heads.values()), 0)
    assert most == 64
    assert len(one.head.num_tokens_per_step) == 600 // 64


def test_sequence_without_room_in_the_draft_cache_gets_no_drafts() -> None:
    one = Speculation(draft_tokens=60)
    expected = {}
    for i in range(6):
        prompt, num_tokens = [i] * 10, 20 + 10 * i
        one.add(str(i), prompt, max_tokens=num_tokens)
        expected[str(i), 0] = continue_greedily(prompt, num_tokens)
    assert one.run() == expected
    assert one.engine.counters.num_accepted_tokens > 60
    assert one.num_wrong == 0


def test_text_longer_than_the_head_allows_goes_without_drafts() -> None:
    one = Speculation(draft_len=30)
    one.add("r", [1, 2, 3])
    assert one.run()["r", 0] == continue_greedily([1, 2, 3], 60)
    assert 15 <= one.engine.counters.num_accepted_tokens <= 30


@pytest.mark.parametrize("method", ["infer", "hidden_states"])
def test_a_head_that_fails_is_switched_off(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = Speculation()

    def fail(inputs: StepInputs) -> NDArray[np.float32]:
        raise RuntimeError

    if method == "infer":
        monkeypatch.setattr(one.head, "infer", fail)
    else:
        monkeypatch.setattr(one.drafts, "observe", fail)
    one.add("r", [1, 2, 3])
    assert one.run()["r", 0] == continue_greedily([1, 2, 3], 60)
    assert one.engine.counters.num_draft_tokens == 0
    assert caplog.messages == ["the draft model failed and is switched off"]


@pytest.mark.slow
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), options=DRAFTING)
def test_random_operations_leak_no_block_and_make_no_wrong_draft(
    seed: int, options: dict[str, Any]
) -> None:
    one = Speculation(max_model_len=options["num_blocks"] * 4, **options)
    RandomOperations(one.engine, random.Random(seed)).run(100)
    assert one.drafts.blocks.num_free_blocks == one.drafts.blocks.num_blocks
    assert options["enable_prompt_lookup"] or one.num_wrong == 0
