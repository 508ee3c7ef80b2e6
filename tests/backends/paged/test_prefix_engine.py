"""The prefix cache on disk seen from the event loop: two backends one after the other."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from fastovms.backends.paged.paged_backend import PagedBackend
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks, PrefixFiles
from fastovms.engine.stored_prefixes.restoration import Restoration
from fastovms.params import FinishReason, ModelInfo
from fastovms.prefix_cache.block_directory import BlockDirectory
from tests.backends.listener import Listener, idle, request
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily
from tests.engine.stored_prefixes.stored_engine import request as stored_request
from tests.engine.stored_prefixes.stored_engine import stored_engine

MODEL = ModelInfo(
    name="fake", created=0, max_model_len=900, vocab_size=VOCAB_SIZE, eos_token_ids=frozenset()
)
PROMPT = [i * i % VOCAB_SIZE for i in range(301)]


async def test_what_one_process_computed_the_next_one_reads(tmp_path: Path) -> None:
    for num_cached in (0, 300):
        directory = BlockDirectory(tmp_path, 1 << 20)
        files = PrefixFiles(directory, "0-fake", b"fingerprint")
        backend = PagedBackend.from_model(
            FakeModel(), MODEL, EngineConfig(cache_size=0.002), prefixes=files
        )
        backend.start()
        listener, other = Listener(), Listener()
        backend.submit(request("r", PROMPT, max_tokens=9), listener)
        backend.submit(request("s", [1, 2, 3], max_tokens=9), other)
        await listener.done.wait()
        await other.done.wait()
        await idle(backend)
        assert listener.text() == continue_greedily(PROMPT, 9)
        assert other.text() == continue_greedily([1, 2, 3], 9)
        assert listener.outputs[0].num_cached_tokens == num_cached
        stats = backend.stats().stored_prefixes
        assert stats.num_tokens_restored == num_cached
        assert (stats.num_bytes_read > 0) == (num_cached > 0)
        async with asyncio.timeout(60):  # a backend that closes goes on for some seconds only
            while directory.num_blocks < 75:  # noqa: ASYNC110 (a thread writes them)
                await asyncio.sleep(0.01)
        await backend.close()
        assert directory.num_blocks == 75
        directory.close()


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (ModelBlocks, "keys"),
        (ModelBlocks, "read"),
        (ModelBlocks, "put_read"),
        (BlockDirectory, "read"),
        (Restoration, "end"),
        (BlockManager, "register"),
        (ModelBlocks, "copy"),
    ],
)
def test_what_goes_wrong_with_the_disk_costs_no_request(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    method: str,
) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(stored_request("a", PROMPT))
    num_calls = 0
    original = getattr(owner, method)

    def broken(*arguments: object, **options: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise RuntimeError("nobody has foreseen this")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, method, broken)
    prompts = {"a": PROMPT, "b": PROMPT, "c": [*PROMPT[:-1], 7, 8]}
    with stored_engine(tmp_path) as engine:
        for name, prompt in prompts.items():
            engine.prefixes.add(stored_request(name, prompt))
        texts = engine.run()
        assert texts == {name: continue_greedily(p, 4) for name, p in prompts.items()}
        new = [3, *PROMPT]
        assert engine.ask(stored_request("new", new)) == continue_greedily(new, 4)
        while engine.prefixes.is_writing:
            engine.call_next()
        engine.engine.check()
    assert "nobody has foreseen this" in caplog.text
    assert num_calls


async def test_an_engine_that_fails_takes_its_threads_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a step has failed")

    monkeypatch.setattr(Engine, "step", fail)
    caplog.set_level(logging.CRITICAL)
    directory = BlockDirectory(tmp_path, 1 << 20)
    before = set(threading.enumerate())
    backend = PagedBackend.from_model(
        FakeModel(),
        MODEL,
        EngineConfig(cache_size=0.002),
        prefixes=PrefixFiles(directory, "0-fake", b"fingerprint"),
    )
    backend.start()
    threads = set(threading.enumerate()) - before
    assert {"prefix-reader", "prefix-writer"} < {thread.name for thread in threads}
    listener = Listener()
    backend.submit(request("r", PROMPT, max_tokens=9), listener)
    await listener.done.wait()
    assert listener.outputs[-1].finish_reason is FinishReason.ERROR
    assert backend._stopped is not None
    await backend._stopped
    assert not {t.name for t in threads if t.is_alive()} & {"prefix-reader", "prefix-writer"}
    await backend.close()
    directory.close()
