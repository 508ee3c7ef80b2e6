"""Tests of `fastovms/parts/embeddings/encoder_backend.py`."""

from __future__ import annotations

import asyncio
import shutil
import threading

import numpy as np
import openvino_genai
import pytest

from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.config import EncoderConfig, EngineConfig
from fastovms.errors import BackendUnavailable, ConfigurationError, EngineFailed, Overloaded
from fastovms.params import Task
from fastovms.parts.embeddings.encoder import EncoderInfo, EncoderText
from fastovms.parts.embeddings.encoder_backend import (
    QueuedText,
    SliceCosts,
    TextQueue,
    ThreadedEncoder,
    load_encoder,
)
from fastovms.parts.embeddings.served import read_info
from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.fakes import model_info


def test_slice_has_the_segments_that_fit():
    costs = SliceCosts(4)
    assert costs.end(0, 100, 1.0) == 1  # nothing is known
    assert costs.max_tokens(1.0, 50) == 50
    for segment in range(4):
        costs.note(segment, 100, 0.2)
    ends = {(0, 100, 1.0): 4, (0, 100, 0.41): 2, (0, 100, 0.29): 1, (0, 100, 0.31): 2}
    ends |= {(0, 200, 0.41): 1, (2, 50, 0.01): 3}
    assert {given: costs.end(*given) for given in ends} == ends
    most = {(0.1, 1000): 50, (0.1, 20): 20, (1e-9, 20): 1}
    assert {given: costs.max_tokens(*given) for given in most} == most


def batches_of(queue: TextQueue, max_tokens: int) -> list[list[QueuedText]]:
    found = []
    while batch := queue.next_batch(max_tokens):
        queue.check()
        found.append(batch)
    return found


def test_a_batch_has_about_equal_lengths():
    queue = TextQueue()
    queue.add("a", "job", [100, 20, 95, 90, 30, 84])
    found = [[text.length for text in batch] for batch in batches_of(queue, 1000)]
    assert found == [[100, 95, 90], [84], [30], [20]]


@pytest.mark.parametrize(
    ("max_tokens", "num"), [(1, 1), (31, 1), (32, 2), (63, 2), (64, 4), (1000, 6)]
)
def test_batch_is_bounded_by_its_tokens(max_tokens, num):
    queue = TextQueue()
    queue.add("a", "job", [10] * 6)
    assert len(queue.next_batch(max_tokens)) == num


def test_clients_take_turns_also_within_a_batch():
    queue = TextQueue()
    queue.add("a", "long", [10] * 4)
    queue.add("b", "short", [500] * 2)
    served = [text.job for [text] in batches_of(queue, 10)]
    assert served == ["long", "short", "long", "short", "long", "long"]
    for client in "abc":
        queue.add(client, client, [12, 11])
    served = [[text.job for text in batch] for batch in batches_of(queue, 64)]
    assert served == [["a", "a", "b", "b"], ["c", "c"]]


def test_discarded_texts_are_not_computed():
    queue = TextQueue()
    queue.add("a", 1, [5, 5])
    queue.add("a", 2, [5])
    queue.discard("a", 1)
    queue.discard("a", 1)
    assert [text.job for text in queue.next_batch(100)] == [2]
    assert queue.num_texts == 0


def test_lower_priority_texts_wait_for_all_others() -> None:
    queue: TextQueue[str] = TextQueue()
    queue.add("batch", "late", [10, 10], 9)
    queue.add("a", "first", [10])
    queue.add("b", "second", [10])
    assert [job for job, *_ in queue.next_batch(1000)] == ["first", "second"]
    assert [job for job, *_ in queue.next_batch(10)] == ["late"]
    queue.add("a", "third", [4])
    assert [job for job, *_ in queue.next_batch(10)] == ["third"]
    queue.check()
    queue.discard("batch", "late", 9)
    queue.check()
    assert not queue.num_texts


# With the real model, and with a model that stops when a test requests it.


TIMEOUT = 60


class StoppingModel:
    """Adds up a text's tokens in two segments, each of which waits for the test. Returns NaN for
    token 13."""

    info = EncoderInfo(Task.EMBEDDINGS, 1)
    num_segments = 2

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.batches: list[list[EncoderText]] = []
        self.error: Exception | None = None

    def go_on(self) -> None:
        self.passes.release(100)

    def batch(self, texts):
        self.batches.append(texts)
        return self

    @property
    def num_tokens(self) -> int:
        lengths = [len(text.token_ids) for text in self.batches[-1]]
        return len(lengths) * max(lengths)

    @property
    def rows(self):
        ids = [text.token_ids for text in self.batches[-1]]
        return np.array([[np.nan if 13 in each else each.sum()] for each in ids], np.float32)

    def compute(self, batch, segment: int) -> None:
        self.begun.release()
        assert self.passes.acquire(timeout=TIMEOUT)
        if self.error is not None:
            raise self.error


def text(*token_ids: int) -> EncoderText:
    return EncoderText(np.array(token_ids, np.int64))


@pytest.fixture
async def made():
    model, backend = await start()
    yield model, backend
    model.go_on()
    await backend.close()


async def start(max_batch_tokens: int = 4, max_num_queued: int = 3):
    model = StoppingModel()
    backend = ThreadedEncoder(
        model, model_info(), max_batch_tokens=max_batch_tokens, max_num_queued=max_num_queued
    )
    with pytest.raises(BackendUnavailable):
        await backend.encode([text(1)], "a")
    backend.start()
    return model, backend


async def begun(model: StoppingModel) -> None:
    assert await asyncio.to_thread(model.begun.acquire, True, TIMEOUT)


async def test_rows_are_in_the_order_of_the_texts(made):
    model, backend = made
    model.go_on()
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


