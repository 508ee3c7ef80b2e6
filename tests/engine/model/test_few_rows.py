"""Tests of steps with few tokens on the decode kernels."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from openvino import opset13

from bench.models import write_model
from bench.random_models.gguf_decoder import TINY, GgufModel
from bench.random_models.gguf_decoder import write_model as write_gguf
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from fastovms.engine.kernels import compiler
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.low_rank import pack_adapter
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import (
    MAX_KERNEL_TOKENS,
    PagedModel,
    RunnerFactory,
    as_float32,
)
from fastovms.engine.model.paging import read_paged_graph
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.gguf.converter import convert
from fastovms.parts.adapters.graph import (
    AdapterStack,
    LowRank,
    compile_adapters,
    module_shapes,
)
from fastovms.parts.decode_kernels import few_rows
from fastovms.parts.decode_kernels.few_rows import (
    MAX_ROWS,
    FewRowVariants,
    compile_few_rows,
    served_numbers,
)
from fastovms.parts.decode_kernels.step_program import (
    AdaptedStepRunner,
    StepProgramRunner,
)

TEXT = array("q", (40 + n % 60 for n in range(700)))
COMPRESSED = {
    "int8": SHAPES["tiny"],
    "tied, biases, int4": SHAPES["tiny-qwen2"],
    "norms of heads, int4": replace(SHAPES["tiny-qwen3"], weight_format="int4"),
    "window": SHAPES["tiny-mistral"],
    "short convolutions, int8": replace(SHAPES["tiny-lfm2"], qk_norm=False),
    "experts, int8": SHAPES["tiny-moe"],
    "experts, int4": replace(SHAPES["tiny-moe"], weight_format="int4"),
    "experts, int4-sym": replace(
        SHAPES["tiny-moe"], weight_format="int4-sym-64", intermediate_size=128
    ),
    "int4-sym": replace(SHAPES["tiny"], weight_format="int4-sym-64", intermediate_size=192),
}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """Kernels that are as exact as f32 in steps of all sizes."""
    return replace(compile_kernels("avx2", 2), chunk_product=0)


CACHES = [*((name, "f16") for name in COMPRESSED), ("int8", "u8"), ("window", "u8")]
"""Models with the precision of their cache."""


@pytest.fixture(scope="module", params=CACHES, ids=", ".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    name, cache_precision = request.param
    directory = tmp_path_factory.mktemp("model")
    write_model(COMPRESSED[name], directory)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": cache_precision}
    return load_model(directory, properties=properties)


@pytest.fixture(scope="module")
def variants(model: PagedModel, kernels: Kernels) -> FewRowVariants:
    found = compile_few_rows(model, WeightStore(kernels))
    assert found is not None
    return found


@pytest.fixture(scope="module", params=["whole", "operations"])
def ours(request: pytest.FixtureRequest, model: PagedModel, variants: FewRowVariants) -> PagedModel:
    """Returns the model with all steps of few tokens computed in one of the ways."""
    return with_kernels(model, getattr(variants, request.param))


def with_kernels(model: PagedModel, makers: Mapping[int, RunnerFactory]) -> PagedModel:
    ours = model.twin()
    ours.use_for_few_rows({number: [make] for number, make in makers.items()})
    assert ours.few_row_numbers >= frozenset(range(1, MAX_ROWS + 1))
    return ours


def decode(
    model: PagedModel,
    num_sequences: int,
    num_tokens: int,
    adapters: Sequence[int] = (),
    length: int = 44,
) -> NDArray[np.float32]:
    """Returns the logits of the last token of a prompt with `length` tokens, and of steps with the
    given numbers of tokens after it."""
    adapters = adapters or (0,) * num_sequences
    rows = []
    ends = [length + step * num_tokens for step in range(3)]
    num_blocks = -(-ends[-1] // model.block_size)
    model.allocate_cache(num_sequences * num_blocks)
    for start, end in zip([0, *ends], ends, strict=False):
        layout = StepLayout(model.block_size)
        last = [
            layout.add(
                TEXT,
                start,
                end,
                array("i", range(number * num_blocks, (number + 1) * num_blocks)),
                adapter=adapters[number],
            )
            for number in range(num_sequences)
        ]
        rows.append(as_float32(model.infer(layout.finish(array("q", last)))).copy())
    return np.concatenate(rows)


@pytest.mark.parametrize(("precision", "is_again"), [("bf16", True), ("f32", False)])
def test_the_end_of_a_prompt_is_computed_again_where_logits_are_bf16(
    precision: str, is_again: bool, kernels: Kernels, tmp_path: Path
) -> None:
    write_model(COMPRESSED["int8"], tmp_path)
    properties = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": "u8"}
    plain = load_model(tmp_path, properties=properties)
    found = compile_few_rows(plain, WeightStore(kernels))
    assert found is not None
    ours = with_kernels(plain, {number: found.whole[number] for number in range(1, MAX_ROWS + 1)})
    steps = []
    for model, ends in ((plain, [44]), (ours, [44]), (ours, [43, 44])):
        model.allocate_cache(2)
        for start, end in zip([0, *ends], ends, strict=False):
            layout = StepLayout(model.block_size)
            last = layout.add(TEXT, start, end, array("i", (0, 1)))
            logits = model.infer(layout.finish(array("q", [last])))
        steps.append(as_float32(logits).copy())
    whole, again, apart = steps
    assert np.array_equal(again, whole) is not is_again
    if is_again:
        assert np.abs(again - apart).max() < 0.5 * np.abs(whole - apart).max()


@pytest.mark.nightly(but=("[int8, f16-", "-whole-2-1-44]"))
@pytest.mark.parametrize(
    ("num_sequences", "num_tokens", "length"),
    [
        *((1, 1, 44), (2, 1, 44), (3, 1, 44), (8, 1, 44), (1, 5, 44), (2, 4, 44), (9, 1, 44)),
        *((1, 1, 600), (2, 9, 511), (1, 40, 44), (3, 60, 300)),
    ],
)
def test_logits_and_likeliest_tokens_are_openvinos(
    model: PagedModel, ours: PagedModel, num_sequences: int, num_tokens: int, length: int
) -> None:
    expected = decode(model.twin(), num_sequences, num_tokens, length=length)
    found = decode(ours, num_sequences, num_tokens, length=length)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * expected.std())
    assert np.array_equal(found.argmax(-1), expected.argmax(-1))


def test_chunks_by_activations_of_8_bits_are_near_openvinos(model: PagedModel) -> None:
    found = compile_few_rows(model, WeightStore(compile_kernels("avx2", 2)))
    assert found is not None
    if not found.whole:
        pytest.skip("attention is OpenVINO's")
    expected = decode(model.twin(), 1, 40)
    logits = decode(with_kernels(model, found.whole), 1, 40)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.1 * expected.std())


@pytest.mark.parametrize("num_tokens", [40, 150])
def test_logits_of_a_scored_prompt_are_in_the_order_of_the_request(
    model: PagedModel, ours: PagedModel, num_tokens: int
) -> None:
    found = []
    for one in (model.twin(), ours):
        layout = StepLayout(one.block_size)
        one.allocate_cache(8)
        last = layout.add(TEXT, 0, num_tokens, array("i", range(7)))
        other = layout.add(TEXT, 0, 1, array("i", (7,)))
        sampled = array("q", (other, last, *range(num_tokens - 1)))
        found.append(as_float32(one.infer(layout.finish(sampled))).argmax(-1))
    assert np.mean(found[0] == found[1]) > 0.9  # some logits of random weights are nearly tied


@pytest.mark.parametrize("kind", [Type.Q5_0, Type.Q5_1, Type.Q5_K, Type.Q6_K])
def test_types_of_gguf_that_fit_6_bits_are_packed_with_6(
    kind: Type, kernels: Kernels, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", GgufModel(types=(kind,)))
    convert(tmp_path / "model.gguf", tmp_path)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}
    plain = load_model(tmp_path, properties=properties)
    found = compile_few_rows(plain, WeightStore(kernels))
    assert found is not None
    long = [matrix for matrix in found.store.matrices if matrix.num_columns == TINY.hidden]
    assert {matrix.kind.weight_bits for matrix in long} == {6}  # shorter rows are in Q8_0
    expected = decode(plain.twin(), 2, 1)
    logits = decode(with_kernels(plain, found.whole), 2, 1)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.03 * expected.std())


def generate(
    model: PagedModel, num_tokens: int, expected: Sequence[int] | None = None
) -> list[int]:
    """Returns the greedy tokens after a prompt, or `expected` if greedy sampling could return it.

    Random weights have nearly equal logits, so that an expected token is right if its logit is at
    most a tenth of the deviation below the largest.
    """
    model.allocate_cache(2)
    text, start = array("q", TEXT[:40]), 0
    for number in range(num_tokens):
        layout = StepLayout(model.block_size)
        last = layout.add(text, start, len(text), array("i", (1, 0)))
        start = len(text)
        logits = as_float32(model.infer(layout.finish(array("q", (last,)))))[0]
        text.append(int(logits.argmax()) if expected is None else expected[number])
        assert logits[text[-1]] >= logits.max() - 0.1 * logits.std(), f"token {number} is wrong"
    return text[40:].tolist()


def assert_greedy(model: PagedModel, tokens: Sequence[int]) -> None:
    """Fails where greedy sampling with `model` could not return `tokens`; see `generate`."""
    generate(model, len(tokens), tokens)


def test_greedy_texts_are_openvinos(model: PagedModel, ours: PagedModel) -> None:
    assert_greedy(model.twin(), generate(ours, 24))


def test_both_ways_share_their_weights(
    model: PagedModel, kernels: Kernels, variants: FewRowVariants
) -> None:
    shape = few_rows.cache_shape(model.cache_inputs)
    experts = sum(matrix.data.nbytes for matrix in variants.store.experts.values())
    read = variants.store.num_bytes - experts * 4 // 6  # a token takes 2 of 6
    assert few_rows.bytes_read(model.graph, kernels, shape) == pytest.approx(read, abs=1)


def test_a_step_without_logits_fills_the_cache(model: PagedModel, ours: PagedModel) -> None:
    plain = model.twin()
    logits = []
    for one in (plain, ours):
        one.allocate_cache(2)
        for start, is_sampled in ((0, False), (4, True)):
            layout = StepLayout(one.block_size)
            last = layout.add(TEXT, start, start + 4, array("i", (0, 1)))
            found = one.infer(layout.finish(array("q", (last,) * is_sampled)))
            assert len(found) == is_sampled
        logits.append(as_float32(found).copy())
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=0.01 * logits[0].std())


def test_long_texts_are_left_to_the_next_way(
    model: PagedModel, variants: FewRowVariants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepProgramRunner, "max_context_len", 31)
    mixed = model.twin()
    ways = [variants.whole, variants.operations]
    mixed.use_for_few_rows({n: [way[n] for way in ways] for n in range(1, MAX_ROWS + 1)})
    monkeypatch.setattr(StepProgramRunner, "infer", Mock(side_effect=AssertionError))
    layout = StepLayout(mixed.block_size)
    mixed.allocate_cache(2)
    last = layout.add(TEXT, 31, 32, array("i", (0, 1)))
    assert len(mixed.infer(layout.finish(array("q", (last,))))) == 1
    layout = StepLayout(mixed.block_size)
    last = layout.add(TEXT, 30, 31, array("i", (0, 1)))
    with pytest.raises(AssertionError):
        mixed.infer(layout.finish(array("q", (last,))))


@pytest.mark.parametrize(("size", "is_ours"), [(16, True), (17, False)])
def test_large_chunks_of_long_texts_are_left_to_openvino(
    ours: PagedModel, monkeypatch: pytest.MonkeyPatch, size: int, is_ours: bool
) -> None:
    monkeypatch.setattr("fastovms.engine.model.model.MAX_SHORT_TEXT", 30)
    for runner in {own for runners in ours._few_rows.values() for own in runners}:
        monkeypatch.setattr(runner, "max_long_chunk", 16)
    infer = Mock(side_effect=StepProgramRunner.infer, autospec=True)
    monkeypatch.setattr(StepProgramRunner, "infer", lambda *given: infer(*given))
    layout = StepLayout(ours.block_size)
    ours.allocate_cache(2)
    last = layout.add(TEXT, 20, 20 + size, array("i", (0, 1)))
    ours.infer(layout.finish(array("q", (last,))))
    is_whole = any(isinstance(one[0], StepProgramRunner) for one in ours._few_rows.values())
    assert infer.called is (is_ours and is_whole)


def test_dense_weights_are_left_to_openvino(tiny_models: dict[str, Path], kernels: Kernels) -> None:
    assert compile_few_rows(load_model(tiny_models["tiny-fp32"]), WeightStore(kernels)) is None


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({}, ()),
        ({1: 1.5}, (1,)),
        ({2: 1.5, 4: 1.2}, (2, 3, 4)),
        ({1: 2.0, 2: 2.0, 4: 2.0, 8: 1.1}, range(1, 9)),
        (dict.fromkeys((1, 2, 4, 8, 16, 32), 1.1), range(1, MAX_ROWS + 1)),
        (dict.fromkeys((1, 2, 4, 8, 16, 32, 128), 1.1), range(1, MAX_KERNEL_TOKENS + 1)),
        ({8: 1.1}, (5, 6, 7, 8)),
    ],
)
def test_numbers_between_those_measured_are_like_the_next(
    gains: dict[int, float], expected: Sequence[int]
) -> None:
    assert served_numbers(gains) == frozenset(expected)


# Adapters


def random_pairs(model: PagedModel, seed: int, *, only: str = "") -> dict[str, LowRank]:
    rng = np.random.default_rng(seed)
    return {
        name: LowRank(
            rng.normal(0, 0.2, (2 + seed, shape.columns)).astype(np.float32),
            rng.normal(0, 0.2, (2 + seed, shape.rows)).astype(np.float32),
        )
        for name, shape in module_shapes(model.graph.model).items()
        if name.endswith(only)
    }


@pytest.fixture(scope="module")
def adapted_models(model: PagedModel, kernels: Kernels) -> tuple[PagedModel, PagedModel]:
    """A model with four adapters, and the same model with steps of few tokens on the kernels."""
    found = compile_few_rows(model, WeightStore(kernels), has_adapters=True)
    assert found is not None
    assert found.adapted.keys() == set(range(1, MAX_ROWS + 1))
    stack, names = AdapterStack({}), module_shapes(model.graph.model)
    last = "down_proj" if any(name.endswith("down_proj") for name in names) else "o_proj"
    for seed, only in ((1, ""), (2, "q_proj"), (3, last), (9, "")):
        pairs = random_pairs(model, seed, only=only)
        packed = pack_adapter([pairs.get(name) for name in names])
        stack = stack.with_adapter(seed, pairs, packed)
    runner = compile_adapters(model, stack)
    plain, ours = model.twin(), model.twin()
    plain.use_for_adapters(runner)
    ours.use_for_few_rows({}, found.adapted)
    ours.use_for_adapters(runner, stack.packed)
    return plain, ours


@pytest.mark.nightly(but=("[int8, f16-", "-(0, 9, 1)-3]"))
@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize(
    "numbers",
    [(1,), (2,), (3, 0), (0, 9, 1), (1, 2, 3, 9, 0), (*range(4), 9, 1, 2, 3) * 2],
    ids=str,
)
def test_logits_with_adapters_are_openvinos(
    adapted_models: tuple[PagedModel, PagedModel], numbers: tuple[int, ...], num_tokens: int
) -> None:
    expected, found = (decode(one, len(numbers), num_tokens, numbers) for one in adapted_models)
    error = np.sqrt(np.square(found - expected).mean(-1))
    assert error.max() < 0.1 * expected.std()  # adapters are in 8 bits
    assert np.median(error) < 0.03 * expected.std()
    plain = decode(adapted_models[0], len(numbers), num_tokens)
    is_adapted = np.tile(np.array(numbers) != 0, 3)
    difference = np.abs(plain - expected).max(-1)
    assert (difference[is_adapted] > 0.1 * plain.std()).all()


def test_kernels_compute_steps_with_adapters(
    adapted_models: tuple[PagedModel, PagedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = adapted_models
    sizes: list[int] = []
    infer = AdaptedStepRunner.infer

    def count(runner: AdaptedStepRunner, inputs: StepInputs) -> Any:
        sizes.append(len(inputs.input_ids))
        return infer(runner, inputs)

    monkeypatch.setattr(AdaptedStepRunner, "infer", count)
    most = MAX_ROWS
    decode(ours, most, 1, (1,) * most)
    decode(ours, most + 1, 1, (1,) * (most + 1))
    decode(ours, 4, 1)
    assert sizes == [most, most]


@pytest.mark.parametrize(
    ("zero_points", "expected"),
    [(0.0, "avx512_vnni"), (0.25, "avx512_vnni16"), (8.0, "avx512_vnni16")],
)
def test_weights_with_zero_points_get_activations_of_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zero_points: float, expected: str
) -> None:
    integers = np.random.default_rng(0).integers(-8, 8, (512, 2, 32), np.int8)
    node: Any = opset13.convert(opset13.constant(integers), np.float32)
    if zero_points:
        node = opset13.subtract(node, opset13.constant(np.full((512, 2, 1), zero_points, "f")))
    node = opset13.multiply(node, opset13.constant(np.full((512, 2, 1), 0.01, np.float32)))
    head = opset13.reshape(node, opset13.constant(np.array([512, 64])), False)
    graph = LlamaGraph(replace(SHAPES["tiny"], weight_format="fp32"), 300, seed=0).build()
    product = graph.output("logits").get_node().input_value(0).get_node()
    product.input(1).replace_source_output(head.output(0))
    ov.save_model(graph, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    compiled: list[str] = []
    monkeypatch.setattr(compiler, "compile_kernels", lambda name, _: compiled.append(name))
    few_rows.fastest_kernels(read_paged_graph(ov.Core(), tmp_path), "avx512_vnni", 2)
    assert compiled == [expected]
