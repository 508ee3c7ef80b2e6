"""What the pipeline gives and refuses, in the words of a backend."""

from __future__ import annotations

import pytest

from fastovms.params import (
    BeamSearch,
    FinishReason,
    Refusal,
)
from tests.backends.genai.fake_pipeline import FakePipeline, Status
from tests.backends.genai.test_pipeline_engine import (
    engine_over,
    finish,
    model,
    tokens,
    with_images,
)
from tests.backends.listener import request
from tests.engine.fake_model import continue_greedily


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (
            RuntimeError("at here\nAbsolute aspect ratio must be smaller than 200\n\n"),
            "the model cannot take this request: Absolute aspect ratio must be smaller than 200",
        ),
        (IndexError("stoul"), "the model cannot take this request: stoul"),
        (MemoryError("no more"), None),
    ],
)
def test_what_the_pipeline_refuses_fails_alone(error, refusal):
    pipeline = FakePipeline()
    pipeline.refused = error
    engine = engine_over(pipeline)
    engine.add(request("bad", [1], max_tokens=3))
    engine.add(request("good", [1], max_tokens=3))
    outputs = finish(engine)
    assert tokens(outputs["good"]) == continue_greedily([1], 3)
    [output] = outputs["bad"]
    assert output.finish_reason is FinishReason.ERROR
    assert output.refusal == (refusal and Refusal(refusal))
    assert output.error == (refusal or "MemoryError: no more")


@pytest.mark.parametrize(
    ("num_images", "refusal"),
    [
        (0, Refusal("the model cannot take this request: no", "messages")),
        (1, Refusal("part[0]: the model cannot take this image: no", "part[0]")),
        (2, Refusal("the model cannot take this request: no", "messages")),
    ],
)
def test_what_the_pipeline_refuses_is_named_as_well_as_can_be(num_images, refusal):
    pipeline = FakePipeline()
    pipeline.refused = RuntimeError("at here\nno\n")
    engine = engine_over(pipeline, model(takes_images=True))
    engine.add(with_images("bad", "hello", num_images, max_tokens=3))
    [output] = finish(engine)["bad"]
    assert output.refusal == refusal


def test_a_handle_that_ends_without_a_reason_has_stopped():
    pipeline = FakePipeline()
    engine = engine_over(pipeline)
    engine.add(request("r", [1]))
    engine.step()
    pipeline._handles[0].status = Status.FINISHED
    [(_, output)] = engine.step()
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.STOP)


def test_log_probabilities_are_of_the_chosen_token():
    engine = engine_over(FakePipeline())
    engine.add(request("r", [1], logprobs=1, max_tokens=1))
    engine.add(request("s", [1], logprobs=0, max_tokens=1))
    outputs = finish(engine)
    token = continue_greedily([1], 1)[0]
    [told] = outputs["r"][0].logprobs
    assert (told.token_id, told.logprob) == (token, -0.5)
    assert (list(told.top_token_ids), list(told.top_logprobs)) == ([token], [-0.5])
    assert outputs["s"][0].logprobs[0].top_token_ids == []


@pytest.mark.parametrize(
    ("params", "num_told"),
    [
        ({"eos_token_ids": "end"}, 5),
        ({"stop_token_ids": "end"}, 6),
        ({"stop_token_ids": "end", "n": 2, "beam_search": BeamSearch(2)}, 6),
    ],
)
def test_a_stop_token_has_its_log_probability(params, num_told):
    said = continue_greedily([1], 6)
    params = {name: frozenset({said[5]}) if p == "end" else p for name, p in params.items()}
    engine = engine_over(FakePipeline())
    engine.add(request("r", [1], logprobs=0, **params))
    told = [entry for output in finish(engine)["r"] for entry in output.logprobs]
    assert [entry.token_id for entry in told] == said[:num_told] * params.get("n", 1)
