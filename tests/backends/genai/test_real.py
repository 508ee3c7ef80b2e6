"""Tests of the real pipeline in its process: a vision model, and a text model beside the paged
engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from fastovms.app.choice import compile_backend
from fastovms.backend import GenerationBackend
from fastovms.backends.model_files import Comparison, read_model_info
from fastovms.backends.paged.backend import PagedBackend
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError, InvalidField
from fastovms.params import (
    BeamSearch,
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    Image,
    SamplingParams,
    TextPrompt,
)
from fastovms.parts.genai.backend import GenaiBackend
from fastovms.server_config import DEMO_MODEL
from fastovms.system.disk import DiskCache, cache_root
from fastovms.text.tokenizer import Tokenizer
from tests.backends.listener import Listener, idle
from tests.paths import TINY_VLM

pytestmark = pytest.mark.asyncio(loop_scope="module")


QUESTION = "<|im_start|>user\n<ov_genai_image_0>what?<|im_end|>\n<|im_start|>assistant\n"
NUM_QUESTION_TOKENS = 18
"""The tokens of a prompt other than those of an image."""


def load(model_dir: Path, **config: object) -> GenerationBackend:
    engine = EngineConfig(**{"cache_size": 1, **config})  # type: ignore[arg-type]
    cache = DiskCache(cache_root(None, os.environ))  # the result of the comparison is cached
    return compile_backend(model_dir, read_model_info(model_dir), engine, cache)(2**30, None, None)


async def running(backend: GenerationBackend) -> AsyncIterator[GenerationBackend]:
    backend.start()
    yield backend
    await backend.close()


for_module = pytest_asyncio.fixture(scope="module", loop_scope="module")


@for_module
async def vision() -> AsyncIterator[GenerationBackend]:
    async for backend in running(load(TINY_VLM)):
        yield backend


def noise(seed: int, height: int = 56, width: int = 84) -> Image:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def ask(
    backend: GenerationBackend, request_id: str, text: str, images: list[Image], **params: object
) -> Listener:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 6, **params})  # type: ignore[arg-type]
    listener = Listener(sampling.n)
    request = GenerationRequest(request_id, [1] * 9, sampling, prompt=TextPrompt(text, images))
    backend.submit(request, listener)
    return listener


async def test_images_and_texts_in_one_batch(vision: GenerationBackend) -> None:
    assert isinstance(vision, GenaiBackend)
    assert (vision.model.takes_images, vision.model.max_model_len) == (True, 2048)
    alone = []
    for seed in range(2):
        listener = ask(vision, f"alone-{seed}", QUESTION, [noise(seed)])
        await listener.done.wait()
        alone.append(listener.text())
    assert alone[0] != alone[1], "the model sees the images"
    crowd = [ask(vision, f"crowd-{i}", QUESTION, [noise(i % 2)]) for i in range(4)]
    texts = [ask(vision, f"text-{i}", "hello there", []) for i in range(2)]
    await asyncio.gather(*(listener.done.wait() for listener in (*crowd, *texts)))
    assert [listener.text() for listener in crowd] == alone * 2
    assert texts[0].text() == texts[1].text() != alone[0]
    assert [len(o.token_ids) for o in crowd[0].outputs] == [1] * 6, "it streams"
    assert [listener.outputs[-1].num_prompt_tokens for listener in crowd] == [
        NUM_QUESTION_TOKENS + 6
    ] * 4
    await idle(vision)


async def test_images_in_the_prefix_cache_do_not_change_logprobs(vision: GenerationBackend) -> None:
    question = QUESTION.replace("<ov_genai_image_0>", "<ov_genai_image_0><ov_genai_image_1>")
    told = []
    for i in range(2):
        images = [noise(3), noise(4)]
        listener = ask(vision, f"r{i}", question, images, max_tokens=40, logprobs=1)
        await listener.done.wait()
        told.append([logprob.logprob for o in listener.outputs for logprob in o.logprobs])
    assert told[0] == pytest.approx(told[1], abs=1e-4)


async def test_an_image_that_the_model_cannot_take_costs_only_its_request(
    vision: GenerationBackend,
) -> None:
    other = ask(vision, "other", QUESTION, [noise(0)], max_tokens=30)
    thin = ask(vision, "thin", QUESTION, [noise(0, 2, 900)])
    lost = ask(vision, "lost", QUESTION, [])
    await asyncio.gather(*(listener.done.wait() for listener in (other, thin, lost)))
    assert len(other.text()) == 30
    reasons = [listener.outputs[0].refusal for listener in (thin, lost)]
    assert [r and r.message.partition(": ")[2] for r in reasons] == [
        "Absolute aspect ratio must be smaller than 200",
        "Missing image/video with index 0",
    ]
    await idle(vision)


async def test_a_process_that_is_killed_ends_every_request() -> None:
    backend = load(TINY_VLM)
    assert isinstance(backend, GenaiBackend)
    backend.start()
    listener = ask(backend, "r", QUESTION, [noise(0)], max_tokens=2000)
    await listener.started.wait()
    os.kill(backend._peer._process.pid, signal.SIGSEGV)  # type: ignore[attr-defined]
    await listener.done.wait()
    assert listener.outputs[-1].finish_reason is FinishReason.ERROR
    assert backend.failure == "the pipeline's process was ended by SIGSEGV"
    await backend.close()


@for_module
async def text() -> AsyncIterator[GenerationBackend]:
    async for backend in running(load(DEMO_MODEL, backend="genai")):
        yield backend


@for_module
async def paged() -> AsyncIterator[GenerationBackend]:
    async for backend in running(load(DEMO_MODEL)):
        assert isinstance(backend, PagedBackend)
        yield backend


async def complete(backend: GenerationBackend, text: str, **params: object) -> Listener:
    fields: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 12,
        "eos_token_ids": backend.model.eos_token_ids,
    }
    sampling = SamplingParams(**(fields | params))
    token_ids = Tokenizer.load(DEMO_MODEL).encode(text)
    listener = Listener(sampling.n)
    backend.submit(GenerationRequest(text, token_ids, sampling), listener)
    await listener.done.wait()
    return listener


async def test_genai_backend_generates_the_text_of_the_paged_engine(
    text: GenerationBackend, paged: GenerationBackend
) -> None:
    cases: list[dict[str, Any]] = [
        {"logprobs": 1},
        {"repetition_penalty": 1.3},
        {"min_tokens": 4, "frequency_penalty": 0.5},
        {"n": 2, "beam_search": BeamSearch(3)},
    ]
    for params in cases:
        here = await complete(text, "Once upon a time", max_tokens=40, **params)
        there = await complete(paged, "Once upon a time", max_tokens=40, **params)
        for index in range(params.get("n", 1)):
            assert here.text(index) == there.text(index), params
        if "logprobs" in params:
            told = [
                [logprob.logprob for output in listener.outputs for logprob in output.logprobs]
                for listener in (here, there)
            ]
            assert told[0] == pytest.approx(told[1], abs=1e-3)


CHOICE = Grammar(GrammarKind.CHOICE, '["yes", "no way"]')
STRUCTURE = {
    GrammarKind.REGEX: ("[ab]{3}", lambda text: len(text) == 3 and set(text) <= {"a", "b"}),
    GrammarKind.CHOICE: (CHOICE.source, lambda text: text in ("yes", "no way")),
    GrammarKind.GRAMMAR: ('root ::= "x" | "y"', lambda text: text in ("x", "y")),
    GrammarKind.STRUCTURAL_TAG: (
        '{"type": "tag", "begin": "a", "content": {"type": "regex", "pattern": "[bc]"}, '
        '"end": "d"}',
        lambda text: text in ("abd", "acd"),
    ),
    GrammarKind.JSON_SCHEMA: ('{"type": "boolean"}', lambda text: text in ("true", "false")),
}


async def test_grammars_are_followed_or_refused(text: GenerationBackend) -> None:
    tokenizer = Tokenizer.load(DEMO_MODEL)
    checks: dict[GrammarKind, tuple[str, Callable[[str], bool]]] = STRUCTURE
    for kind, (source, holds) in checks.items():
        grammar = Grammar(kind, source)
        await text.compile_grammar(grammar, "")
        listener = await complete(text, "Once upon a time", grammar=grammar)
        assert holds(tokenizer.decode(listener.text())), kind
        assert listener.outputs[-1].finish_reason is FinishReason.STOP
    for grammar in (
        Grammar(GrammarKind.REGEX, "[a-"),
        Grammar(GrammarKind.GRAMMAR, 'start: "this is Lark"'),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "nope"}'),
    ):
        with pytest.raises(InvalidField, match="cannot be used"):
            await text.compile_grammar(grammar, "")
    await complete(text, "Once upon a time")


@pytest.mark.nightly(but=("config1",))
@pytest.mark.parametrize("config", [{"enable_prompt_lookup": True}, {"draft_model": DEMO_MODEL}])
async def test_drafts_do_not_change_the_greedy_text(
    config: dict[str, object], text: GenerationBackend
) -> None:
    async for backend in running(load(DEMO_MODEL, backend="genai", **config)):
        here = await complete(backend, "Once upon a time")
        there = await complete(text, "Once upon a time")
        assert here.text() == there.text()
        await idle(backend)


SHORT, LONG = "Once upon", "Once upon a time " * 8


@pytest.mark.nightly(but=("sampled",))
@pytest.mark.parametrize(
    ("config", "texts", "max_tokens"),
    [
        ({"enable_prompt_lookup": True}, [SHORT], [5]),
        ({"enable_prompt_lookup": True, "cache_size": 0.003}, [SHORT, LONG], [5, 60, 60]),
        ({"draft_model": DEMO_MODEL}, [SHORT, LONG], [5, 60, 60]),
    ],
    ids=["more drafts than a step may have", "more sequences than the cache", "sampled drafts"],
)
async def test_crowd_with_drafts_ends_without_errors(
    config: dict[str, object], texts: list[str], max_tokens: list[int]
) -> None:
    prompts = [Tokenizer.load(DEMO_MODEL).encode(text) for text in texts]
    async for backend in running(load(DEMO_MODEL, **{"backend": "genai", **config})):
        listeners = [Listener() for _ in range(80)]
        for i, listener in enumerate(listeners):
            params = SamplingParams(seed=i, max_tokens=max_tokens[i % len(max_tokens)])
            prompt = prompts[i % len(prompts)]
            backend.submit(GenerationRequest(f"{i}", prompt, params), listener)
        await asyncio.gather(*(listener.done.wait() for listener in listeners))
        assert backend.failure is None
        assert {listener.outputs[-1].finish_reason for listener in listeners} == {
            FinishReason.LENGTH
        }
        await idle(backend)


def far_off(subject: str) -> Comparison:
    return Comparison(
        "", subject, (DEMO_MODEL / "openvino_model.xml",), lambda: 1.0, weights_size=0
    )


async def test_too_small_cache_is_a_configuration_error() -> None:
    config = EngineConfig(cache_size=1e-6)
    reserve = compile_backend(TINY_VLM, read_model_info(TINY_VLM), config)
    with pytest.raises(ConfigurationError, match="raise --cache-size"):
        reserve(2**30, None, None)


@pytest.mark.nightly
async def test_a_small_cache_shortens_the_context(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(cache_size=0.0001)
    backend = compile_backend(TINY_VLM, read_model_info(TINY_VLM), config)(2**30, None, None)
    assert isinstance(backend, GenaiBackend)
    assert 64 <= backend.model.max_model_len < 2048
    stats = backend.stats()  # before the first step
    assert stats.block_size * stats.num_blocks >= backend.model.max_model_len
    assert "context length reduced" in caplog.text
    backend._peer.kill()
    backend._peer.connection.close()
    backend._peer.wait()