async def test_encoder_counts_batches_and_tokens():
    model, backend = await start(max_batch_tokens=64)
    model.go_on()
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
    await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    model.passes.release(4)
    earlier, later = await first, await second
    assert earlier.compute_time >= 0.05
    assert later.queue_time >= 0.05
    assert earlier.queue_time >= 0 <= later.compute_time


async def test_texts_that_are_given_up_leave_the_queue():
    model, backend = await start(max_num_queued=9)

    def send(client: str) -> asyncio.Future:
        return asyncio.ensure_future(backend.encode([text(1)] * 2, client))

    async def end_segment() -> None:
        model.passes.release()
        await begun(model)

    first = send("a")
    await begun(model)
    given_up, others = [send("b") for _ in range(3)], [send("c"), send("c")]
    await asyncio.sleep(0)
    for _ in range(2):  # the others were received before the second text
        await end_segment()
    for job in given_up:
        job.cancel()
    await asyncio.wait(given_up)
    for _ in range(2):
        await end_segment()
    num_left = backend._texts.num_texts
    model.go_on()
    await asyncio.gather(first, *others)
    await backend.close()
    assert num_left <= 4  # of the first and the others


async def test_encoder_queue_is_bounded_per_client(made):
    _, backend = made
    waiting = [asyncio.ensure_future(backend.encode([text(1)], "a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        await backend.encode([text(1)], "a")
    waiting += [asyncio.ensure_future(backend.encode([text(1)], "b")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not waiting[4].done()
    assert isinstance(waiting[5].exception(), Overloaded)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_values_that_are_not_numbers_fail_their_request_alone():
    model, backend = await start(max_batch_tokens=64)
    given = ([text(1)], [text(2), text(13)], [text(3)])
    encoding = [asyncio.ensure_future(backend.encode(texts, "me")) for texts in given]
    await asyncio.sleep(0)
    model.go_on()
    first, broken, other = await asyncio.gather(*encoding, return_exceptions=True)
    await backend.close()
    assert (first.rows.tolist(), other.rows.tolist()) == ([[1]], [[3]])
    assert isinstance(broken, EngineFailed)
    assert str(broken) == "the model gave values that are not numbers (NaN or infinite)"
    assert max(map(len, model.batches)) > 1
    assert backend.failure is None


async def test_failed_encoder_ends_all_requests(made, caplog):
    model, backend = made
    model.error = RuntimeError("no")
    model.passes.release()
    with pytest.raises(EngineFailed, match="no"):
        await backend.encode([text(1)], "a")
    assert backend.failure == "RuntimeError: no"
    with pytest.raises(EngineFailed):
        await backend.encode([text(1)], "a")


async def test_close_fails_waiting_and_later_encodings(made):
    model, backend = made
    waiting = asyncio.ensure_future(backend.encode([text(1)], "a"))
    await begun(model)
    model.passes.release(4)
    await backend.close()
    with pytest.raises(BackendUnavailable):
        await waiting
    with pytest.raises(BackendUnavailable):
        await backend.encode([text(1)], "a")


# A loaded model returns the vectors and scores of openvino_genai's pipelines.


EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
TEXTS = ["the model of the river", "a b", "open fast " * 20, "x", "first question of the day"]
POOLING = openvino_genai.TextEmbeddingPipeline.PoolingType


async def encode(directory, config: EncoderConfig, make_texts):
    info = read_info(directory, name="tiny")
    engine = EngineConfig(plugin_config=EXACT)
    backend, texts = load_encoder(directory, info, engine, config, ComputeTurn(ActiveEngines()))
    backend.start()
    try:
        return (await backend.encode(make_texts(texts), "me")).rows
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("pooling", "theirs"),
    [("auto", POOLING.CLS), ("mean", POOLING.MEAN), ("last", POOLING.LAST_TOKEN)],
)
async def test_embeddings_equal_those_of_genai_for_each_pooling(pooling, theirs):
    def make_texts(texts):
        return [EncoderText(texts.enclosed(each)) for each in texts.encode(TEXTS)]

    rows = await encode(encoder_dir(), EncoderConfig(pooling=pooling), make_texts)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    config = openvino_genai.TextEmbeddingPipeline.Config(pooling_type=theirs)
    pipeline = openvino_genai.TextEmbeddingPipeline(encoder_dir(), "CPU", config, **EXACT)
    np.testing.assert_allclose(rows, pipeline.embed_documents(TEXTS), atol=1e-5)


@pytest.mark.parametrize("num_labels", [1, 2])
async def test_rerank_scores_equal_those_of_genai(num_labels):
    query = "the model"

    def make_texts(texts):
        [first] = texts.encode([query])
        return [EncoderText(*texts.pair.join(first, each)) for each in texts.encode(TEXTS)]

    rows = await encode(encoder_dir(num_labels), EncoderConfig(), make_texts)
    margin = rows[:, 0] if num_labels == 1 else rows[:, 1] - rows[:, 0]
    pipeline = openvino_genai.TextRerankPipeline(
        encoder_dir(num_labels), "CPU", top_n=len(TEXTS), **EXACT
    )
    theirs = [score for _, score in sorted(pipeline.rerank(query, TEXTS))]
    np.testing.assert_allclose(1 / (1 + np.exp(-margin)), theirs, atol=1e-5)


async def test_a_decoder_cannot_score_where_its_words_are_not_known(tmp_path):
    ignored = shutil.ignore_patterns("openvino_detokenizer.*")
    directory = shutil.copytree(DEMO_MODEL, tmp_path / "m", ignore=ignored)
    with pytest.raises(ConfigurationError, match=r"m cannot be served as a reranker: .*detokeni"):
        await encode(directory, EncoderConfig(task="rerank"), None)
