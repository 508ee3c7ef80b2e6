"""Tests of `fastovms/backends/paged/backend.py`."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fastovms.app.paged import paging_comparison
from fastovms.backends.model_files import MAX_DIFFERENCE
from fastovms.backends.paged.backend import (
    BackendExtension,
    BackendParts,
    PagedBackend,
    SharedCores,
    WaitForRequests,
    reserve_cache,
)
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import ExportedModel
from fastovms.engine.model.kv_cache import States
from fastovms.errors import ConfigurationError, EngineFailed, RequestError
from fastovms.params import FinishReason, Grammar, GrammarKind
from fastovms.server_config import DEMO_MODEL
from tests.backends.listener import FAKE, Listener, idle
from tests.engine.engines import greedy as request
from tests.engine.fake_model import FakeModel, continue_greedily

# The comparison of a paged graph with the exported one.


def test_paging_comparison_is_of_the_files_of_the_graph() -> None:
    files = ExportedModel(DEMO_MODEL, max_model_len=128)
    comparison = paging_comparison(files)
    assert [path.parent for path in comparison.files] == [DEMO_MODEL] * 2

    assert comparison.weights_size == files.weights_size
    assert comparison.difference() < MAX_DIFFERENCE


def test_turns_and_tuning_share_the_count_of_engines() -> None:
    cores = SharedCores.create()
    assert cores.turn.slice_seconds is None, "nobody waits for a slice"
    cores.engines.begin()
    assert cores.turn.slice_seconds is not None
    with cores.engines.rest():
        assert cores.turn.slice_seconds is None


MIB_CACHE = EngineConfig(cache_size=2**20 / 1024**3)


def test_cache_takes_what_the_operator_gives_or_sequences_can_use() -> None:
    assert reserve_cache(FakeModel(), None, FAKE, MIB_CACHE, None) == 1024
    short, few = replace(FAKE, max_model_len=16), replace(MIB_CACHE, max_num_seqs=10)
    assert reserve_cache(FakeModel(), None, short, few, None) == 40


def test_a_cache_larger_than_the_free_memory_takes_what_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert reserve_cache(FakeModel(), None, FAKE, MIB_CACHE, 512 * 1024) == 512
    assert "--cache-size 0.000976562 GiB does not fit" in caplog.text


def test_a_limit_of_the_address_space_is_named() -> None:
    class Limited(FakeModel):
        def allocate_cache(self, num_blocks: int) -> None:
            raise MemoryError

    with pytest.raises(ConfigurationError, match=r"cannot be reserved: .*ulimit -v"):
        reserve_cache(Limited(), None, FAKE, EngineConfig(), 2**30)


# The engine thread as the event loop sees it, with the fake model.


CONFIG = EngineConfig(cache_size=0.002, max_num_queued_requests=4, max_num_seqs=3)


@pytest.fixture
async def backend() -> AsyncIterator[PagedBackend]:
    backend = PagedBackend.from_model(FakeModel(), FAKE, CONFIG)
    backend.start()
    yield backend
    await backend.close()


async def test_a_request_that_cannot_be_queued_fails_alone(
    backend: PagedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    listener, other = Listener(), Listener()
    grammar = Grammar(GrammarKind.JSON_OBJECT, "")  # and there is no compiler for it
    backend.submit(request("broken", [1], grammar=grammar), listener)
    backend.submit(request("r", [2], max_tokens=10), other)
    await listener.done.wait()
    await other.done.wait()
    assert listener.outputs[-1].finish_reason is FinishReason.ERROR
    assert other.text() == continue_greedily([2], 10)
    await idle(backend)
    with pytest.raises(RequestError, match=r"needs a model with a tokenizer\.json"):
        await backend.compile_grammar(grammar, "")


@pytest.mark.parametrize(
    ("settings", "num_blocks"),
    [
        ({"cache_size": 1.0}, 3 * 1024),
        ({"cache_size": 0.0}, 3 * 1024),
        ({"cache_size": 1.0, "max_num_batched_tokens": 2}, 2 * 1024),
        ({"cache_size": 0.001}, 1048),
    ],
)
def test_a_cache_is_no_larger_than_its_sequences_can_use(
    settings: dict[str, Any], num_blocks: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = replace(CONFIG, **settings)
    backend = PagedBackend.from_model(FakeModel(), FAKE, config, available=1024**3)
    assert backend.engine.blocks.num_blocks == num_blocks
    is_cut = settings["cache_size"] == 1
    assert ("KV cache: 0.00" in caplog.text and "need no more" in caplog.text) == is_cut


def test_a_cache_without_room_for_a_block_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"no block of 1024 bytes.*raise --cache-size"):
        PagedBackend.from_model(FakeModel(), FAKE, EngineConfig(cache_size=1e-9))


def test_states_are_part_of_the_cache_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    states = States(256 * 1024)
    config = replace(CONFIG, cache_size=(states.extra_bytes + 40 * 1024) / 1024**3)
    backend = PagedBackend.from_model(FakeModel(states=states), FAKE, config)
    assert backend.engine.blocks.num_blocks == 40
    assert "states take 0.25 of the" in caplog.text
    assert (
        "and 16.2 MiB outside the blocks; cached prefixes are multiples of 4 tokens" in caplog.text
    )


def test_the_context_shrinks_to_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    backend = PagedBackend.from_model(FakeModel(), FAKE, EngineConfig(cache_size=1e-5))
    assert backend.model.max_model_len == 40
    assert "context length reduced from 4096 to the 40 tokens" in caplog.text


async def test_an_idle_engine_commits_memory_ahead_until_there_is_work() -> None:
    loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
    num_calls, is_answered = 0, threading.Event()
    num_used: set[int] = set()

    def commit_ahead(num_used_blocks: int) -> bool:
        nonlocal num_calls
        num_calls += 1
        num_used.add(num_used_blocks)
        if not is_answered.is_set():
            time.sleep(0.05)
        if num_calls == 300:
            loop.call_soon_threadsafe(is_ready.set)
        return num_calls < 300

    model = FakeModel()
    model.commit_ahead = commit_ahead  # type: ignore[method-assign]
    backend = PagedBackend.from_model(model, FAKE, CONFIG)
    backend.start()
    try:
        listener = Listener()
        backend.submit(request("r", [2], max_tokens=10), listener)
        await listener.done.wait()
        assert listener.text() == continue_greedily([2], 10)
        assert num_calls < 300, "it did not come first"
        is_answered.set()
        await is_ready.wait()
        async with asyncio.timeout(60):
            while not model.has_forgotten_files or num_calls < 301:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert num_calls == 301, "it sleeps after a look at what there is to give back"
        assert 3 in num_used <= {0, 3}
    finally:
        await backend.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_backend_is_warm_once_the_engine_is(fails: bool, caplog) -> None:
    backend, go = PagedBackend.from_model(FakeModel(), FAKE, CONFIG), threading.Event()

    def warm_up() -> None:
        go.wait(60)
        if fails:
            raise RuntimeError("no such instruction")

    backend.engine.warm_up = warm_up  # type: ignore[method-assign]
    backend.start()
    warm = asyncio.ensure_future(backend.warmed_up())
    await asyncio.sleep(0.02)
    assert not warm.done()
    go.set()
    if fails:
        with pytest.raises(EngineFailed, match="no such instruction"):
            await warm
    else:
        await warm
    await backend.close()


async def test_preparation_begins_when_the_engine_is_warm_and_ends_with_the_backend() -> None:
    steps: queue.SimpleQueue[bool] = queue.SimpleQueue()

    class Preparation(BackendExtension):
        def prepare(self, may_go_on: WaitForRequests) -> None:
            steps.put(may_go_on(0.0))
            steps.put(may_go_on(60.0))

    parts = BackendParts(extensions=[Preparation()])
    backend = PagedBackend.from_model(FakeModel(), FAKE, CONFIG, parts)
    backend.start()
    await backend.warmed_up()
    is_open = await asyncio.to_thread(steps.get, timeout=60)
    await backend.close()
    assert is_open
    assert not await asyncio.to_thread(steps.get, timeout=60)
