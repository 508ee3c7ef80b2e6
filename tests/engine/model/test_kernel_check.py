"""Tests that wrong decode kernels are refused and exact ones are used."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.attention import ARGUMENTS
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.segments import normalization_of
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.parts.decode_kernels import check as kernel_check
from fastovms.parts.decode_kernels import few_rows
from fastovms.parts.decode_kernels.few_rows import FewRowVariants, compile_few_rows
from fastovms.parts.decode_kernels.step_program import SEGMENT, StepProgramRunner

WINDOW = 300
SHAPE = replace(SHAPES["tiny-mistral"], num_hidden_layers=4, sliding_window=WINDOW)
SCALE_INPUT, WINDOW_INPUT = 9, 10

Change = Callable[[ov.Model], None]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return compile_kernels("avx2", 2)


def load(graph: ov.Model, directory: Path, cache: str = "u8") -> PagedModel:
    ov.save_model(graph, directory / "openvino_model.xml")
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": cache}
    return load_model(directory, properties=properties)


def with_soft_cap(graph: ov.Model) -> ov.Model:
    result = graph.output("logits").get_node()
    cap = opset13.constant(np.float32(3))
    capped = opset13.multiply(
        opset13.tanh(opset13.divide(result.input_value(0), cap)), opset13.constant(np.float32(3))
    )
    result.input(0).replace_source_output(capped.output(0))
    capped.output(0).set_names({"logits"})
    return graph


@pytest.fixture(scope="module", params=["windows", "soft cap"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    graph = LlamaGraph(SHAPE, 300, seed=0).build()
    if request.param == "soft cap":
        graph = with_soft_cap(graph)
    return load(graph, tmp_path_factory.mktemp("model"))


def variants_of(model: PagedModel, kernels: Kernels) -> FewRowVariants:
    found = compile_few_rows(model, WeightStore(kernels))
    assert found is not None
    return found


def why_wrong(model: PagedModel, variants: FewRowVariants) -> str | None:
    """Returns the fault that the check of a model finds."""
    store = variants.store
    cut = kernel_check.compile_cut(model.graph, model.device, model.precisions)
    wrong = kernel_check.why_wrong(cut, store)
    if wrong is None and kernel_check.differs(model, variants):
        whole = kernel_check.compile_whole(model.graph, model.device, model.precisions)
        return kernel_check.why_wrong(whole, store, is_long=False)
    return wrong


@pytest.mark.nightly(but=("windows",))
def test_exact_kernels_are_right(model: PagedModel, kernels: Kernels) -> None:
    assert why_wrong(model, variants_of(model, kernels)) is None


def test_models_too_large_for_memory_are_not_checked(
    model: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_check, "device_memory", lambda *_: 4 * 300 * 64)
    with pytest.raises(kernel_check.NotEnoughMemory):
        kernel_check.compile_cut(model.graph, model.device, model.precisions)


def nodes_of(graph: ov.Model, *kinds: str) -> list[Any]:
    return [node for node in graph.get_ordered_ops() if node.get_type_name() in kinds]


def width_of(output: Any) -> int | None:
    shape = output.get_partial_shape()
    return None if not len(shape) or shape[-1].is_dynamic else shape[-1].get_length()


def without_norms(graph: ov.Model) -> None:
    for node in nodes_of(graph, "Multiply"):
        width = width_of(node.output(0))
        step = None if width is None else normalization_of(node, (width,), width_of)
        if step is not None:
            node.output(0).replace(step.sources[0])


def with_other_base(graph: ov.Model) -> None:
    for node in nodes_of(graph, "Sin", "Cos"):
        width = node.get_input_partial_shape(0)[-1].get_length()
        factors = np.float32(50.0 ** -(np.arange(width) % (width // 2) / (width // 2)))
        angles = opset13.multiply(node.input_value(0), opset13.constant(factors))
        node.input(0).replace_source_output(angles.output(0))


def attention_with(index: int, value: Any) -> Change:
    def change(graph: ov.Model) -> None:
        for node in nodes_of(graph, "PagedAttentionExtension"):
            node.input(index).replace_source_output(opset13.constant(value).output(0))

    return change


def with_gate_and_up_swapped(graph: ov.Model) -> None:
    for node in nodes_of(graph, "Swish"):
        (target,) = node.output(0).get_target_inputs()
        other = target.get_node().input(1 - target.get_index())
        gate, up = node.input_value(0), other.get_source_output()
        node.input(0).replace_source_output(up)
        other.replace_source_output(gate)


def without_soft_cap(graph: ov.Model) -> None:
    for node in nodes_of(graph, "Tanh"):
        node.output(0).replace(node.input_value(0))


@pytest.mark.nightly(but=("windows-scale", "soft cap-soft cap"))
@pytest.mark.parametrize(
    "change",
    [
        without_norms,
        with_other_base,
        attention_with(SCALE_INPUT, np.float32(0.4)),
        attention_with(WINDOW_INPUT, np.int32(0)),
        attention_with(WINDOW_INPUT, np.int32(WINDOW // 2)),
        with_gate_and_up_swapped,
        without_soft_cap,
    ],
    ids=["norms", "base", "scale", "no window", "short window", "gate and up", "soft cap"],
)
def test_other_graphs_are_refused(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    has_soft_cap = bool(nodes_of(model.graph.model, "Tanh"))
    if has_soft_cap != (change is without_soft_cap):
        pytest.skip("the change is for the other model")
    for name in ("assemble_step", "use_kernels"):
        make = getattr(few_rows, name)

        def changed(graph: ov.Model, *given: Any, make: Any = make, **named: Any) -> Any:
            change(graph)
            graph.validate_nodes_and_infer_types()
            return make(graph, *given, **named)

        monkeypatch.setattr(few_rows, name, changed)
    wrong = why_wrong(model, variants_of(model, kernels))
    assert wrong is not None
    assert "logits differ from f32" in wrong


@pytest.mark.nightly(but=("windows-first",))
@pytest.mark.parametrize("columns", [slice(0, 2), slice(None, None, 2)], ids=["first", "halves"])
def test_wrong_weights_are_refused(model: PagedModel, kernels: Kernels, columns: slice) -> None:
    variants = variants_of(model, kernels)
    for matrix in variants.store.matrices:
        blocks = matrix.data.reshape(matrix.num_blocks, -1)
        blocks[columns] = blocks[::-1][columns]
    assert why_wrong(model, variants) is not None


@pytest.mark.nightly(but=("windows",))
def test_wrong_scales_of_one_layer_are_refused(model: PagedModel, kernels: Kernels) -> None:
    variants = variants_of(model, kernels)
    for matrix in variants.store.matrices[3:7]:
        heads = matrix.data.reshape(matrix.num_blocks, -1)[:, : 2 * matrix.kind.num_lanes]
        heads.view(np.float16)[:] *= 3
    assert why_wrong(model, variants) is not None


@pytest.mark.nightly(but=("soft cap",))
@pytest.mark.parametrize("by", [-1, 1])
def test_other_places_in_the_cache_are_refused(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    variants = variants_of(model, kernels)
    if not variants.whole:
        pytest.skip("attention is OpenVINO's")
    infer = StepProgramRunner.infer

    def shifted(runner: StepProgramRunner, inputs: StepInputs) -> Any:
        past_lens = np.maximum(inputs.past_lens + by, 0)
        return infer(runner, inputs._replace(past_lens=past_lens))

    monkeypatch.setattr(StepProgramRunner, "infer", shifted)
    assert why_wrong(model, variants) is not None


@pytest.mark.nightly(but=("windows-256",))
@pytest.mark.parametrize("first", [0, SEGMENT])
def test_a_wrong_segment_of_the_attention_is_refused(
    model: PagedModel, kernels: Kernels, first: int
) -> None:
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * ARGUMENTS)
    attend = kind(kernels.attend)

    @kind
    def wrong(*given: int) -> None:
        attend(*given)
        num_rows, begin, size, group, result = (given[n] for n in (2, 8, 11, 12, 16))
        if begin // SEGMENT * SEGMENT == first:
            room = (ctypes.c_float * (num_rows * group * size)).from_address(result)
            np.frombuffer(room, np.float32)[:] *= 0.5

    address = ctypes.cast(wrong, ctypes.c_void_p).value
    variants = variants_of(model, replace(kernels, attend=address))
    if not variants.whole:
        pytest.skip("attention is OpenVINO's")
    assert why_wrong(model, variants) is not None


@pytest.mark.nightly(but=("windows",))
def test_logits_that_are_no_numbers_are_refused(model: PagedModel, kernels: Kernels) -> None:
    variants = variants_of(model, kernels)
    head = variants.store.matrices[-1]
    head.data.reshape(head.num_blocks, -1)[:, :2] = np.float16(np.nan).view(np.uint16).tobytes()[0]
    assert why_wrong(model, variants) is not None


@pytest.mark.nightly(but=("windows-2.0", "windows-1.4"))
@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (1.4, True), (2.0, False)], ids=str)
def test_ours_may_be_as_inexact_as_openvino(
    model: PagedModel,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    is_right: bool,
) -> None:
    def errors(_: Any, one: PagedModel, __: int, **_named: Any) -> Any:
        return (np.full(4, 0.3 * (factor if one.few_row_numbers else 1.0)),) * 2

    monkeypatch.setattr(kernel_check, "_errors", errors)
    monkeypatch.setattr(kernel_check, "differs", lambda *_: False)
    assert (why_wrong(model, variants_of(model, kernels)) is None) is is_right


@pytest.mark.nightly(but=("windows",))
def test_kernels_that_differ_on_a_cut_are_compared_on_the_whole_model(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    compare = kernel_check._why_less_exact

    def count(one: PagedModel, *given: Any, **named: Any) -> str | None:
        compared.append(len(one.cache_inputs) // 2)
        return compare(one, *given, **named)

    monkeypatch.setattr(kernel_check, "_why_less_exact", count)
    monkeypatch.setattr(kernel_check, "differs", lambda *_: True)
    assert why_wrong(model, variants_of(model, kernels)) is None
    assert compared == [2, 4]


@pytest.mark.parametrize(
    ("vocab_size", "ids"), [(None, (5, 400)), (512, (5, 400)), (128, (5, 128)), (3, (2, 3))]
)
def test_compared_texts_have_ids_of_the_vocabulary(
    vocab_size: int | None, ids: tuple[int, int]
) -> None:
    assert kernel_check.token_id_range(vocab_size) == ids
