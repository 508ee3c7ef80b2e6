from __future__ import annotations

import pytest

from fastovms.engine.model.warm_up import warm_up
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.fake_model import FakeModel, continue_greedily
from tests.engine.test_engine import make_engine, run, text


@pytest.mark.parametrize(
    ("max_model_len", "steps"), [(1, [1, 1]), (2, [1, 1]), (9, [8, 1]), (8192, [64, 1])]
)
def test_a_prompt_and_a_token_in_the_first_blocks(max_model_len: int, steps: list[int]) -> None:
    model = FakeModel(block_size=4)
    model.allocate_cache(-(-sum(steps) // 4))
    warm_up(model, max_model_len)
    assert model.num_tokens_per_step == steps
    assert model.has_forgotten_files


def test_an_engine_is_none_the_worse_for_it() -> None:
    engine, _ = make_engine()
    engine.warm_up()
    engine.check()
    prompt = list(range(9))
    engine.add(GenerationRequest("r", prompt, SamplingParams(temperature=0, max_tokens=8)))
    assert text(run(engine)["r", 0]) == continue_greedily(prompt, 8)
