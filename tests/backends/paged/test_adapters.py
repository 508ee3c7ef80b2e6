"""Tests of `fastovms/parts/adapters/table.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.app.paged import load_paged
from fastovms.backends.model_files import read_model_info
from fastovms.backends.paged.backend import PagedBackend
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.params import Adapter
from fastovms.parts.adapters import table as module
from fastovms.parts.adapters.table import AdapterTable
from tests.adapters import SOME_MODULES, write_random_adapter
from tests.backends.listener import Listener
from tests.engine.engines import greedy as request

SHAPE = replace(SHAPES["tiny"], weight_format="fp32")
LONG = 1500


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(SHAPE, directory / "model")
    for number in range(1, 5):
        write_random_adapter(directory / f"a{number}", SHAPE, rank=number, seed=number)
    write_random_adapter(directory / "some", SHAPE, seed=9, modules=SOME_MODULES)
    write_random_adapter(directory / "demo", SHAPES["demo"])
    return directory


def load(model_dir: Path, **config: object) -> PagedBackend:
    known: dict[str, object] = {"precision": "exact", "cache_size": 0.05, "max_loras": 3}
    engine = EngineConfig(**{**known, **config})  # type: ignore[arg-type]
    path = model_dir / "model"
    return load_paged(path, read_model_info(path), engine)


def table_of(backend: PagedBackend) -> AdapterTable:
    [table] = [one for one in backend.extensions if isinstance(one, AdapterTable)]
    return table


@pytest.fixture
async def backend(model_dir: Path) -> AsyncIterator[PagedBackend]:
    backend = load(model_dir, lora_modules={"some": model_dir / "some"})
    backend.start()
    yield backend
    await backend.close()


def submit(backend: PagedBackend, adapter: Adapter | None, max_tokens: int = 20) -> Listener:
    text = Listener()
    asked = request(f"{id(text)}", list(range(30, 50)), max_tokens=max_tokens, ignore_eos=True)
    backend.submit(replace(asked, adapter=adapter), text)
    return text


async def generate(backend: PagedBackend, adapter: Adapter | None) -> list[int]:
    text = submit(backend, adapter)
    await text.done.wait()
    return text.text()


async def test_adapters_load_and_unload_beside_requests(
    backend: PagedBackend, model_dir: Path
) -> None:
    table = table_of(backend)
    assert list(table.adapters) == ["some"]
    plain = await generate(backend, None)
    some = await generate(backend, table.adapters["some"])
    num_bytes = table.num_bytes
    first = await table.load("first", model_dir / "a1")  # compiles a graph with more branches
    second = await table.load("second", model_dir / "a2")
    assert [first.number, second.number, first.path] == [2, 3, str(model_dir / "a1")]
    texts = [await generate(backend, one) for one in (None, table.adapters["some"], first, second)]
    assert texts[:2] == [plain, some]
    assert len({tuple(text) for text in texts}) == 4
    await table.unload("some")
    assert list(table.adapters) == ["first", "second"]
    assert [await generate(backend, one) for one in (None, first, second)] == [plain, *texts[2:]]
    await table.unload("second")
    await table.unload("first")
    assert table.num_bytes == 0 < num_bytes
    assert await generate(backend, None) == plain
    again = await table.load("some", model_dir / "some")
    assert await generate(backend, again) == some


async def test_kernels_get_adapters_in_their_own_form(model_dir: Path) -> None:
    model = load_model(model_dir / "model")
    table = AdapterTable(model, max_adapters=3, max_rank=8, has_kernels=True)
    used: list[set[int]] = []

    async def switch(change: Callable[[], None]) -> None:
        change()
        used.append(set(model._packed_adapters))

    table.switch = switch
    table.load_first({"some": model_dir / "some"})
    plain = AdapterTable(model.twin(), max_adapters=3, max_rank=8)
    plain.load_first({"some": model_dir / "some"})
    assert plain.num_bytes < table.num_bytes < 1.4 * plain.num_bytes
    await table.load("first", model_dir / "a1")
    await table.unload("some")
    await table.unload("first")
    assert used == [{1, 2}, {2}, set()]
    assert table.num_bytes == 0


async def test_an_unload_waits_for_requests(backend: PagedBackend, model_dir: Path) -> None:
    table = table_of(backend)
    adapter = table.adapters["some"]
    texts = [submit(backend, adapter, LONG), submit(backend, adapter, LONG)]
    unload = asyncio.ensure_future(table.unload("some"))
    await asyncio.sleep(0)
    assert not table.adapters
    with pytest.raises(BackendUnavailable, match="is being unloaded"):
        submit(backend, adapter)
    with pytest.raises(ConfigurationError, match="some is being unloaded"):
        await table.load("some", model_dir / "some")
    backend.abort(str(id(texts[0])))
    await asyncio.sleep(0.05)
    assert not unload.done() or texts[1].done.is_set()
    await unload
    assert texts[1].done.is_set()
    assert len(texts[1].text()) == LONG
    with pytest.raises(KeyError):
        await table.unload("some")


async def test_an_unload_goes_on_without_its_caller(backend: PagedBackend) -> None:
    table = table_of(backend)
    text = submit(backend, table.adapters["some"], LONG)
    unload = asyncio.ensure_future(table.unload("some"))
    await asyncio.sleep(0)
    unload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unload
    await text.done.wait()
    await asyncio.gather(*table._changes)
    assert not table.num_bytes
    assert len(text.text()) == LONG


async def test_an_unload_that_takes_too_long(
    backend: PagedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNLOAD_TIMEOUT", 0.01)
    table = table_of(backend)
    adapter = table.adapters["some"]
    text = submit(backend, adapter, LONG)
    with pytest.raises(BackendUnavailable, match=r"still run after 0.01 s"):
        await table.unload("some")
    assert table.adapters == {"some": adapter}
    backend.abort(str(id(text)))
    assert await generate(backend, adapter)


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("some", "a1", "some is loaded already"),
        ("x", "none", "the adapter x cannot be loaded: .*none is not a directory"),
        ("x", "demo", "the adapter x cannot be loaded: .* is for another model"),
        (
            "x",
            "model",
            "the adapter x cannot be loaded: .* adapter_config.json is missing",
        ),
    ],
)
async def test_refused_load_leaves_the_adapter_table_unchanged(
    backend: PagedBackend, model_dir: Path, name: str, path: str, message: str
) -> None:
    table = table_of(backend)
    with pytest.raises(ConfigurationError, match=message):
        await table.load(name, model_dir / path)
    assert list(table.adapters) == ["some"]
    assert await generate(backend, table.adapters["some"])


async def test_load_without_memory_is_refused(
    backend: PagedBackend, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 1000)
    with pytest.raises(
        ConfigurationError, match=r"needs about \d+ MiB of memory, but only 0 MiB are free"
    ):
        await table_of(backend).load("x", model_dir / "a1")
    assert list(table_of(backend).adapters) == ["some"]


async def test_concurrent_loads_beyond_max_loras_are_refused(
    backend: PagedBackend, model_dir: Path
) -> None:
    table = table_of(backend)
    loads = [table.load(f"x{number}", model_dir / f"a{number}") for number in range(1, 5)]
    results = await asyncio.gather(*loads, return_exceptions=True)
    refused = [str(one) for one in results if isinstance(one, ConfigurationError)]
    assert refused == [
        f"the adapter x{number} cannot be loaded: --max-loras allows 3 adapters"
        for number in (3, 4)
    ]
    assert len(table.adapters) == 3


async def test_load_on_an_ended_engine_is_unavailable(model_dir: Path) -> None:
    backend = load(model_dir, enable_lora=True)
    table = table_of(backend)
    with pytest.raises(BackendUnavailable):
        await table.load("x", model_dir / "a1")
    backend.start()
    await backend.close()
    with pytest.raises(BackendUnavailable):
        await table.load("x", model_dir / "a1")


@pytest.mark.parametrize(
    ("modules", "max_rank", "message"),
    [
        (("a1", "a2", "a3", "a4"), 8, "a4 cannot be loaded: --max-loras allows 3 adapters"),
        (("demo",), 8, "the adapter demo cannot be loaded: .* is for another model"),
        (("a4",), 3, "rank 4 .* see --max-lora-rank"),
    ],
)
def test_bad_adapters_stop_the_start(
    model_dir: Path, modules: tuple[str, ...], max_rank: int, message: str
) -> None:
    given = {name: model_dir / name for name in modules}
    with pytest.raises(ConfigurationError, match=message):
        load(model_dir, lora_modules=given, max_lora_rank=max_rank)


def test_adapters_are_refused_on_a_gpu(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(model_dir / "model", exact=True)
    monkeypatch.setattr(model, "device", "GPU.0")
    with pytest.raises(ConfigurationError, match=r"served on the CPU only, not on GPU.0"):
        AdapterTable(model, max_adapters=1, max_rank=8)
