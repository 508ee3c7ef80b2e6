"""Prompts as the pipeline takes them."""

from __future__ import annotations

from fastovms.params import (
    FinishReason,
)
from tests.backends.genai.fake_pipeline import FakePipeline
from tests.backends.genai.test_pipeline_engine import engine_over, finish, model, with_images
from tests.backends.listener import request


def test_a_text_of_a_vision_model_loses_the_token_that_the_pipeline_puts_first():
    pipeline = FakePipeline()
    engine = engine_over(pipeline, model(takes_images=True))
    for request_id, text in (("a", "<s>hi"), ("b", "hi")):
        engine.add(with_images(request_id, text, 0, max_tokens=1))
    finish(engine)
    assert [added[0] for added in pipeline.added] == ["hi", "hi"]


def test_tokens_for_a_vision_model_must_be_those_of_a_text():
    pipeline = FakePipeline()
    engine = engine_over(pipeline, model(takes_images=True))
    engine.add(request("a", [96, 40, 41], max_tokens=1))
    engine.add(request("b", [40, 41], max_tokens=1))
    outputs = finish(engine)
    assert pipeline.added[0][:2] == ("()", [])
    assert outputs["a"][0].finish_reason is FinishReason.LENGTH
    assert outputs["b"][0].refusal.param == "prompt"
