"""Tests that kernels are prepared beside a server, stored, and used at later starts."""

from __future__ import annotations

import json
import os
import shutil
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from bench.models import write_model
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.app.paged import KernelsOff, LaterGraphs
from fastovms.backend_stats import BackendStats
from fastovms.backends.paged.backend import BackendExtension
from fastovms.backends.processes import WorkerFailed
from fastovms.config import EngineConfig
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.low_rank import pack_adapter
from fastovms.engine.model.compilation import (
    EXACT_WEIGHTS_SIZE,
    ExportedModel,
    load_model,
    why_no_kernels,
)
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.parts.adapters.graph import AdapterStack, compile_adapters, module_shapes
from fastovms.parts.decode_kernels import check, few_rows, prepare, process
from fastovms.parts.decode_kernels.kept import CachedWeights
from fastovms.parts.decode_kernels.prepare import (
    PACKED,
    DecodeKernels,
    Preparation,
    Prepared,
)
from fastovms.parts.decode_kernels.step_program import AdaptedStepRunner
from fastovms.server_config import DEMO_MODEL
from fastovms.system.disk import DiskCache
from tests.engine.model.test_few_rows import assert_greedy, decode, generate, random_pairs
from tests.engine.model.test_mixtures import without_softmax

FASTER = {1: 1.5, 2: 1.2}
IN_USE = "decode kernels: in use: up to 1.5 times as fast as OpenVINO"
NUM_LAYERS = 4
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(replace(SHAPES["tiny"], num_hidden_layers=NUM_LAYERS), directory)
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> PagedModel:
    return load_model(directory, properties=PROPERTIES)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def preparations(monkeypatch: pytest.MonkeyPatch) -> list[Preparation]:
    """Returns the results of preparing processes, which run in this process."""
    found: list[Preparation] = []

    def prepared(_: str, *, may_go_on: Any, message: Preparation) -> Prepared:
        found.append(message)
        return process.prepare(message)

    monkeypatch.setattr(prepare, "run_preparation", prepared)
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: dict(FASTER))
    return found


def started(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache | None = None,
    **options: bool,
) -> tuple[PagedModel, str]:
    """Returns a model that a server has loaded and prepared, and the last line of the log."""
    served = model.twin()
    served.allocate_cache(2)
    caplog.clear()
    with caplog.at_level("INFO"):
        kernels = DecodeKernels(served, cache, **options)
        kernels.restore()
        kernels.prepare(lambda *_: True)
    return served, caplog.messages[-1] if caplog.messages else ""


def logits(model: PagedModel) -> Any:
    return decode(model, 2, 1).tobytes()


def test_later_start_uses_the_prepared_kernels(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    preparations: list[Preparation],
) -> None:
    first, line = started(model, caplog, cache)
    assert line == IN_USE
    later = model.twin()
    assert DecodeKernels(later, cache).restore()
    assert first.few_row_numbers == later.few_row_numbers == {1, 2}
    assert logits(first) == logits(later) != logits(model)
    assert len(preparations) == 1


@pytest.fixture
def not_compiled(
    directory: Path, model: PagedModel, caplog: pytest.LogCaptureFixture, cache: DiskCache
) -> PagedModel:
    """Returns a model that a later start has loaded without OpenVINO's variants."""
    started(model, caplog, cache)
    files = ExportedModel(directory, properties=PROPERTIES)
    key = prepare.kernels_key(files.graph, "CPU", model.precisions)
    kept = prepare.read_kept(key, files.graph, "CPU", model.precisions, cache, False)
    assert kept is not None
    assert kept.layout is not None
    later = files.compile_later(model.precisions, kept.layout)
    assert DecodeKernels(later, cache).restore(kept)
    assert later.cache_traits == model.cache_traits
    return later


def test_texts_of_a_model_that_is_not_compiled_are_openvinos(
    model: PagedModel, not_compiled: PagedModel
) -> None:
    expected = generate(model.twin(), 24)
    assert_greedy(not_compiled, expected)
    assert not not_compiled.is_compiled
    not_compiled.compile()
    assert_greedy(not_compiled, expected)
    not_compiled.release()
    assert_greedy(not_compiled, expected)
    assert not not_compiled.is_compiled


