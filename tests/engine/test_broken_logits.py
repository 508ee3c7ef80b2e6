"""Tests that requests with NaN or infinite logits end with an error, and that other requests are
not affected."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.engine import Engine
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.sampler import MAX_STREAK
from fastovms.errors import BrokenLogits, EngineFailed
from fastovms.params import (
    BeamSearch,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
)
from fastovms.parts.drafts.draft_model import DraftModel
from tests.engine.engines import drafted_engine, fake_engine, greedy, run, text, texts
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily

BAD = 13
"""A token for which the model returns broken logits."""

PROMPT = [7, 7, BAD, 7, 7, 7, 7, 7, 7]
GOOD = [1, 2, 3, 4, 5, 6, 7, 8, 9]
EVERYTHING = np.arange(VOCAB_SIZE)
SOME = EVERYTHING[::5]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class BreakingModel(FakeModel):
    """A model whose logits at `where` are `value` if `BAD` is in the context, or in any case."""

    is_damaged = False

    def __init__(self, value: float = np.nan, where: NDArray[np.int64] = EVERYTHING) -> None:
        super().__init__()
        self._value = value
        self._where = where
        self.num_trials = 0

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.num_trials += not inputs.input_ids.any()
        return super().infer(inputs)

    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits_after(context)
        if BAD in context or self.is_damaged:
            logits[self._where] = self._value
        return logits


def make_engine(model: FakeModel, **settings: Any) -> Engine:
    return fake_engine(model, max_num_batched_tokens=8, **settings)


def request(request_id: str, prompt: list[int], **params: Any) -> GenerationRequest:
    return greedy(request_id, prompt, **{"max_tokens": 12, "ignore_eos": True, **params})


def assert_broken(outputs: list[GenerationOutput]) -> None:
    *others, last = outputs
    assert not text(others)
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, str(BrokenLogits()))
    assert not last.token_ids


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (np.nan, EVERYTHING),
        (-np.nan, EVERYTHING),
        (np.nan, SOME),
        (-np.nan, SOME),
        (np.inf, SOME),
        (-np.inf, EVERYTHING),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1},
        {"n": 3, "temperature": 1.0},
        {"logit_bias": ((5, 100.0),)},
        {"allowed_token_ids": (1, 2), "logprobs": 2},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.5},
        {"logprobs": 3},
        {"prompt_logprobs": 1},
        {"n": 2, "beam_search": BeamSearch(num_beams=3)},
        {"prompt_logprobs": 1, "n": 2, "beam_search": BeamSearch(num_beams=3)},
    ],
    ids=str,
)
def test_request_with_broken_logits_ends_alone(
    value: float, where: NDArray[np.int64], params: dict[str, Any]
) -> None:
    engine = make_engine(BreakingModel(value, where))
    outputs = run(engine, request("good", GOOD), request("bad", PROMPT, **params))
    assert text(outputs.pop(("good", 0))) == continue_greedily(GOOD, 12)
    assert len(outputs) == params.get("n", 1)
    for broken in outputs.values():
        assert_broken(broken)
    assert engine.blocks.num_free_blocks == 64


def test_tokens_with_minus_infinity_are_never_generated() -> None:
    engine = make_engine(BreakingModel(-np.inf, np.array([0, 50])))
    asked = [request(f"{temperature}", PROMPT, temperature=temperature) for temperature in (0, 1)]
    for said in texts(engine, *asked).values():
        assert len(said) == 12
        assert not {0, 50}.intersection(said)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_infinity_that_the_request_has_made_is_no_fault_of_the_model(temperature: float) -> None:
    asked = request("r", GOOD, repetition_penalty=1e-37, temperature=temperature)
    assert len(texts(make_engine(FakeModel()), asked)["r", 0]) == 12


def test_text_before_a_broken_token_is_streamed_without_drafts_behind_it() -> None:
    prompt = next(p for p in ([i, *GOOD] for i in range(97)) if BAD in continue_greedily(p, 30)[5:])
    expected = continue_greedily(prompt, 30)
    expected = expected[: expected.index(BAD) + 1]
    (outputs,) = run(make_engine(BreakingModel()), request("r", prompt, max_tokens=30)).values()
    assert text(outputs[:-1]) == expected
    assert outputs[-1].finish_reason is FinishReason.ERROR


def test_blocks_computed_with_broken_logits_are_not_reused() -> None:
    """A fault of the machine may have damaged them."""
    model = BreakingModel()
    engine = make_engine(model)
    prompt = [*GOOD, *GOOD]
    for model.is_damaged in (False, True):
        run(engine, request("r", prompt))
    model.is_damaged = False
    (outputs,) = run(engine, request("again", prompt)).values()
    assert outputs[0].num_cached_tokens == 0
    assert text(outputs) == continue_greedily(prompt, 12)


def test_many_broken_requests_do_not_end_the_engine() -> None:
    engine = make_engine(BreakingModel())
    for i in range(20):
        (outputs,) = run(engine, request(str(i), PROMPT)).values()
        assert_broken(outputs)
    assert engine.blocks.num_free_blocks == 64


@pytest.mark.parametrize("params", [{}, {"beam_search": BeamSearch(num_beams=2)}], ids=str)
def test_a_damaged_model_ends_the_engine(params: dict[str, Any]) -> None:
    model = BreakingModel()
    engine = make_engine(model)
    run(engine, request("before", GOOD))
    model.is_damaged = True
    ended: list[str] = []

    def go_on() -> None:
        for i in range(10):
            (outputs,) = run(engine, request(str(i), GOOD, **params)).values()
            assert_broken(outputs)
            ended.append(str(i))

    with pytest.raises(EngineFailed, match=r"not numbers .* whatever the prompt"):
        go_on()
    assert 1 <= len(ended) <= MAX_STREAK - 1


@pytest.mark.parametrize(("good_every", "num_trials"), [(3, 0), (4, 1), (100, 2)])
def test_model_is_tried_only_after_several_broken_requests_in_a_row(
    good_every: int, num_trials: int
) -> None:
    model = BreakingModel()
    engine = make_engine(model)
    for i in range(1, 7):
        run(engine, request(str(i), PROMPT if i % good_every else GOOD, max_tokens=1))
    assert model.num_trials == num_trials


def test_broken_draft_model_does_not_change_the_text() -> None:
    draft = BreakingModel()
    draft.is_damaged = True
    engine = drafted_engine(partial(DraftModel, draft, num_token_ids=VOCAB_SIZE))
    assert texts(engine, request("r", GOOD))["r", 0] == continue_greedily(GOOD, 12)
