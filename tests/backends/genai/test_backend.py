"""Tests of `fastovms/backends/genai/backend.py`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path

import numpy as np
import pytest

from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.backends.engine_thread import StepReport
from fastovms.backends.model_files import read_model_info
from fastovms.backends.processes import ChildProcess, WorkerFailed, receive, send
from fastovms.config import EngineConfig
from fastovms.errors import InvalidField
from fastovms.params import GenerationRequest, Grammar, GrammarKind, SamplingParams, TextPrompt
from fastovms.parts.genai import backend as pipeline_check
from fastovms.parts.genai.backend import (
    _ENCODING_ALLOWANCE,
    GenaiBackend,
    guard_pipeline,
    pipeline_comparison,
)
from fastovms.parts.genai.messages import EncodingImages
from fastovms.parts.grammars.trials import Trial, Verdict
from fastovms.server_config import DEMO_MODEL
from tests.backends.genai.fake_pipeline import ThreadPeer
from tests.backends.listener import Listener, until
from tests.backends.test_grammar_trials import FakeProcess
from tests.fakes import model_info
from tests.paths import TINY_VLM

# The pipeline's text is compared with that of the exported graph.


def difference(model_dir: Path) -> float:
    return pipeline_comparison(model_dir, read_model_info(model_dir)).difference()


@pytest.mark.parametrize("model_dir", [DEMO_MODEL, TINY_VLM])
def test_pipeline_computes_the_logits_of_the_graph(model_dir: Path) -> None:
    assert difference(model_dir) < 1e-4


def test_check_whose_process_crashes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_check, "_PROCESS", "this")
    with pytest.raises(RuntimeError, match="the process of the check has ended with code 1"):
        difference(DEMO_MODEL)


# Grammars for the pipeline are tried with its own compiler as well.


def grammar(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source, "guided_regex")


class Compiler:
    """A compiler whose processes return for each grammar the result of `answer`."""

    def __init__(self, answer: Callable[[str], str] = lambda source: "") -> None:
        self._answer = answer
        self.seen: list[str] = []

    def __call__(self, _: float) -> FakeProcess:
        return FakeProcess(self._see)

    def _see(self, source: str) -> Verdict:
        self.seen.append(source)
        return Verdict(self._answer(source))


async def test_accepted_grammar_is_not_compiled_again() -> None:
    ours, pipeline = Compiler(), Compiler()
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    for source in ("a", "b", "a"):
        assert await grammars.compile(grammar(source), "") == grammar(source)
    assert ours.seen == pipeline.seen == ["a", "b"]
    grammars.close()


async def test_refused_grammar_is_not_sent_to_the_pipeline() -> None:
    ours, pipeline = Compiler(lambda source: "Nonsense"), Compiler()
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    with pytest.raises(InvalidField, match="the regex cannot be used: Nonsense"):
        await grammars.compile(grammar("bad"), "")
    assert pipeline.seen == []
    grammars.close()


@pytest.mark.parametrize("ours", [None, Compiler()])
async def test_a_refusal_names_the_field(ours: Compiler | None) -> None:
    pipeline = Compiler(lambda source: "Unsupported" if source == "bad" else "")
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    for _ in range(2):
        with pytest.raises(InvalidField, match="the regex cannot be used: Unsupported") as e:
            await grammars.compile(grammar("bad"), "")
        assert e.value.param == "guided_regex"
    await grammars.compile(grammar("good"), "")
    assert pipeline.seen == ["bad", "good"]
    grammars.close()


async def test_grammar_that_crashes_the_pipeline_compiler_is_refused_alone() -> None:
    pipeline = Compiler(lambda source: str(1 // 0) if source == "bad" else "")
    grammars = guard_pipeline(None, start_pipeline=pipeline)
    with pytest.raises(InvalidField, match="too much for the compiler"):
        await grammars.compile(grammar("bad"), "")
    await grammars.compile(grammar("good"), "")
    assert grammars.stats.num_deaths == 1
    grammars.close()


def ask_process(seconds: float, grammar: Grammar) -> Verdict:
    trial = Trial(
        lambda: ChildProcess("fastovms.parts.genai.grammar_trial", str(seconds)), timeout=60
    )
    try:
        return trial.ask(grammar)
    finally:
        trial.close()


# The loop handles the process's messages.


class ScriptedPeer(ThreadPeer):
    """A connection whose other end is the test's."""

    def __init__(self) -> None:
        self.connection, self.theirs = Pipe()

    def kill(self) -> None:
        pass


async def test_an_image_counts_until_the_pipeline_has_taken_it():
    """The copy in the worker's queue is not counted, so the server keeps its own until then."""
    peer = ScriptedPeer()
    backend = GenaiBackend(peer, model_info(), EngineConfig(), guard_pipeline(None))
    backend.start()
    image = np.zeros((2, 2, 3), np.uint8)
    gone = weakref.ref(image)
    request = GenerationRequest("r", [1], SamplingParams(), prompt=TextPrompt("look", [image]))
    backend.submit(request, Listener())
    await asyncio.to_thread(receive, peer.theirs)
    del request, image
    queued = BackendStats(num_waiting=1)
    send(peer.theirs, StepReport([], [], 100.0, queued, 1))
    await until(lambda: backend.stats() == queued)
    assert gone() is not None
    send(peer.theirs, StepReport([], ["r"], 101.0, BackendStats(num_running=1), 1))
    await until(lambda: gone() is None)
    peer.theirs.close()
    await backend.close()


async def test_each_image_after_the_first_may_take_longer():
    peer = ScriptedPeer()
    backend = GenaiBackend(peer, model_info(), EngineConfig(), guard_pipeline(None))
    backend.start()
    listener = Listener()
    backend.submit(GenerationRequest("r", [1], SamplingParams()), listener)
    assert backend.stats() == backend.stats() == BackendStats(num_waiting=1)
    send(peer.theirs, EncodingImages(3))
    await until(lambda: backend.stats().step_allowance == 2 * _ENCODING_ALLOWANCE)
    send(peer.theirs, EncodingImages(1))
    await until(lambda: backend.stats().step_allowance == 0)
    step = BackendStats(num_running=1, counters=EngineCounters(num_steps=1))
    send(peer.theirs, StepReport([], ["r"], 100.0, step, 1))
    await until(lambda: backend.stats() == step)
    send(peer.theirs, WorkerFailed("RuntimeError: no more"))
    await listener.done.wait()
    assert listener.outputs[-1].error == "RuntimeError: no more"
    peer.theirs.close()
    await backend.close()