@pytest.mark.parametrize("is_once", [False, True])
def test_openvinos_model_is_released_only_if_weights_are_kept_once(
    model: PagedModel, caplog: pytest.LogCaptureFixture, cache: DiskCache, is_once: bool
) -> None:
    served, line = started(model, caplog, cache, keeps_weights_once=is_once)
    assert line == IN_USE
    assert served.is_compiled is not is_once
    assert_greedy(model.twin(), generate(served, 24))


def test_kernels_that_are_no_faster_are_not_prepared_again(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    preparations: list[Preparation],
) -> None:
    tries: list[None] = []
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: tries.append(None) or {})
    lines = [started(model, caplog, cache)[1] for _ in range(2)]
    assert lines == ["decode kernels: not used: no faster than OpenVINO on this CPU"] * 2
    assert len(preparations) == 1
    assert len(tries) % len(prepare._ATTEMPTS) == 0, "a busy machine may have been measured"


def other_bytes(entry: Path) -> None:
    file = entry / "weights.bin"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


def shorter(entry: Path) -> None:
    os.truncate(entry / "weights.bin", 4096)


def of_another_model(entry: Path) -> None:
    index = json.loads((entry / "index.json").read_text())
    index["places"][0][0] = ["other"]
    (entry / "index.json").write_text(json.dumps(index))


def unreadable(entry: Path) -> None:
    (entry / "index.json").write_text("{")


def gone(entry: Path) -> None:
    shutil.rmtree(entry)


@pytest.mark.nightly(but=("other_bytes",))
@pytest.mark.parametrize("damage", [other_bytes, shorter, of_another_model, unreadable, gone])
def test_weights_that_are_damaged_are_packed_again(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    cache: DiskCache,
    preparations: list[Preparation],
    damage: Callable[[Path], None],
) -> None:
    expected = logits(started(model, caplog, cache)[0])
    (entry,) = (tmp_path / "cache").glob("packed-*")
    damage(entry)
    again, line = started(model, caplog, cache)
    assert line == IN_USE
    assert (f"entry {entry} is corrupt" in caplog.text) == (damage is not gone)
    assert logits(again) == expected
    assert len(preparations) == 2


def test_damaged_measurement_is_made_again(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    cache: DiskCache,
) -> None:
    started(model, caplog, cache)
    (entry,) = (tmp_path / "cache").glob("kernels-*")
    (entry / "measured.json").write_text('{"gains": {"whole steps": []}}')
    assert started(model, caplog, cache)[1] == IN_USE
    assert "is corrupt" in caplog.text


