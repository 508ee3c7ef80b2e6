"""The prefix cache on disk seen from the event loop: two backends one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastovms.backends.paged.paged_backend import PagedBackend
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.stored_prefixes.model_blocks import PrefixFiles
from fastovms.params import ModelInfo
from fastovms.prefix_cache.block_directory import BlockDirectory
from tests.backends.listener import Listener, idle, request
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily

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
