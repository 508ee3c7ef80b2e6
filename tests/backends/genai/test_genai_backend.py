"""What the loop makes of the process's messages."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from multiprocessing.connection import Pipe

import numpy as np

from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.backends.engine_thread.in_flight import StepReport
from fastovms.backends.genai.genai_backend import _ENCODING_ALLOWANCE, GenaiBackend
from fastovms.backends.genai.grammars import guard_pipeline
from fastovms.backends.genai.worker_messages import EncodingImages, WorkerFailed
from fastovms.backends.processes.process import receive, send
from fastovms.config.engine_config import EngineConfig
from fastovms.params import GenerationRequest, SamplingParams, TextPrompt
from tests.backends.genai.fake_pipeline import ThreadPeer
from tests.backends.listener import Listener
from tests.fakes import model_info


class ScriptedPeer(ThreadPeer):
    """Its other end is the test's."""

    def __init__(self) -> None:
        self.connection, self.theirs = Pipe()

    def kill(self) -> None:
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def test_an_image_counts_until_the_pipeline_has_taken_it():
    """The copy in the worker's queue is not counted, so the server keeps its own as long."""
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
