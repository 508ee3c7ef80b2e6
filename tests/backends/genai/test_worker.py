"""Tests of `fastovms/backends/genai/worker.py`."""

from __future__ import annotations

import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from fastovms.config import EngineConfig
from fastovms.params import (
    BeamSearch,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    ModelInfo,
    Refusal,
    SamplingParams,
    TextPrompt,
)
from fastovms.parts.genai.pipeline import CacheCapacity
from fastovms.parts.genai.worker import PipelineEngine
from tests.backends.genai import fake_pipeline
from tests.backends.genai.fake_pipeline import NUM_IMAGE_TOKENS, FakeHandle, FakePipeline, Status
from tests.engine.engines import greedy as request
from tests.engine.fake_model import continue_greedily

# The requests of the pipeline and their results, with a fake pipeline.


IMAGE = np.zeros((2, 3, 3), np.uint8)


def model(*, takes_images: bool = False, max_model_len: int = 64) -> ModelInfo:
    return ModelInfo("m", 0, max_model_len, 97, frozenset({2}), takes_images=takes_images)


def engine_over(
    pipeline: FakePipeline,
    info: ModelInfo | None = None,
    *,
    num_blocks: int = 10,
    parts: dict[str, Any] | None = None,
    **config: Any,
) -> PipelineEngine:
    """Returns an engine over a fake pipeline.

    Args:
        parts: further arguments of `PipelineEngine`.
    """
    return PipelineEngine(
        pipeline,
        info or model(),
        EngineConfig(**config),
        CacheCapacity(num_blocks=num_blocks, block_size=32),
        new_seed=lambda: 11,
        **(parts or {}),
    )


def with_images(request_id: str, text: str, num_images: int = 1, **params: object) -> object:
    sampling = SamplingParams(**{"temperature": 0, **params})  # type: ignore[arg-type]
    names = [f"part[{position}]" for position in range(num_images)]
    prompt = TextPrompt(text, [IMAGE] * num_images, "messages", names)
    return GenerationRequest(request_id, list(text.encode()), sampling, prompt=prompt)


def finish(engine: PipelineEngine) -> dict[str, list[GenerationOutput]]:
    outputs: dict[str, list[GenerationOutput]] = {}
    while engine.has_work:
        for request_id, output in engine.step():
            outputs.setdefault(request_id, []).append(output)
    return outputs


