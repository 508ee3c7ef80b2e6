"""Drafts save steps and change nothing."""

from __future__ import annotations

from array import array
from typing import NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.engine import Engine
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.drafting.test_draft_model import FakeDraft
from tests.engine.drafting.test_draft_model import make_engine as make_draft_engine
from tests.engine.fake_model import continue_greedily
from tests.engine.test_engine import make_engine, run, text


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("temperature", [0, 5])
def test_drafts_save_steps_and_change_nothing(automatic: bool, temperature: float) -> None:
    def generate(lookup: bool) -> tuple[dict[tuple[str, int], list[int]], Engine]:
        engine, _ = make_engine(
            num_blocks=256, max_model_len=512, enable_prompt_lookup=lookup and automatic
        )
        params = SamplingParams(
            temperature=temperature,
            seed=1,
            max_tokens=150,
            num_assistant_tokens=4 if lookup and not automatic else None,
        )
        for i in range(2):
            engine.add(GenerationRequest(str(i), [i, 1, 2, 3, 4, 5, 6, 7], params))
        outputs = run(engine)
        told = sum(output.num_accepted_tokens for of in outputs.values() for output in of)
        assert told == engine.counters.num_accepted_tokens
        return {key: text(of) for key, of in outputs.items()}, engine

    plain, plain_engine = generate(lookup=False)
    drafted, engine = generate(lookup=True)
    assert drafted == plain
    assert plain_engine.counters.num_draft_tokens == 0
    assert engine.counters.num_steps < 0.9 * plain_engine.counters.num_steps
    assert 0 < engine.counters.num_accepted_tokens < engine.counters.num_draft_tokens
    assert 0 < engine.counters.num_drafts < engine.counters.num_draft_tokens
    assert engine.counters.num_generated_tokens == plain_engine.counters.num_generated_tokens == 300


class FaultyGrammar:
    """Bars nothing, and fails where it is asked for drafts.

    Attributes:
        forces: whether it can say what it forces.
    """

    error = ""

    def __init__(self, *, forces: bool) -> None:
        self.forces = forces

    def __call__(self, logits: NDArray[np.float32], token_ids: array[int]) -> None: ...

    def give_up(self) -> None: ...

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        if self.forces:
            return []
        raise RuntimeError("no forced tokens")

    def scout(self, token_ids: array[int]) -> NoReturn:
        raise RuntimeError("no scout")


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("lookup", [True, False])
def test_a_fault_in_a_guess_costs_that_sequence_its_drafts_and_nobody_anything_else(
    forces: bool, lookup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine, draft_model = make_draft_engine(FakeDraft(), enable_prompt_lookup=lookup)
    assert draft_model is not None
    texts = {str(i): [i, 1, 2, 3, 4, 5, 6, 7] for i in range(2)}
    for request_id, prompt in texts.items():
        params = SamplingParams(temperature=0, max_tokens=60)
        engine.add(GenerationRequest(request_id, prompt, params))
    (faulty,) = engine._requests["0"]
    faulty.grammar = FaultyGrammar(forces=forces)
    outputs = run(engine)
    for request_id, prompt in texts.items():
        assert text(outputs[request_id, 0]) == continue_greedily(prompt, 60)
    assert len(outputs["0", 0]) == 60
    assert len(outputs["1", 0]) < 60
    assert caplog.text.count("request 0 goes on without drafts") == 1
    assert "request 1" not in caplog.text


class BrokenDraft(FakeDraft):
    """Breaks down after some steps."""

    num_steps = 0

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.num_steps += 1
        if self.num_steps > 12:
            raise RuntimeError("the device is gone")
        return super().infer(inputs)


@pytest.mark.parametrize("lookup", [True, False])
def test_a_draft_model_that_fails_is_switched_off(
    lookup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    draft = BrokenDraft()
    engine, _ = make_draft_engine(draft, enable_prompt_lookup=lookup)
    for name in "ab":
        prompts = {f"{name}{i}": [i, 1, 2, 3, 4, 5, 6, 7] for i in range(3)}
        for request_id, prompt in prompts.items():
            params = SamplingParams(temperature=0, max_tokens=60)
            engine.add(GenerationRequest(request_id, prompt, params))
        outputs = run(engine)
        for request_id, prompt in prompts.items():
            assert text(outputs[request_id, 0]) == continue_greedily(prompt, 60)
    assert draft.num_steps == 13
    assert caplog.text.count("the draft model has failed") == 1