def test_two_servers_share_the_work(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[None] = []
    pack, both = process.pack_weights, threading.Barrier(2)
    monkeypatch.setattr(process, "pack_weights", lambda *given: packed.append(None) or pack(*given))
    exclusive = DiskCache.exclusive

    def together(self: DiskCache, kind: str, key: str) -> Any:
        both.wait(60)
        return exclusive(self, kind, key)

    monkeypatch.setattr(DiskCache, "exclusive", together)
    found: list[PagedModel] = []
    threads = [
        threading.Thread(target=lambda: found.append(started(model, caplog, cache)[0]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [one.few_row_numbers for one in found] == [{1, 2}] * 2
    assert len(packed) == 1


def test_kernels_are_used_where_no_cache_can_be_written(
    model: PagedModel, caplog: pytest.LogCaptureFixture, preparations: list[Preparation]
) -> None:
    served, line = started(model, caplog)
    assert line == IN_USE
    assert served.few_row_numbers == {1, 2}
    (preparation,) = preparations
    assert preparation.caches[1].find("packed", preparation.key) is None, "it is temporary"


@pytest.mark.parametrize(
    ("module", "name", "value", "reason"),
    [
        (process, "find_instructions", lambda: None, "this CPU has neither AVX2 nor AVX-512 VNNI"),
        (process, "bytes_read", lambda *_: 0, "the kernels do not support the precisions"),
        (process, "available_memory", lambda: 1000, "packed weights need "),
        (check, "device_memory", lambda *_: 1000, "too little memory is free to check them"),
        (check, "why_wrong", lambda *_: "logits differ", "logits differ"),
        (process, "pack_weights", lambda *_: 1 / 0, "division by zero"),
    ],
)
def test_kernels_that_cannot_be_used_are_off_with_the_reason(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    value: Any,
    reason: str,
) -> None:
    monkeypatch.setattr(module, name, value)

    def prepared(_: str, *, may_go_on: Any, message: Preparation) -> Prepared:
        answers: list[Prepared] = []

        class Connection:
            def recv_bytes(self) -> bytes:
                raise AssertionError

        monkeypatch.setattr(process, "receive", lambda _: message)
        monkeypatch.setattr(process, "send", lambda _, answer: answers.append(answer))
        process.serve(Connection())  # type: ignore[arg-type]
        return answers[0]

    monkeypatch.setattr(prepare, "run_preparation", prepared)
    served, line = started(model, caplog, cache)
    assert line.startswith(f"decode kernels: not used: {reason}")
    assert not served.few_row_numbers


@pytest.mark.nightly(but=("[True]",))
@pytest.mark.parametrize("is_right", [True, False])
def test_kernels_that_differ_from_openvino_are_compared_on_the_whole_model(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    preparations: list[Preparation],
    is_right: bool,
) -> None:
    monkeypatch.setattr(check, "differs", lambda *_: True)
    why_wrong = check.why_wrong
    compared: list[int] = []

    def count(one: PagedModel, *given: Any, is_long: bool = True) -> str | None:
        compared.append(len(one.cache_inputs) // 2)
        wrong = why_wrong(one, *given, is_long=is_long)
        return wrong if is_long or is_right else "logits differ"

    monkeypatch.setattr(check, "why_wrong", count)
    served, line = started(model, caplog, cache)
    assert line == (IN_USE if is_right else "decode kernels: not used: logits differ")
    assert bool(served.few_row_numbers) == is_right
    assert compared[0] < compared[1] == NUM_LAYERS
    assert len(preparations) == 2


@pytest.mark.parametrize("is_whole", [False, True])
def test_chunks_that_would_be_too_inexact_have_activations_of_more_bits(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    preparations: list[Preparation],
    is_whole: bool,
) -> None:
    def why_wrong(_: PagedModel, store: WeightStore, *, is_long: bool = True) -> str | None:
        return "logits differ" if store.kernels.chunk_product and is_long != is_whole else None

    monkeypatch.setattr(process, "find_instructions", lambda: "avx2")
    monkeypatch.setattr(check, "differs", lambda *_: is_whole)
    monkeypatch.setattr(check, "why_wrong", why_wrong)
    assert started(model, caplog, cache)[1] == IN_USE
    entry = cache.find(PACKED, preparations[0].key)
    assert entry is not None
    assert not CachedWeights(entry).kernels(1).chunk_product


def test_a_process_that_dies_is_the_reason(
    model: PagedModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = WorkerFailed("was ended by SIGKILL")
    monkeypatch.setattr(prepare, "run_preparation", lambda *_, **__: died)
    line = started(model, caplog)[1]
    assert (
        line
        == "decode kernels: not used: the process that prepares the kernels was ended by SIGKILL"
    )


def test_a_model_that_is_dropped_is_not_measured(
    model: PagedModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "run_preparation", lambda *_, **__: None)
    assert started(model, caplog)[1] == ""


def test_a_process_of_its_own_prepares_kernels(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: dict(FASTER))
    assert started(model, caplog, cache)[1] == IN_USE
    assert DecodeKernels(model.twin(), cache).restore()


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    directory = tmp_path_factory.mktemp("mixture")
    write_model(replace(SHAPES["tiny-moe"], num_hidden_layers=3), directory)
    return load_model(directory, properties=PROPERTIES)


def test_a_process_prepares_a_mixture_and_a_later_start_computes_the_same_texts(
    mixture: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    preparations: list[Preparation],
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: dict(FASTER))
    first, line = started(mixture, caplog, cache)
    assert line == IN_USE
    later = mixture.twin()
    assert DecodeKernels(later, cache).restore()
    assert first.few_row_numbers == later.few_row_numbers == {1, 2}
    assert not preparations
    assert logits(first) == logits(later) != logits(mixture)
    assert_greedy(mixture.twin(), generate(later, 24))


def flip(file: Path, place: int) -> None:
    """Flips a bit of a mapped file."""
    with file.open("r+b") as opened:
        opened.seek(place)
        value = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([value ^ 1]))


def test_damaged_weights_of_an_expert_that_the_logits_do_not_read_are_packed_again(
    mixture: PagedModel,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    cache: DiskCache,
    preparations: list[Preparation],
) -> None:
    started(mixture, caplog, cache)
    (entry,) = (tmp_path / "cache").glob("packed-*")
    (measured,) = (tmp_path / "cache").glob("kernels-*")
    variants = DecodeKernels(mixture, cache)._variants(entry)
    assert len(variants.store.experts) == 9
    file, num_experts = entry / "weights.bin", SHAPES["tiny-moe"].num_experts
    proof = json.loads((measured / "measured.json").read_text())["proof"]
    places = json.loads((entry / "index.json").read_text())["places"]
    for names, place, size in places:
        if names[0] not in variants.store.experts:
            continue
        for expert in range(num_experts):
            flip(file, place + expert * size // num_experts + 100)
            assert prepare._proof(mixture, variants) != proof
            flip(file, place + expert * size // num_experts + 100)
    assert prepare._proof(mixture, variants) == proof
    flip(file, places[-1][1] + 100)
    again, line = started(mixture, caplog, cache)
    assert line == IN_USE
    assert f"entry {entry} is corrupt" in caplog.text
    assert len(preparations) == 2
    assert again.few_row_numbers == {1, 2}


def test_wrong_packed_weights_of_an_expert_are_refused(
    mixture: PagedModel,
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack_weights = process.pack_weights

    def wrong(paged: Any, store: Any, shape: Any) -> None:
        pack_weights(paged, store, shape)
        matrix = list(store.experts.values())[-1]  # of a layer that the truncated file lacks
        groups = matrix.data.reshape(matrix.num_blocks, -1, matrix.kind.group_size(matrix.columns))
        groups[-1, :, : 2 * matrix.kind.num_lanes].view(np.float16)[:] *= 2

    monkeypatch.setattr(process, "pack_weights", wrong)
    served, line = started(mixture, caplog, cache)
    assert line.startswith("decode kernels: not used: packed weights of experts of ")
    assert not served.few_row_numbers


@pytest.mark.nightly(but=("[7]",))
@pytest.mark.parametrize("num_before", [0, 1, 7, 23])
def test_texts_are_the_same_before_and_after_the_switch(
    caplog: pytest.LogCaptureFixture, num_before: int
) -> None:
    model = load_model(DEMO_MODEL, properties=PROPERTIES)
    prompt = [1, *range(300, 320)]

    def generated(switch: Callable[[], object]) -> list[int]:
        model.allocate_cache(4)
        tokens, begin = array("q", prompt), 0
        for step in range(24):
            if step == num_before:
                switch()
            layout = StepLayout(model.block_size)
            last = layout.add(tokens, begin, len(tokens), array("i", range(4)))
            begin = len(tokens)
            found = model.infer(layout.finish(array("q", (last,))))
            tokens.append(int(found[0].argmax()))
        return tokens[len(prompt) :].tolist()

    def switch() -> None:
        with caplog.at_level("INFO"):
            DecodeKernels(model).prepare(lambda *_: True)

    expected = generated(lambda: None)
    assert generated(switch) == expected
    assert model.few_row_numbers == {1, 2}


@pytest.mark.nightly(but=("[True]",))
@pytest.mark.parametrize("has_adapters", [True, False])
def test_kernels_for_adapters_are_used_where_adapters_are_served(
    model: PagedModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    has_adapters: bool,
) -> None:
    pairs = random_pairs(model, 4)
    packed = pack_adapter([pairs.get(name) for name in module_shapes(model.graph.model)])
    stack = AdapterStack({}).with_adapter(7, pairs, packed)
    served, _ = started(model, caplog, has_adapters=has_adapters)
    served.use_for_adapters(compile_adapters(model, stack), stack.packed)
    steps: list[bool] = []
    infer = AdaptedStepRunner.infer
    monkeypatch.setattr(
        AdaptedStepRunner, "infer", lambda *given: steps.append(True) or infer(*given)
    )
    decode(served, 2, 1, (7, 0))
    assert len(steps) == 2 * has_adapters


@pytest.mark.nightly(but=("True-gains1",))
@pytest.mark.parametrize(
    ("has_kernels", "gains", "expected"),
    [(True, {}, True), (True, {1: 1.2, 2: 1.5}, True), (True, {1: 1.5}, False), (False, {}, True)],
)
def test_the_graph_for_steps_of_one_row_is_compiled_where_kernels_gain_little(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_kernels: bool,
    gains: dict[int, float],
    expected: bool,
) -> None:
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: dict(gains))
    monkeypatch.setattr(few_rows.StepProgramRunner, "max_context_len", None)
    files = ExportedModel(directory)
    choice = replace(files.choices[0], has_single_rows=True)
    _, model = files.compile([choice], single_rows_later=True)
    model.allocate_cache(2)
    extensions: Sequence[Any] = [DecodeKernels(model)] * has_kernels + [LaterGraphs(model)]
    for extension in extensions:
        extension.prepare(lambda *_: True)
    assert model.has_single_rows == expected
    assert (1 in model.few_row_numbers) != expected
    assert not model.awaits_single_rows


def test_model_without_kernels_has_a_reason(
    directory: Path,
) -> None:
    config = EngineConfig()
    files = ExportedModel(directory)
    assert "so small" in str(why_no_kernels(files, config))
    files.weights_size = EXACT_WEIGHTS_SIZE + 1
    assert why_no_kernels(files, config) is None
    off = replace(config, decode_kernels="off")
    assert why_no_kernels(files, off) == "--decode-kernels off"
    exact = ExportedModel(directory, exact=True)
    exact.weights_size = files.weights_size
    assert "--precision exact" in str(why_no_kernels(exact, config))
    files.device = "GPU.0"
    assert why_no_kernels(files, config) == "the model runs on GPU.0"


@pytest.mark.parametrize(
    ("extension", "status", "most"),
    [
        (lambda _: KernelsOff("why"), "not used: why", 0),
        (DecodeKernels, "being prepared", 0),
        (lambda model: kernels_in_use(model), IN_USE.partition(": ")[2], 2),
    ],
)
def test_statistics_name_the_kernels_in_use(
    model: PagedModel, extension: Callable[[PagedModel], BackendExtension], status: str, most: int
) -> None:
    served = model.twin()
    served.allocate_cache(1)
    stats = extension(served).add_stats(BackendStats())
    assert (stats.decode_kernels, stats.decode_kernel_max_tokens) == (status, most)
    assert bool(stats.packed_weights_bytes) == bool(most)


def kernels_in_use(model: PagedModel) -> DecodeKernels:
    kernels = DecodeKernels(model)
    kernels.prepare(lambda *_: True)
    return kernels


def test_experts_are_the_reason_where_products_alone_are_no_faster(
    caplog: pytest.LogCaptureFixture,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    graph = LlamaGraph(SHAPES["tiny-moe"], 300, seed=0).build()
    without_softmax(graph)
    ov.save_model(graph, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    model = load_model(tmp_path, properties=PROPERTIES)
    monkeypatch.setattr(few_rows, "gains", lambda *_, **__: {})
    expected = (
        "decode kernels: not used: no faster than OpenVINO on this CPU; they compute the matrix "
        "products alone, because they do not support experts of this form ("
    )
    assert started(model, caplog, cache)[1].startswith(expected)
    assert started(model, caplog, cache)[1].startswith(expected), "the reason is kept"
