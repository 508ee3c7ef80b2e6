"""Mixtures of experts in whole steps: what is recognized, and which faults are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from openvino import opset13

from bench.models import write_model
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.instructions import Field, Opcode
from fastovms.engine.kernels.mixtures import find_mixtures
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.gguf.model_directory import model_directory
from fastovms.parts.decode_kernels import check, few_rows
from fastovms.parts.decode_kernels.few_rows import FewRowVariants, compile_few_rows
from fastovms.system.disk import DiskCache
from tests.engine.model.test_few_rows import decode, with_kernels
from tests.gguf import tiny_models

SHAPE = replace(SHAPES["tiny-moe"], num_hidden_layers=3)
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return compile_kernels("avx2", 2)


@pytest.fixture(scope="module", params=["int8", "int4", "gguf"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    directory = tmp_path_factory.mktemp("model")
    if request.param == "gguf":  # whose router is not quantized
        assert SHAPE.num_experts == tiny_models.EXPERTS
        file, tokens = directory / "m.gguf", [*tiny_models.TOKENS, *map(str, range(1000, 1249))]
        vocabulary = {
            **tiny_models.BYTE_PAIRS,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * len(tokens),
        }
        tiny = tiny_models.TinyModel("qwen3moe", types=(Type.Q8_0,), tokenizer=vocabulary)
        tiny_models.write_model(file, tiny)
        return load_model(model_directory(file, DiskCache(None), directory), properties=PROPERTIES)
    write_model(replace(SHAPE, weight_format=request.param), directory)
    return load_model(directory, properties=PROPERTIES)


def variants_of(model: PagedModel, kernels: Kernels) -> FewRowVariants:
    found = compile_few_rows(model, WeightStore(kernels), has_operations=False)
    assert found is not None
    assert found.whole
    return found


@pytest.mark.parametrize("num_rows", [1, 2, 5, 32])
def test_logits_of_whole_steps_are_openvinos(
    model: PagedModel, kernels: Kernels, num_rows: int
) -> None:
    expected = decode(model.twin(), num_rows, 1, length=20)
    found = decode(with_kernels(model, variants_of(model, kernels).whole), num_rows, 1, length=20)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * expected.std())


def test_exact_kernels_are_right(model: PagedModel, kernels: Kernels) -> None:
    variants = variants_of(model, kernels)
    cut = check.compile_cut(model.graph, model.device, model.precisions)
    assert check.wrong_experts(model.graph, variants.store) is None
    assert check.why_wrong(cut, variants.store) is None
    assert not check.differs(model, variants)


def without_normalization(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.CHOOSE, Field.P2] = 0


def with_first_expert_for_all(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.EXPERTS, Field.A_STRIDE] = 0


def with_the_scores_of_others(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.CHOOSE, Field.A_START] += 1


@pytest.mark.parametrize(
    "fault", [without_normalization, with_first_expert_for_all, with_the_scores_of_others]
)
def test_other_choices_are_refused(
    model: PagedModel,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Any], None],
) -> None:
    assemble_step = few_rows.assemble_step

    def changed(*given: Any, **named: Any) -> Any:
        step = assemble_step(*given, **named)
        assert step is not None
        fault(step.program.instructions)
        return step

    monkeypatch.setattr(few_rows, "assemble_step", changed)
    variants = variants_of(model, kernels)
    cut = check.compile_cut(model.graph, model.device, model.precisions)
    wrong = check.why_wrong(cut, variants.store)
    assert wrong is not None
    assert "logits differ from f32" in wrong


@pytest.mark.parametrize("number", range(9))
def test_wrong_scales_of_one_expert_of_one_layer_are_refused(
    model: PagedModel, kernels: Kernels, number: int
) -> None:
    variants = variants_of(model, kernels)
    name, matrix = list(variants.store.experts.items())[number]
    kind = matrix.kind
    groups = matrix.data.reshape(SHAPE.num_experts, -1, kind.group_size(matrix.columns))
    groups[2, :, : 2 * kind.num_lanes].view(np.float16)[:] *= 2
    wrong = check.wrong_experts(model.graph, variants.store)
    assert wrong == f"packed weights of experts of {name} are wrong"


def nodes_of(graph: ov.Model, kind: str) -> list[Any]:
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == kind]


def choices_of(graph: ov.Model) -> list[Any]:
    return nodes_of(graph, "TopK")


def with_sigmoid(graph: ov.Model) -> None:
    for node in choices_of(graph):
        scores = node.input_value(0).get_node().input_value(0)
        node.input(0).replace_source_output(opset13.sigmoid(scores).output(0))


def without_softmax(graph: ov.Model) -> None:
    for node in choices_of(graph):
        node.input(0).replace_source_output(node.input_value(0).get_node().input_value(0))


def with_softmax_of_the_chosen(graph: ov.Model) -> None:
    without_softmax(graph)
    for node in nodes_of(graph, "ScatterElementsUpdate"):
        values = node.input_value(2).get_node().input_value(0)
        node.input(2).replace_source_output(opset13.softmax(values, 1).output(0))


def with_bias_of_scores(graph: ov.Model) -> None:
    for node in nodes_of(graph, "Softmax"):
        bias = opset13.constant(np.ones((1, SHAPE.num_experts), np.float32))
        node.input(0).replace_source_output(opset13.add(node.input_value(0), bias).output(0))


def with_shared_expert(graph: ov.Model) -> None:
    for node in choices_of(graph):
        scores = node.input_value(0).get_node().input_value(0)
        rows = scores.get_node().input_value(0)
        total = results_of(node)
        targets = total.output(0).get_target_inputs()
        gate = opset13.sigmoid(opset13.reduce_mean(rows, opset13.constant([-1]), True))
        shared = opset13.multiply(opset13.multiply(rows, gate), opset13.constant(np.float32(0.1)))
        shape = opset13.shape_of(total)
        joined = opset13.add(total, opset13.reshape(shared, shape, False))
        for target in targets:
            target.replace_source_output(joined.output(0))


def results_of(choice: Any) -> Any:
    """Returns the node of the mixture's results."""
    node = next(
        target.get_node()
        for target in choice.output(1).get_target_inputs()
        if target.get_node().get_type_name() == "ScatterElementsUpdate"
    )
    for _ in range(6):
        (target,) = node.output(0).get_target_inputs()
        node = target.get_node()
    assert node.get_type_name() == "Reshape"
    return node


@pytest.mark.parametrize(
    "change",
    [
        with_sigmoid,
        without_softmax,
        with_softmax_of_the_chosen,
        with_bias_of_scores,
        with_shared_expert,
    ],
)
def test_other_routers_are_left_to_openvino(
    kernels: Kernels, tmp_path: Path, change: Callable[[ov.Model], None]
) -> None:
    graph = LlamaGraph(SHAPE, 300, seed=0).build()
    change(graph)
    graph.validate_nodes_and_infer_types()
    ov.save_model(graph, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    model = load_model(tmp_path, properties=PROPERTIES)
    found = compile_few_rows(model, WeightStore(kernels))
    assert found is not None
    assert not found.whole
    assert found.operations
    assert bool(find_mixtures(model.graph.model, "avx2")) == (change is with_shared_expert)