def tokens(outputs: list[GenerationOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_end_of_text_token_is_counted_but_not_sent():
    said = continue_greedily([1], 20)
    engine = engine_over(FakePipeline())
    end = said[5]
    assert said.index(end) == 5
    engine.add(request("r", [1], eos_token_ids=frozenset({end})))
    engine.add(request("s", [1], stop_token_ids=frozenset({end}), ignore_eos=True))
    engine.add(request("t", [1], eos_token_ids=frozenset({end}), ignore_eos=True, max_tokens=9))
    outputs = finish(engine)
    for request_id, stop_token_id in (("r", None), ("s", end)):
        last = outputs[request_id][-1]
        assert tokens(outputs[request_id]) == said[:5]
        assert (last.finish_reason, last.num_generated_tokens) == (FinishReason.STOP, 6)
        assert last.stop_token_id == stop_token_id
    assert tokens(outputs["t"]) == said[:9]
    assert outputs["t"][-1].finish_reason is FinishReason.LENGTH


def test_sample_ends_at_the_context_length():
    engine = engine_over(FakePipeline(), model(max_model_len=16))
    engine.add(request("r", [1, 2, 3]))
    engine.add(request("s", [1, 2, 3], max_tokens=100))
    for outputs in finish(engine).values():
        assert len(tokens(outputs)) == 13
        assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_the_best_beams_in_order_and_no_more_than_are_wanted():
    pipeline = FakePipeline()
    engine = engine_over(pipeline)
    search = BeamSearch(4)
    engine.add(request("r", [1], n=2, beam_search=search, max_tokens=3, logprobs=0))
    outputs = finish(engine)["r"]
    assert [(o.index, list(o.token_ids)) for o in outputs] == [
        (index, continue_greedily([1], 3)) for index in range(2)
    ]
    assert [len(o.logprobs) for o in outputs] == [3, 3]
    assert engine.stats().counters.num_generated_tokens == 6


def test_beams_whose_scores_are_no_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch):
    part = fake_pipeline._part
    monkeypatch.setattr(fake_pipeline, "_part", lambda ids, reason, _=0: part(ids, reason, np.nan))
    engine = engine_over(FakePipeline())
    engine.add(request("r", [1], n=2, beam_search=BeamSearch(2), max_tokens=3))
    outputs = finish(engine)["r"]
    assert [(o.index, o.finish_reason) for o in outputs] == [
        (index, FinishReason.ERROR) for index in range(2)
    ]
    assert all("not numbers" in (o.error or "") for o in outputs)


def test_beam_search_ends_when_all_samples_are_aborted():
    engine = engine_over(FakePipeline())
    engine.add(request("r", [1], n=2, beam_search=BeamSearch(2), max_tokens=30))
    engine.step()
    assert engine.stats().num_running == 2
    engine.abort("r", 0)
    assert engine.stats().num_running == 2
    engine.abort("r", 1)
    assert engine.stats().num_running == 0
    assert engine.has_work, "the pipeline has to be told"
    assert engine.step() == []
    assert not engine.has_work


def test_requests_are_admitted_by_priority_then_arrival():
    engine = engine_over(FakePipeline(), max_num_seqs=1)
    for request_id, priority in (("a", 0), ("b", 0), ("c", -10), ("d", 10)):
        params = SamplingParams(temperature=0, max_tokens=1)
        engine.add(GenerationRequest(request_id, [1], params, priority=priority))
    admitted = []
    while engine.has_work:
        engine.step()
        admitted += engine.admitted
    assert admitted == ["c", "a", "b", "d"]


def test_aborted_request_keeps_its_slot_for_a_step():
    engine = engine_over(FakePipeline(), max_num_seqs=1)
    engine.add(request("a", [1], max_tokens=30))
    engine.step()
    engine.add(request("b", [1], max_tokens=1))
    engine.abort("a")
    admitted = []
    while engine.has_work:
        engine.step()
        admitted.append(list(engine.admitted))
    assert admitted == [[], ["b"]]


class SlowPipeline(FakePipeline):
    """Takes 3 seconds to encode images and one second for a step."""

    now = 0.0

    def add_request(self, request_id: int, *arguments: Any) -> FakeHandle:
        self.now += 3.0 * bool(arguments[1])
        return super().add_request(request_id, *arguments)

    def step(self) -> None:
        self.now += 1.0
        super().step()


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(20, [["a", "c"], [], [], ["b"], []]), (1, [["a", "c"], ["b"], [], [], []])],
    ids=["streams run", "nothing runs"],
)
def test_images_take_half_of_the_time_of_running_streams(max_tokens, expected):
    pipeline = SlowPipeline()
    freed: list[float] = []
    parts = {"free_memory": lambda: freed.append(pipeline.now), "clock": lambda: pipeline.now}
    engine = engine_over(pipeline, model(takes_images=True), num_blocks=40, parts=parts)
    for request_id in "ab":
        engine.add(with_images(request_id, "<ov_genai_image_0>", max_tokens=max_tokens))
    engine.add(with_images("c", "text", 0, max_tokens=max_tokens))
    admitted = []
    for _ in range(5):
        engine.step()
        admitted.append(list(engine.admitted))
    assert admitted == expected
    assert len(freed) == 2, "memory is given back after each encoding"


