"""Tests of the behaviour that all backends share, seen from the event loop, with fakes that
generate the same texts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.app.paged import engine_extensions
from fastovms.backend import GenerationBackend
from fastovms.backends.paged.backend import BackendParts, PagedBackend
from fastovms.config import EngineConfig
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded, RequestError
from fastovms.params import BeamSearch, FinishReason, GenerationOutput
from tests.backends.genai.fake_pipeline import FakePipeline, genai_backend
from tests.backends.listener import FAKE, Listener, idle
from tests.engine.engines import greedy as request
from tests.engine.fake_model import FakeModel, continue_greedily

CONFIG = EngineConfig(cache_size=0.002, max_num_queued_requests=4, max_num_seqs=3)

BeforeStep = Callable[[int], None]
"""A function that is called with the number of steps so far."""


class Make(Protocol):
    def __call__(
        self, before_step: BeforeStep, clock: Callable[[], float] = time.perf_counter
    ) -> GenerationBackend: ...


def nothing(num_steps: int) -> None:
    pass


def wait(event: threading.Event) -> None:
    assert event.wait(60)


class WatchedModel(FakeModel):
    def __init__(self, before_step: BeforeStep) -> None:
        super().__init__()
        self.before_step = before_step

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.before_step(len(self.num_tokens_per_step))
        return super().infer(inputs)


def make_paged(
    before_step: BeforeStep, clock: Callable[[], float] = time.perf_counter
) -> GenerationBackend:
    model = WatchedModel(before_step)
    parts = BackendParts(engine_extensions(model, CONFIG), clock=clock)
    return PagedBackend.from_model(model, FAKE, CONFIG, parts)


def make_genai(
    before_step: BeforeStep, clock: Callable[[], float] = time.perf_counter
) -> GenerationBackend:
    return genai_backend(FAKE, CONFIG, FakePipeline(before_step), clock)


@pytest.fixture(params=[make_paged, make_genai], ids=["paged", "genai"])
def make(request: pytest.FixtureRequest) -> Make:
    make: Make = request.param
    return make


@pytest.fixture
async def backend(make: Make) -> AsyncIterator[GenerationBackend]:
    backend = make(nothing)
    backend.start()
    yield backend
    await backend.close()


async def test_requests_run_side_by_side(backend: GenerationBackend) -> None:
    listeners = [Listener(2) for _ in range(2)]
    for i, listener in enumerate(listeners):
        backend.submit(request(str(i), [i, 2, 3], max_tokens=50, n=2), listener)
        assert not listener.outputs, "none comes before `submit` returns"
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    for i, listener in enumerate(listeners):
        assert listener.text(0) == listener.text(1) == continue_greedily([i, 2, 3], 50)
    await idle(backend)
    stats = backend.stats()
    assert stats.counters.num_generated_tokens == 200
    assert stats.counters.num_prompt_tokens == 6


async def test_beams_come_whole_or_are_refused_at_once(backend: GenerationBackend) -> None:
    listener = Listener(2)
    search = BeamSearch(3)
    backend.submit(request("r", [1, 2], max_tokens=5, n=2, beam_search=search), listener)
    await listener.done.wait()
    assert [(o.index, len(o.token_ids)) for o in listener.outputs] == [(0, 5), (1, 5)]
    with pytest.raises(RequestError, match="4 beams cannot run: --max-num-seqs allows 3"):
        backend.submit(request("s", [1], beam_search=BeamSearch(4)), listener)
    await idle(backend)


async def test_abort_silences_and_frees(backend: GenerationBackend) -> None:
    listener, other = Listener(), Listener()
    backend.submit(request("r", [1], max_tokens=4000), listener)
    backend.submit(request("other", [2], max_tokens=20), other)
    await listener.started.wait()
    backend.abort("r")
    num_outputs = len(listener.outputs)
    await other.done.wait()
    await idle(backend)
    assert len(listener.outputs) == num_outputs
    backend.abort("r")
    backend.abort("never seen")


async def test_abort_of_one_sample_leaves_the_others(backend: GenerationBackend) -> None:
    listener = Listener()
    backend.submit(request("r", [1], max_tokens=300, n=2), listener)
    await listener.started.wait()
    backend.abort("r", 0)
    await listener.done.wait()
    assert listener.text(1) == continue_greedily([1], 300)
    assert len(listener.text(0)) < 300
    await idle(backend)


async def test_a_full_queue_refuses_at_once(backend: GenerationBackend) -> None:
    for i in range(4):
        backend.submit(request(str(i), [i], max_tokens=4000), Listener())
    with pytest.raises(Overloaded, match="4 requests are waiting"):
        backend.submit(request("late", [1]), Listener())
    for i in range(4):
        backend.abort(str(i))
    await idle(backend)
    listener = Listener()
    backend.submit(request("later", [1], max_tokens=1), listener)
    await listener.done.wait()


async def test_first_output_has_the_queue_time(make: Make) -> None:
    ticks = count()
    both_submitted = threading.Event()
    backend = make(lambda num_steps: wait(both_submitted), lambda: float(next(ticks)))
    backend.start()
    first, last = Listener(3), Listener()
    backend.submit(request("first", [1], max_tokens=30, n=3), first)
    backend.submit(request("last", [2], max_tokens=30), last)
    both_submitted.set()
    await asyncio.gather(first.done.wait(), last.done.wait())
    for listener in (first, last):
        told = [output.queue_time for output in listener.outputs]
        assert told[0] is not None
        assert told[1:] == [None] * (len(told) - 1)
    waited = [listener.outputs[0].queue_time or 0.0 for listener in (first, last)]
    assert 0 <= waited[0] < 4 < waited[1], "the second had to wait for the steps of the first"
    await backend.close()


async def test_a_prompt_beyond_the_context_is_refused(backend: GenerationBackend) -> None:
    with pytest.raises(RequestError, match="4096 tokens") as error:
        backend.submit(request("r", [1] * 4096), Listener())
    assert error.value.code == "context_length_exceeded"
    await idle(backend)


async def test_a_faulty_listener_costs_only_itself(
    backend: GenerationBackend, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(output: GenerationOutput) -> None:
        raise ValueError("listener")

    listener = Listener()
    backend.submit(request("faulty", [1], max_tokens=4000), faulty)
    backend.submit(request("r", [2], max_tokens=10), listener)
    await listener.done.wait()
    await idle(backend)
    assert listener.text() == continue_greedily([2], 10)
    assert "request faulty failed" in caplog.text


async def test_an_engine_that_dies_ends_every_request(make: Make) -> None:
    def fail_at_third(num_steps: int) -> None:
        if num_steps == 2:
            raise RuntimeError("out of luck")

    backend = make(fail_at_third)
    backend.start()
    listener = Listener(2)
    backend.submit(request("r", [1], max_tokens=50, n=2), listener)
    await listener.done.wait()
    assert {o.finish_reason for o in listener.outputs if o.finish_reason} == {FinishReason.ERROR}
    assert listener.outputs[-1].error == "RuntimeError: out of luck"
    assert backend.failure == "RuntimeError: out of luck"
    with pytest.raises(EngineFailed, match="out of luck"):
        backend.submit(request("late", [1]), Listener())
    await backend.close()


async def test_close_ends_what_runs(make: Make) -> None:
    backend = make(nothing)
    with pytest.raises(BackendUnavailable):
        backend.submit(request("early", [1]), Listener())
    backend.start()
    listener = Listener()
    backend.submit(request("r", [1], max_tokens=4000), listener)
    await backend.close()
    await listener.done.wait()
    assert listener.outputs[-1].finish_reason is FinishReason.ABORT
    with pytest.raises(BackendUnavailable):
        backend.submit(request("late", [1]), Listener())
    await backend.close()


@pytest.mark.parametrize("is_declared_dead", [False, True])
async def test_a_step_that_hangs_ends_with_close_or_where_it_is_declared_dead(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_declared_dead: bool,
) -> None:
    entered, released = threading.Event(), threading.Event()

    def hang(num_steps: int) -> None:
        entered.set()
        wait(released)

    for module in ("backends.paged.backend", "parts.genai.backend"):
        monkeypatch.setattr(f"fastovms.{module}._CLOSE_TIMEOUT", 0.05)
    backend = make(hang)
    backend.start()
    listener = Listener()
    backend.submit(request("r", [1]), listener)
    await asyncio.to_thread(entered.wait)
    if is_declared_dead:
        backend.fail("no step has ended for 60 s")
        assert [o.error for o in listener.outputs] == ["no step has ended for 60 s"]
        with pytest.raises(EngineFailed, match="no step has ended"):
            backend.submit(request("late", [1]), Listener())
        released.set()
    await backend.close()
    released.set()
    if not is_declared_dead:
        assert listener.outputs[-1].finish_reason is FinishReason.ABORT
        assert "a step still runs" in caplog.text
