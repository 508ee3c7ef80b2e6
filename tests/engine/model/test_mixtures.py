"""Tests of mixtures of experts in whole steps: recognized graphs, and refused faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from openvino import opset13

from bench.models import write_model
from bench.random_models import gguf_decoder
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.instructions import Field, Opcode
from fastovms.engine.kernels.mixtures import Gating, find_mixtures
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.gguf.model_directory import model_directory
from fastovms.parts.decode_kernels import check, few_rows
from fastovms.parts.decode_kernels.few_rows import FewRowVariants, compile_few_rows
from fastovms.system.disk import DiskCache
from tests.engine.model.test_few_rows import decode, with_kernels

SHAPE = replace(SHAPES["tiny-moe"], num_hidden_layers=3)
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return replace(compile_kernels("avx2", 2), chunk_product=0)


EXPORTS = Path(__file__).parents[2] / "models" / "kernels"
"""What `bench/architectures/export.py` makes, with products in int8, those of gpt_oss in int4:
weights of all experts in one constant whose rows alternate, experts one by one, and sorted rows."""

MODELS = ("int8", "int4", "int8, shared", "qwen3moe", "gpt-oss")
MODELS += ("gpt_oss", "qwen2_moe", "granitemoe")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    if (EXPORTS / request.param).exists():
        return load_model(EXPORTS / request.param, properties=PROPERTIES)
    directory = tmp_path_factory.mktemp("model")
    if request.param in ("qwen3moe", "gpt-oss"):  # GGUF, whose router is not quantized
        assert SHAPE.num_experts == gguf_decoder.TINY.num_experts
        file, tokens = directory / "m.gguf", [*gguf_decoder.TOKENS, *map(str, range(1000, 1249))]
        vocabulary = {
            **gguf_decoder.BYTE_PAIRS,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * len(tokens),
        }
        tiny = gguf_decoder.GgufModel("qwen3moe", types=(Type.Q8_0,), tokenizer=vocabulary)
        if request.param == "gpt-oss":
            window, biases = {"attention.sliding_window": 9}, ("attn_q", "attn_output")
            types = (Type.Q8_0, Type.MXFP4)
            tiny = replace(
                tiny, architecture="gpt-oss", types=types, settings=window, biases=biases
            )
        gguf_decoder.write_model(file, tiny)
        return load_model(model_directory(file, DiskCache(None), directory), properties=PROPERTIES)
    weight_format, _, shared = request.param.partition(", ")
    shape = replace(SHAPE, weight_format=weight_format, shared_expert=bool(shared))
    write_model(shape, directory)
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


def with_other_normalization(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.CHOOSE, Field.P3] ^= 1


def with_first_expert_for_all(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.EXPERTS, Field.A_STRIDE] = 0


def with_the_scores_of_others(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.CHOOSE, Field.A_START] += 1


def change_programs(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], None]) -> None:
    """Changes the instructions of each assembled program with `fault`."""
    assemble_step = few_rows.assemble_step

    def changed(*given: Any, **named: Any) -> Any:
        step = assemble_step(*given, **named)
        assert step is not None
        fault(step.program.instructions)
        return step

    monkeypatch.setattr(few_rows, "assemble_step", changed)


def with_the_biases_of_others(program: Any) -> None:
    of_experts = program[:, Field.OPCODE] == Opcode.ADD_OF_EXPERTS
    program[of_experts, Field.P0] += 4 * program[of_experts, Field.WIDTH]


def without_sinks(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.ADD_SEGMENTS, Field.P7] = 0


def without_limits(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.GATE, Field.P0] = GATING.ctypes.data


GATING = Gating().numbers


FAULTS = (with_other_normalization, with_first_expert_for_all, with_the_scores_of_others)
FAULTS_OF_GPT_OSS = (with_the_biases_of_others, without_sinks, without_limits)


@pytest.mark.parametrize(
    ("model", "fault"),
    [*product(MODELS, FAULTS), *product(["gpt-oss", "gpt_oss"], FAULTS_OF_GPT_OSS)],
    indirect=["model"],
)
def test_other_choices_are_refused(
    model: PagedModel,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Any], None],
) -> None:
    change_programs(monkeypatch, fault)
    variants = variants_of(model, kernels)
    cut = check.compile_cut(model.graph, model.device, model.precisions)
    wrong = check.why_wrong(cut, variants.store)
    assert wrong is not None
    assert "logits differ from f32" in wrong


def test_wrong_scales_of_one_expert_of_one_layer_are_refused(
    model: PagedModel, kernels: Kernels
) -> None:
    variants = variants_of(model, kernels)
    num_experts = find_mixtures(model.graph.model, "avx2")[0].router.num_experts
    assert variants.store.experts
    for name, matrix in variants.store.experts.items():
        kind = matrix.kind
        groups = matrix.data.reshape(num_experts, -1, kind.group_size(matrix.columns))
        scales = groups[2, :, : 2 * kind.num_lanes].view(np.float16)
        scales *= 2
        wrong = check.wrong_experts(model.graph, variants.store)
        assert wrong == f"packed weights of experts of {name} are wrong"
        scales /= 2


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
        scores = opset13.add(node.input_value(0), biases())
        node.input(0).replace_source_output(scores.output(0))


def biases() -> Any:
    return opset13.constant(np.linspace(-0.4, 0.4, SHAPE.num_experts, dtype="f")[None])


def with_bias_of_ranks(graph: ov.Model) -> None:
    """Rewrites the routers to the form of GLM-4.5's and LFM2-MoE's."""
    with_sigmoid(graph)
    for node in nodes_of(graph, "ScatterElementsUpdate"):
        choice = node.input_value(1).get_node()
        shares = choice.input_value(0)
        ranks = in_groups(opset13.add(shares, biases()))
        choice.input(0).replace_source_output(ranks.output(0))
        values = opset13.gather_elements(shares, choice.output(1), 1)
        total = opset13.reduce_sum(values, opset13.constant([-1]), True)
        total = opset13.add(total, opset13.constant(np.float32(1e-20)))
        values = opset13.multiply(opset13.divide(values, total), opset13.constant(np.float32(2.5)))
        node.input(2).replace_source_output(values.output(0))


def in_groups(ranks: Any) -> Any:
    """Makes the ranks of all but two of three groups 0, as DeepSeek 3 does."""
    groups = opset13.reshape(ranks, opset13.constant([-1, 3, SHAPE.num_experts // 3]), False)
    best = opset13.topk(groups, opset13.constant(2), -1, "max", "value", "i64").output(0)
    sums = opset13.reduce_sum(best, opset13.constant([-1]), False)
    numbers = opset13.topk(sums, opset13.constant(2), -1, "max", "value", "i64").output(1)
    zeros = opset13.multiply(sums, opset13.constant(np.float32(0)))
    ones = opset13.add(
        opset13.multiply(opset13.convert(numbers, np.float32), opset13.constant(np.float32(0))),
        opset13.constant(np.float32(1)),
    )
    is_left = opset13.scatter_elements_update(zeros, numbers, ones, opset13.constant([1]))
    left = opset13.multiply(groups, opset13.unsqueeze(is_left, opset13.constant([-1])))
    return opset13.reshape(left, opset13.constant([-1, SHAPE.num_experts]), False)


def changed_model(change: Callable[[ov.Model], None], directory: Path) -> PagedModel:
    graph = LlamaGraph(SHAPE, 300, seed=0).build()
    change(graph)
    graph.validate_nodes_and_infer_types()
    ov.save_model(graph, directory / "openvino_model.xml", compress_to_fp16=False)
    return load_model(directory, properties=PROPERTIES)


@pytest.mark.parametrize(
    "change",
    [
        with_sigmoid,
        with_softmax_of_the_chosen,
        with_bias_of_scores,
        with_bias_of_ranks,
    ],
)
def test_other_routers_choose_as_in_openvino(
    kernels: Kernels, tmp_path: Path, change: Callable[[ov.Model], None]
) -> None:
    model = changed_model(change, tmp_path)
    expected = decode(model.twin(), 5, 1, length=20)
    found = decode(with_kernels(model, variants_of(model, kernels).whole), 5, 1, length=20)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * expected.std())


@pytest.mark.parametrize("change", [without_softmax])
def test_unknown_routers_are_left_to_openvino(
    kernels: Kernels, tmp_path: Path, change: Callable[[ov.Model], None]
) -> None:
    model = changed_model(change, tmp_path)
    found = compile_few_rows(model, WeightStore(kernels))
    assert found is not None
    assert not found.whole
    assert found.operations
    assert not find_mixtures(model.graph.model, "avx2")
