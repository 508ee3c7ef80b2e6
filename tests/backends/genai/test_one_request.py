"""Tests of `fastovms/backends/genai/one_request.py`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from fastovms.backends.model_files import read_model_info
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.params import FinishReason, GenerationRequest, SamplingParams
from fastovms.parts.genai import pipeline as pipeline_module
from fastovms.parts.genai.one_request import (
    OneRequestPipeline,
    StaticLengths,
    load_one_request_pipeline,
)
from fastovms.parts.genai.pipeline import CacheCapacity
from fastovms.parts.genai.worker import PipelineEngine
from fastovms.server_config import DEMO_MODEL


class FakeTokenizer:
    def encode(self, text: str) -> Any:
        raise AssertionError("prompts are tokens")


class FakePipeline:
    """Generates the tokens of a list until the streamer stops it."""

    def __init__(self, token_ids: list[int], error: Exception | None = None) -> None:
        self._token_ids = token_ids
        self._error = error
        self.num_written = 0
        self.may_write = threading.Semaphore(10**6)

    def get_tokenizer(self) -> FakeTokenizer:
        return FakeTokenizer()

    def generate(self, prompt: Any, config: Any, streamer: Any) -> None:
        for token_id in self._token_ids[: config.max_new_tokens]:
            self.may_write.acquire()
            self.num_written += 1
            if streamer.write(token_id) != genai.StreamingStatus.RUNNING:
                return
        if self._error is not None:
            raise self._error


def engine_of(fake: FakePipeline, max_prompt: int = 8) -> PipelineEngine:
    pipeline = OneRequestPipeline(fake, StaticLengths(max_prompt, 8))  # type: ignore[arg-type]
    config = EngineConfig(device="NPU", max_num_seqs=1, enable_prefix_caching=False)
    return PipelineEngine(pipeline, read_model_info(DEMO_MODEL), config, CacheCapacity(4, 32))


def request(name: str, num_tokens: int = 3, **params: Any) -> GenerationRequest:
    known: dict[str, Any] = {"max_tokens": 5, "eos_token_ids": frozenset({2})}
    return GenerationRequest(name, list(range(5, 5 + num_tokens)), SamplingParams(**known | params))


def run(engine: PipelineEngine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while engine.has_work:
        assert engine.stats().num_running <= 1
        for name, output in engine.step():
            tokens, _, _ = found.get(name, ([], None, None))
            found[name] = ([*tokens, *output.token_ids], output.finish_reason, output.refusal)
    return found


def test_requests_run_one_after_another() -> None:
    engine = engine_of(FakePipeline([11, 12, 13, 2]))
    for name in ("a", "b", "c"):
        engine.add(request(name, max_tokens=3 if name == "b" else 9))
    stopped = ([11, 12, 13], FinishReason.STOP, None)
    assert run(engine) == {
        "a": stopped,
        "b": ([11, 12, 13], FinishReason.LENGTH, None),
        "c": stopped,
    }


def test_an_aborted_request_leaves_the_device() -> None:
    fake = FakePipeline([11] * 1000)
    fake.may_write = threading.Semaphore(3)
    engine = engine_of(fake)
    engine.add(request("a", max_tokens=1000))
    engine.add(request("b", max_tokens=2))
    for _ in range(3):
        assert [name for name, _ in engine.step()] == ["a"]
    engine.abort("a")
    for _ in range(10):
        fake.may_write.release()
    assert run(engine) == {"b": ([11, 11], FinishReason.LENGTH, None)}
    assert fake.num_written <= 7


def test_a_prompt_that_is_too_long_is_refused() -> None:
    engine = engine_of(FakePipeline([11]), max_prompt=4)
    engine.add(request("a", num_tokens=5))
    engine.add(request("b", num_tokens=4))
    found = run(engine)
    assert found["b"][:2] == ([11], FinishReason.STOP)
    tokens, reason, refusal = found["a"]
    assert (tokens, reason) == ([], FinishReason.ERROR)
    assert "the prompt has 5 tokens, but the model is compiled for at most 4" in refusal.message


def test_failure_of_the_npu_pipeline_ends_the_engine() -> None:
    engine = engine_of(FakePipeline([11], RuntimeError("the driver is gone")))
    engine.add(request("a"))
    with pytest.raises(RuntimeError, match="the driver is gone"):
        run(engine)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, (1024, 128)),
        ({"MAX_PROMPT_LEN": 2048}, (2048, 128)),
        ({"MAX_PROMPT_LEN": 512, "MIN_RESPONSE_LEN": 256}, (512, 256)),
    ],
)
def test_static_lengths_are_the_operators(
    properties: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert StaticLengths.of(EngineConfig(plugin_config=properties)) == expected


@pytest.mark.parametrize("value", [0, -1, "512", True, 1.5])
def test_wrong_static_lengths_are_named(value: object) -> None:
    with pytest.raises(ConfigurationError, match="MAX_PROMPT_LEN must be an integer of at least 1"):
        StaticLengths.of(EngineConfig(plugin_config={"MAX_PROMPT_LEN": value}))


def test_drafts_on_the_npu_are_refused() -> None:
    config = EngineConfig(device="NPU", enable_prompt_lookup=True)
    with pytest.raises(ConfigurationError, match="cannot be used on NPU"):
        load_one_request_pipeline(DEMO_MODEL, config, "NPU")


def test_the_context_is_exactly_as_long_as_the_model_is_compiled_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a longer context, the pipeline would end a text early as if it were complete."""

    def load(model_dir: Path, config: EngineConfig, device: str) -> Any:
        lengths = StaticLengths.of(config)
        fake: Any = FakePipeline([2])
        return OneRequestPipeline(fake, lengths), lengths

    monkeypatch.setattr(pipeline_module, "find_device", lambda *_, **__: "NPU")
    monkeypatch.setattr(pipeline_module, "load_one_request_pipeline", load)
    monkeypatch.setattr(pipeline_module, "_warm_up", lambda *_: None)
    config = EngineConfig(device="NPU", plugin_config={"MAX_PROMPT_LEN": 70, "MIN_RESPONSE_LEN": 7})
    _, capacity = pipeline_module.load_pipeline(DEMO_MODEL, config, available=0)
    assert capacity.num_tokens == 77


def test_one_request_pipeline_generates_the_text_of_llm_pipeline() -> None:
    """The class that OpenVINO GenAI uses on an NPU, with the same model as the other pipeline."""
    config = genai.GenerationConfig()
    config.max_new_tokens = 12
    config.apply_chat_template = False
    prompt = ov.Tensor(np.array([[30, 40, 50, 60]], np.int64))
    pipeline = OneRequestPipeline(genai.LLMPipeline(DEMO_MODEL, "CPU"), StaticLengths(64, 64))
    handle = pipeline.add_request(0, prompt, config)
    tokens: list[int] = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        while handle.can_read():
            tokens += handle.read()[0].generated_ids
    assert handle.get_status() == genai.GenerationStatus.FINISHED
    expected = genai.LLMPipeline(DEMO_MODEL, "CPU").generate(prompt, config).tokens[0]
    assert tokens[: len(expected)] == list(expected)
    assert len(tokens) <= 12