@pytest.mark.parametrize("refused", [None, RuntimeError("too small")])
@pytest.mark.parametrize(("side", "is_large"), [(500, False), (512, True)])
def test_the_memory_of_large_images_is_given_back_when_no_more_wait(side, is_large, refused):
    pipeline = FakePipeline()
    freed: list[int] = []
    parts = {"free_memory": lambda: freed.append(len(pipeline.added)), "clock": lambda: 0.0}
    engine = engine_over(pipeline, model(takes_images=True), num_blocks=4000, parts=parts)
    image = np.zeros((side, side, 3), np.uint8)
    for request_id in "ab":
        prompt = TextPrompt("a", [image], "messages", ["part"])
        params = SamplingParams(max_tokens=1)
        engine.add(GenerationRequest(request_id, [1], params, prompt=prompt))
    engine.step()
    engine.step()
    assert engine.has_work == is_large
    pipeline.refused = refused
    assert finish(engine) == {}
    assert not engine.has_work
    shapes = [list(images[0].get_shape()) for _, images, _ in pipeline.added]
    assert shapes == [[1, side, side, 3]] * 2 + [[1, 56, 56, 3]] * is_large
    assert len(freed) == len(shapes)


def test_images_are_dropped_once_all_samples_have_begun():
    image = IMAGE.copy()
    gone = weakref.ref(image)
    engine = engine_over(FakePipeline(), model(takes_images=True), num_blocks=40, max_num_seqs=2)
    params = SamplingParams(n=3, max_tokens=2)
    engine.add(GenerationRequest("a", [1], params, prompt=TextPrompt("a", [image], "m", ["p"])))
    del image
    engine.step()
    assert gone() is not None
    finish(engine)
    assert gone() is None
    engine.add(GenerationRequest("b", [1], params, prompt=TextPrompt("a", [IMAGE.copy()])))
    assert len(finish(engine)["b"]) >= 3


def test_last_output_counts_image_tokens_and_samples_have_seeds_of_their_own():
    pipeline = FakePipeline()
    engine = engine_over(pipeline, model(takes_images=True))
    engine.add(with_images("a", "hello", 2, max_tokens=2, n=2, temperature=1.0, seed=5))
    engine.add(request("s", [96, 1], temperature=0.5, max_tokens=2))
    outputs = finish(engine)["a"]
    expected = 1 + len("hello") + 2 * NUM_IMAGE_TOKENS
    told = [output.num_prompt_tokens for output in outputs]
    assert [n for n in told if n] == [expected] * 2
    assert all((o.num_prompt_tokens is None) == (o.finish_reason is None) for o in outputs)
    assert sorted(added[-1].rng_seed for added in pipeline.added) == [5, 6, 11]
    [image, _] = pipeline.added[0][1]
    assert (image.get_shape(), image.get_element_type().to_string()) == ([1, 2, 3, 3], "u8")


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(None, 9), (100, 9), (64, 9), (20, 9), (9, 9), (8, 8), (1, 1)]
)
def test_the_context_counts_the_tokens_of_images(max_tokens, expected):
    text = "x" * (64 - 9 - 1 - NUM_IMAGE_TOKENS)
    engine = engine_over(FakePipeline(), model(takes_images=True))
    engine.add(with_images("a", text, max_tokens=max_tokens))
    outputs = finish(engine)["a"]
    assert len(tokens(outputs)) == expected
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_images_that_fill_the_context_are_refused():
    engine = engine_over(FakePipeline(), model(takes_images=True))
    engine.add(with_images("a", "x" * 50, 3))
    engine.add(with_images("b", "x" * 50, 3, max_tokens=2, n=2))
    for request_id, outputs in finish(engine).items():
        assert [o.index for o in outputs] == list(range(len(outputs)))
        assert len(outputs) == (2 if request_id == "b" else 1)
        assert outputs[0].finish_reason is FinishReason.ERROR
        assert outputs[0].refusal == Refusal(
            "the prompt with its images leaves no room to generate in the context of 64 tokens",
            "messages",
            "context_length_exceeded",
        )


