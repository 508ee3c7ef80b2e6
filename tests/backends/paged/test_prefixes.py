"""Tests of `fastovms/parts/prefix_cache/engine.py`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastovms.backends.model_files import fit_length, fit_window, sliding_window
from fastovms.backends.paged.backend import BackendParts, PagedBackend
from fastovms.config import EngineConfig
from fastovms.engine.blocks import BlockManager
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import ExactLength
from fastovms.errors import ConfigurationError
from fastovms.params import FinishReason, ModelInfo
from fastovms.parts.prefix_cache import engine as prefixes
from fastovms.parts.prefix_cache.directory import BlockDirectory
from fastovms.parts.prefix_cache.engine import PrefixDirectory, StoredPrefixes, prefix_files
from fastovms.parts.prefix_cache.stored_prefixes import ModelBlocks, PrefixFiles, Restoration
from tests.backends.listener import FAKE, Listener, idle
from tests.engine.engines import greedy as request
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily
from tests.engine.stored_engine import request as stored_request
from tests.engine.stored_engine import stored_engine


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 0}, None),
        ({"sliding_window": "4096"}, None),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}, 512),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 2}, None),
        ({"text_config": {"sliding_window": 512}}, 512),
        ({"window_size": 256, "attention_layers": ["global", "local"]}, 256),
        ({"window_size": 256, "attention_layers": ["global"]}, None),
        ({"attention_chunk_size": 512, "layer_types": ["chunked_attention"]}, 512),
        ({"sliding_window": 9, "text_config": {}}, None),
    ],
)
def test_sliding_window_is_read_from_config_json(
    config: dict[str, object], expected: int | None
) -> None:
    assert sliding_window(config) == expected


@pytest.mark.parametrize(
    ("window", "is_applied", "expected"),
    [(100, False, 100), (100, True, 1000), (2000, False, 1000), (None, False, 1000)],
)
def test_a_window_that_the_graph_does_not_apply_limits_the_context(
    caplog: pytest.LogCaptureFixture, window: int | None, is_applied: bool, expected: int
) -> None:
    config = {"sliding_window": window}
    model = ModelInfo("m", 0, 1000, 100, frozenset(), config=config)
    assert fit_window(model, is_applied=is_applied).max_model_len == expected
    assert ("context length reduced from 1000 to its 100" in caplog.text) is (expected == 100)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(16, 16), (999, 999), (1000, 1000), (5000, 1000)]
)
def test_the_context_shrinks_to_what_is_exact(
    caplog: pytest.LogCaptureFixture, num_tokens: int, expected: int
) -> None:
    model = ModelInfo("m", 0, 1000, 100, frozenset())
    assert fit_length(model, None) is model
    assert fit_length(model, ExactLength(num_tokens, "so it is")).max_model_len == expected
    assert ("as so it is: context length reduced" in caplog.text) is (expected < 1000)


def test_a_model_for_hardly_any_text_is_refused() -> None:
    model = ModelInfo("m", 0, 1000, 100, frozenset())
    with pytest.raises(ConfigurationError, match="m cannot be served: so it is"):
        fit_length(model, ExactLength(15, "so it is"))


INFO = ModelInfo(
    name="org/model", created=0, max_model_len=900, vocab_size=9, eos_token_ids=frozenset()
)


def model(**traits: object) -> Any:
    given = {"is_on_gpu": False, "device": "CPU", "cache_traits": ["f32", 32]}
    return SimpleNamespace(**{**given, **traits})


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_bytes(b"weights")
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


def test_fingerprint_changes_with_cache_traits_weights_and_cpu_flags(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = BlockDirectory(model_dir / "cache", 1000)
    directory = PrefixDirectory(blocks)

    def fingerprint(**traits: object) -> bytes:
        found = prefix_files(directory, model(**traits), model_dir, INFO)
        assert found is not None
        assert found.folder == f"{found.fingerprint.hex()[:16]}-org_model"
        return found.fingerprint

    first = fingerprint()
    assert fingerprint() == first
    found = [first, fingerprint(cache_traits=["u8", 32])]
    (model_dir / "openvino_model.bin").write_bytes(b"WEIGHTS")
    os.utime(model_dir / "openvino_model.bin", (1, 1))  # as archives set it
    found.append(fingerprint())
    monkeypatch.setattr(prefixes, "_cpu_flags", lambda: "flags: other")
    found.append(fingerprint())
    assert len(set(found)) == len(found)
    assert prefix_files(directory, model(is_on_gpu=True), model_dir, INFO) is None
    blocks.close()


# The prefix cache on disk as the event loop sees it: two backends one after the other.


PROMPT = [i * i % VOCAB_SIZE for i in range(301)]


def make_backend(directory: BlockDirectory) -> PagedBackend:
    model = FakeModel()
    stored = StoredPrefixes(model, PrefixFiles(directory, "0-fake", b"fingerprint"))
    parts = BackendParts(extensions=[stored])
    return PagedBackend.from_model(model, FAKE, EngineConfig(cache_size=0.002), parts)


async def test_blocks_on_disk_are_read_by_the_next_process(tmp_path: Path) -> None:
    for num_cached in (0, 300):
        directory = BlockDirectory(tmp_path, 1 << 20)
        backend = make_backend(directory)
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
        async with asyncio.timeout(60):  # a backend that is closed continues for a few seconds only
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
def test_disk_faults_fail_no_request(
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
        engine.write_all()
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
    backend = make_backend(directory)
    backend.start()
    threads = set(threading.enumerate()) - before
    assert {"prefix-reader", "prefix-writer"} < {thread.name for thread in threads}
    listener = Listener()
    backend.submit(request("r", PROMPT, max_tokens=9), listener)
    await listener.done.wait()
    assert listener.outputs[-1].finish_reason is FinishReason.ERROR
    await backend._link.stopped.wait()
    assert not {t.name for t in threads if t.is_alive()} & {"prefix-reader", "prefix-writer"}
    await backend.close()
    directory.close()
