"""The engine thread seen from the event loop, over the fake model."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fastovms.backends.paged.paged_backend import PagedBackend
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.model.state_rows import States
from fastovms.errors import (
    ConfigurationError,
    EngineFailed,
    RequestError,
)
from fastovms.params import (
    FinishReason,
    Grammar,
    GrammarKind,
    ModelInfo,
)
from tests.backends.listener import Listener, idle, request
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily

MODEL = ModelInfo(
    name="fake",
    created=0,
    max_model_len=4096,
    vocab_size=VOCAB_SIZE,
    eos_token_ids=frozenset(),
)
CONFIG = EngineConfig(cache_size=0.002, max_num_queued_requests=4, max_num_seqs=3)


@pytest.fixture
async def backend() -> AsyncIterator[PagedBackend]:
    backend = PagedBackend.from_model(FakeModel(), MODEL, CONFIG)
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
    backend = PagedBackend.from_model(FakeModel(), MODEL, config, available=1024**3)
    assert backend._engine.blocks.num_blocks == num_blocks
    is_cut = settings["cache_size"] == 1
    assert ("KV cache: 0.00" in caplog.text and "can use no more" in caplog.text) == is_cut


async def test_how_long_steps_take_is_known(backend: PagedBackend) -> None:
    assert backend.stats().step_seconds is None
    listener = Listener()
    backend.submit(request("r", [1], max_tokens=5), listener)
    await listener.done.wait()
    await idle(backend)
    stats = backend.stats()
    assert stats.step_seconds is not None
    assert stats.step_seconds.count == stats.counters.num_steps == 5
    buckets, total = stats.step_seconds.buckets()
    assert 0 < stats.longest_step_seconds <= total
    assert buckets[-1] == ("+Inf", 5)


def test_a_cache_without_room_for_a_block_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="raise --cache-size"):
        PagedBackend.from_model(FakeModel(), MODEL, EngineConfig(cache_size=1e-9))


def test_states_are_part_of_the_cache_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    states = States(256 * 1024)
    config = replace(CONFIG, cache_size=(states.extra_bytes + 40 * 1024) / 1024**3)
    backend = PagedBackend.from_model(FakeModel(states=states), MODEL, config)
    assert backend._engine.blocks.num_blocks == 40
    assert "states beside attention take 0.25 of the" in caplog.text
    assert "and 16.2 MB beside the blocks; cached prefixes are multiples of 4 tokens" in caplog.text


def test_the_context_shrinks_to_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    backend = PagedBackend.from_model(FakeModel(), MODEL, EngineConfig(cache_size=1e-5))
    assert backend.model.max_model_len == 40
    assert "context length reduced from 4096 to the 40 tokens" in caplog.text


async def test_an_idle_engine_commits_memory_ahead_until_there_is_work() -> None:
    loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
    num_calls = 0
    num_used: set[int] = set()

    def commit_ahead(num_used_blocks: int) -> bool:
        nonlocal num_calls
        num_calls += 1
        num_used.add(num_used_blocks)
        time.sleep(0.001)
        if num_calls == 300:
            loop.call_soon_threadsafe(is_ready.set)
        return num_calls < 300

    model = FakeModel()
    model.commit_ahead = commit_ahead  # type: ignore[method-assign]
    backend = PagedBackend.from_model(model, MODEL, CONFIG)
    backend.start()
    try:
        listener = Listener()
        backend.submit(request("r", [2], max_tokens=10), listener)
        await listener.done.wait()
        assert listener.text() == continue_greedily([2], 10)
        assert num_calls < 300, "it did not come first"
        await is_ready.wait()
        await asyncio.sleep(0.02)
        assert model.has_forgotten_files
        assert num_calls == 301, "it sleeps after a look at what there is to give back"
        assert 3 in num_used <= {0, 3}
    finally:
        await backend.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_backend_is_warm_once_the_engine_is(fails: bool, caplog) -> None:
    backend, go = PagedBackend.from_model(FakeModel(), MODEL, CONFIG), threading.Event()

    def warm_up() -> None:
        go.wait(20)
        if fails:
            raise RuntimeError("no such instruction")

    backend._engine.warm_up = warm_up  # type: ignore[method-assign]
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