def test_a_request_that_the_cache_has_no_room_for_is_an_error():
    pipeline = FakePipeline()
    engine = engine_over(pipeline)
    engine.add(request("r", [1], n=2, beam_search=BeamSearch(2)))
    engine.step()
    [handle] = pipeline._handles
    handle.status = Status.IGNORED
    outputs = [output for _, output in engine.step()]
    assert [(o.index, o.error) for o in outputs] == [
        (index, "the KV cache has no room for the request") for index in range(2)
    ]
    assert not engine.has_work


def test_encoding_of_images_is_announced():
    told = []
    parts = {"on_images": told.append}
    engine = engine_over(FakePipeline(), model(takes_images=True), parts=parts)
    engine.add(with_images("a", "text", 0, max_tokens=1))
    engine.add(with_images("b", "text", 2, max_tokens=1))
    finish(engine)
    assert told == [2]


# The pipeline's results and refusals in the types of a backend.


@pytest.mark.parametrize(
    ("error", "num_images", "refusal"),
    [
        (
            RuntimeError("at here\nAbsolute aspect ratio must be smaller than 200\n\n"),
            None,
            Refusal("the model cannot take this request: Absolute aspect ratio must be smaller "
                    "than 200"),
        ),
        (IndexError("stoul"), None, Refusal("the model cannot take this request: stoul")),
        (MemoryError("no more"), None, None),
        (RuntimeError("at here\nno\n"), 0,
         Refusal("the model cannot take this request: no", "messages")),
        (RuntimeError("at here\nno\n"), 1,
         Refusal("part[0]: the model cannot take this image: no", "part[0]")),
        (RuntimeError("at here\nno\n"), 2,
         Refusal("the model cannot take this request: no", "messages")),
    ],
)  # fmt: skip
def test_request_that_the_pipeline_refuses_fails_alone(error, num_images, refusal):
    pipeline = FakePipeline()
    pipeline.refused = error
    has_images = num_images is not None
    engine = engine_over(pipeline, model(takes_images=has_images))
    if has_images:
        engine.add(with_images("bad", "hello", num_images, max_tokens=3))
        engine.add(with_images("good", "hello", 0, max_tokens=3))
    else:
        engine.add(request("bad", [1], max_tokens=3))
        engine.add(request("good", [1], max_tokens=3))
    outputs = finish(engine)
    assert len(tokens(outputs["good"])) == 3
    [output] = outputs["bad"]
    assert output.finish_reason is FinishReason.ERROR
    assert output.refusal == refusal
    assert output.error == (refusal.message if refusal else "MemoryError: no more")


def test_a_handle_that_ends_without_a_reason_has_stopped():
    pipeline = FakePipeline()
    engine = engine_over(pipeline)
    engine.add(request("r", [1]))
    engine.step()
    pipeline._handles[0].status = Status.FINISHED
    [(_, output)] = engine.step()
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.STOP)


@pytest.mark.parametrize(
    ("params", "num_told"),
    [
        ({"eos_token_ids": "end"}, 5),
        ({"stop_token_ids": "end"}, 6),
        ({"stop_token_ids": "end", "n": 2, "beam_search": BeamSearch(2)}, 6),
    ],
)
def test_tokens_and_the_stop_token_have_log_probabilities(params, num_told):
    said = continue_greedily([1], 6)
    params = {name: frozenset({said[5]}) if p == "end" else p for name, p in params.items()}
    engine = engine_over(FakePipeline())
    engine.add(request("r", [1], logprobs=1, **params))
    told = [entry for output in finish(engine)["r"] for entry in output.logprobs]
    assert [entry.token_id for entry in told] == said[:num_told] * params.get("n", 1)
    assert (told[0].logprob, list(told[0].top_token_ids)) == (-0.5, said[:1])


# Modules that the pipeline's process does not import.


@pytest.mark.parametrize("module", ["numba", "uvloop"])
def test_the_worker_does_not_import_what_it_does_not_need(module: str) -> None:
    code = f"import sys, fastovms.parts.genai.worker; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
