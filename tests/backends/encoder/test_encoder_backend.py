"""Over the real model, and over one that stops where a test wants it."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from fastovms.backends.encoder.encoder_backend import ThreadedEncoder
from fastovms.encoding import EncoderInfo, EncoderText, Task
from fastovms.errors import BackendUnavailable, EngineFailed, Overloaded
from tests.fakes import model_info

TIMEOUT = 10


class StoppingModel:
    """Adds up a text's tokens, in two segments, each of which waits to be let pass."""

    info = EncoderInfo(Task.EMBEDDINGS, 1)
    num_segments = 2

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.batches: list[list[EncoderText]] = []
        self.error: Exception | None = None

    def batch(self, texts):
        self.batches.append(texts)
        return self

    @property
    def num_tokens(self) -> int:
        lengths = [len(text.token_ids) for text in self.batches[-1]]
        return len(lengths) * max(lengths)

    @property
    def rows(self):
        sums = [[text.token_ids.sum()] for text in self.batches[-1]]
        return np.array(sums, np.float32)

    def compute(self, batch, segment: int) -> None:
        self.begun.release()
        assert self.passes.acquire(timeout=TIMEOUT)
        if self.error is not None:
            raise self.error


def text(*token_ids: int) -> EncoderText:
    return EncoderText(np.array(token_ids, np.int64))


@pytest.fixture
async def made():
    model = StoppingModel()
    backend = ThreadedEncoder(model, model_info(), max_batch_tokens=4, max_num_queued=3)
    backend.start()
    yield model, backend
    for _ in range(100):
        model.passes.release()
    await backend.close()


async def begun(model: StoppingModel) -> None:
    assert await asyncio.to_thread(model.begun.acquire, True, TIMEOUT)


async def test_rows_are_in_the_order_of_the_texts(made):
    model, backend = made
    for _ in range(100):
        model.passes.release()
    texts = [text(*[1] * n) for n in (3, 1, 2, 1, 4)]
    rows = (await backend.encode(texts, "me")).rows
    assert rows.tolist() == [[3], [1], [2], [1], [4]]
    assert len(model.batches) > 1
    async with asyncio.timeout(TIMEOUT):
        while backend.stats().num_running:  # noqa: ASYNC110 (the thread counts it afterwards)
            await asyncio.sleep(0.001)
    stats = backend.stats()
    assert stats.counters.num_prompt_tokens == 11
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.counters.num_steps == 2 * len(model.batches)


async def test_what_it_counts():
    model = StoppingModel()
    backend = ThreadedEncoder(model, model_info(), max_batch_tokens=64, max_num_queued=3)
    backend.start()
    for _ in range(100):
        model.passes.release()
    await backend.encode([text(1), text(2, 2), text(3)], "me")
    counted = backend.stats().encoder
    await backend.close()
    lengths = [[len(one.token_ids) for one in texts] for texts in model.batches]
    assert counted.num_texts == 3
    assert counted.num_padding_tokens == sum(max(n) * len(n) - sum(n) for n in lengths) > 0
    assert counted.batch_sizes.count == len(lengths)
    assert counted.batch_sizes.buckets()[1] == 3


async def test_how_long_texts_wait_and_are_computed(made):
    model, backend = made
    first = asyncio.ensure_future(backend.encode([text(1)], "a"))
    await begun(model)
    second = asyncio.ensure_future(backend.encode([text(2)], "a", 1))
    await asyncio.sleep(0.05)
    for _ in range(4):
        model.passes.release()
    earlier, later = await first, await second
    assert earlier.compute_time >= 0.05
    assert later.queue_time >= 0.05
    assert earlier.queue_time >= 0 <= later.compute_time


async def test_what_is_given_up_is_not_computed(made):
    model, backend = made
    long = asyncio.ensure_future(backend.encode([text(1, 1, 1, 1)] * 5, "a"))
    await begun(model)
    assert backend.stats().num_waiting == 4
    long.cancel()
    await asyncio.wait([long])
    for _ in range(100):
        model.passes.release()
    assert (await backend.encode([text(5)], "b")).rows.tolist() == [[5]]
    assert len(model.batches) == 2
    assert backend.stats().num_waiting == 0


async def test_the_queue_is_bounded(made):
    _, backend = made
    waiting = [asyncio.ensure_future(backend.encode([text(1)], "a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await backend.encode([text(1)], "b")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_failure_ends_all(made, caplog):
    model, backend = made
    model.error = RuntimeError("no")
    model.passes.release()
    with pytest.raises(EngineFailed, match="no"):
        await backend.encode([text(1)], "a")
    assert backend.failure == "RuntimeError: no"
    with pytest.raises(EngineFailed):
        await backend.encode([text(1)], "a")


async def test_the_end(made):
    model, backend = made
    waiting = asyncio.ensure_future(backend.encode([text(1)], "a"))
    await begun(model)
    for _ in range(4):
        model.passes.release()
    await backend.close()
    with pytest.raises(BackendUnavailable):
        await waiting
    with pytest.raises(BackendUnavailable):
        await backend.encode([text(1)], "a")


async def test_before_the_start():
    model = StoppingModel()
    backend = ThreadedEncoder(model, model_info(), max_batch_tokens=4, max_num_queued=3)
    with pytest.raises(BackendUnavailable):
        await backend.encode([text(1)], "a")
    await backend.close()
