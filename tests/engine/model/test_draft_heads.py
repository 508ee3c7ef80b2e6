"""Tests of `fastovms/parts/drafts/head_graph.py`, against the exported graphs of both models."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.draft_head_graph import DraftHeadGraph
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES
from bench.random_models.weights import Node
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import compile_kernels
from fastovms.engine.model.compilation import ExportedModel, load_model
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.parts.comparison.graph_comparison import PROPERTIES
from fastovms.parts.decode_kernels.few_rows import compile_few_rows
from fastovms.parts.drafts.draft_head import DraftHead
from fastovms.parts.drafts.head_graph import is_draft_head, other_head, read_draft_head
from tests.engine.reference import EXACT

Floats = NDArray[np.float32]

SIZE = 64
NUM_LAYERS = 9
TARGET = replace(SHAPES["tiny"], num_hidden_layers=NUM_LAYERS, vocab_size=600)
TOKEN_IDS = np.arange(0, 600, 2)
TOKENS = np.random.default_rng(0).integers(0, 600, 40)


class RecordingGraph(LlamaGraph):
    """Records the inputs of its layers, and its table of embeddings."""

    def __init__(self) -> None:
        super().__init__(TARGET, TARGET.vocab_size, 0)
        self.layer_inputs: list[Node] = []

    def _norm(self, hidden: Node, name: str) -> Node:
        if name.endswith("input_layernorm"):
            self.layer_inputs.append(hidden)
        return super()._norm(hidden, name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    for name in ("target", "head"):
        (directory / name).mkdir()
    path = "openvino_model.xml"
    head = DraftHeadGraph(replace(TARGET, num_hidden_layers=1), TOKEN_IDS, 1).build()
    ov.save_model(RecordingGraph().build(), directory / "target" / path, compress_to_fp16=False)
    ov.save_model(head, directory / "head" / path, compress_to_fp16=False)
    return directory


def computed(model: ov.Model, **inputs: NDArray[Any]) -> Any:
    """Computes the text of one sequence with an exported graph."""
    num_tokens = inputs["input_ids"].shape[1]
    values = {
        "attention_mask": np.ones((1, num_tokens), np.int64),
        "position_ids": np.arange(num_tokens)[None],
        "beam_idx": np.zeros(1, np.int32),
        **inputs,
    }
    request = ov.Core().compile_model(model, "CPU", PROPERTIES).create_infer_request()
    return request.infer({port: values[port.get_any_name()] for port in request.model_inputs})


def states_of(layers: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Returns the joined inputs of layers for `TOKENS`, and all embeddings."""
    graph = RecordingGraph()
    model = graph.build()
    ids = np.arange(TARGET.vocab_size)
    model = ov.Model(
        [ops.result(graph.layer_inputs[layer]) for layer in (0, *layers)],
        model.get_sinks(),
        model.get_parameters(),
        "states",
    )
    found = computed(model, input_ids=TOKENS[None])
    embeddings = computed(model, input_ids=ids[None])
    return np.concatenate([found[i][0] for i in (1, 2, 3)], -1), embeddings[0][0]


def load(pair: Path, *, exact: bool = False, layers: str = "") -> tuple[PagedModel, DraftHead]:
    core = ov.Core()
    files = ExportedModel(pair / "target", exact=exact, properties=EXACT)
    directory = pair / "head"
    if layers:
        model = core.read_model(directory / "openvino_model.xml")
        model.set_rt_info(layers, ["hidden_layers_list"])
        directory = pair / "named"
        directory.mkdir(exist_ok=True)
        ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    parts = read_draft_head(core, directory, files.graph, 100)
    target = files.compile(files.choices)[1]
    target.allocate_cache(10)
    head = DraftHead(
        load_model(pair / "head", graph=parts.graph, properties=EXACT),
        token_ids=parts.token_ids.tolist(),
        max_model_len=100,
        max_num_batched_tokens=100,
    )
    head.allocate_cache(320)
    return target, head


def projection(pair: Path) -> Floats:
    model = ov.Core().read_model(pair / "head" / "openvino_model.xml")
    (target, *_) = [
        t
        for t in model.input("hidden_states").get_node().output(0).get_target_inputs()
        if t.get_node().get_type_name() == "MatMul"
    ]
    weights = ops.result(target.get_node().input_value(1))
    compiled = ov.Core().compile_model(ov.Model([weights], [], "fc"), "CPU", PROPERTIES)
    matrix: Floats = compiled([])[0]
    return matrix


def steps() -> list[StepInputs]:
    """Returns the steps of two texts with the same tokens: at once, and after 39 tokens one token,
    beside the other text."""
    first, second = StepLayout(32), StepLayout(32)
    tokens = array("q", TOKENS.tolist())
    first.add(tokens, 0, 39, array("i", (0, 1)))
    second.add(tokens, 39, 40, array("i", (0, 1)))
    second.add(tokens, 0, 40, array("i", (2, 3)))
    return [layout.finish(array("q", (0,))) for layout in (first, second)]


@pytest.mark.nightly(but=("named by outputs of layers-True",))
@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("named", "layers"),
    [("", (2, NUM_LAYERS // 2, NUM_LAYERS - 3)), ("[0, 3, 7]", (1, 4, 8))],
    ids=["trained on inputs of layers", "named by outputs of layers"],
)
def test_hidden_states_are_the_projected_ones_of_three_layers(
    pair: Path, exact: bool, named: str, layers: tuple[int, ...]
) -> None:
    target, _ = load(pair, exact=exact, layers=named)
    joined, _ = states_of(layers)
    expected = joined @ projection(pair).T
    found = []
    for inputs in steps():
        target.infer(inputs)
        states = target.hidden_states
        assert states is not None
        found.append(states.copy())
    np.testing.assert_allclose(found[0], expected[:39], atol=2e-4)
    np.testing.assert_allclose(found[1], np.concatenate([expected[39:], expected]), atol=2e-4)


@pytest.mark.slow
def test_the_head_computes_what_the_exported_one_does_with_the_embeddings_of_the_target(
    pair: Path,
) -> None:
    target, head = load(pair)
    joined, embeddings = states_of((2, NUM_LAYERS // 2, NUM_LAYERS - 3))
    plain = ov.Core().read_model(pair / "head" / "openvino_model.xml")
    (gather,) = [
        node
        for node in plain.get_ordered_ops()
        if node.get_type_name() == "Gather"
        and list(node.get_input_partial_shape(0)) == [TARGET.vocab_size, SIZE]
    ]
    gather.input(0).replace_source_output(ops.constant(embeddings).output(0))
    outputs = computed(plain, input_ids=TOKENS[None, 1:], hidden_states=joined[None, :-1])
    expected, table = (outputs[name] for name in ("logits", "d2t"))
    assert (table + np.arange(len(table)) == TOKEN_IDS).all()
    assert [head._target_id(i) for i in range(len(TOKEN_IDS))] == TOKEN_IDS.tolist()

    target.infer(steps()[0])
    assert target.hidden_states is not None
    layout = StepLayout(32)
    layout.add(array("q", TOKENS[1:].tolist()), 0, 39, array("i", (0, 1)))
    inputs = layout.finish(array("q", range(39)))
    found = head._model.infer(inputs._replace(hidden_states=target.hidden_states[:, np.newaxis]))
    np.testing.assert_allclose(found, expected[0], atol=1e-3)
    assert head._model.hidden_states is not None
    assert head._model.hidden_states.shape == (39, SIZE)


@pytest.mark.parametrize(
    ("architectures", "is_head", "other"),
    [
        (["LlamaForCausalLMEagle3"], True, None),
        (["Eagle3LlamaForCausalLM"], True, None),
        (["EagleLlamaForCausalLM"], False, "eaglellamaforcausallm"),
        (["LlamaForCausalLM"], False, None),
        ("LlamaForCausalLMEagle3", False, None),
        ([3], False, None),
        (None, False, None),
    ],
)
def test_a_head_is_known_by_its_architecture(
    architectures: object, is_head: bool, other: str | None
) -> None:
    config = {"architectures": architectures}
    assert is_draft_head(config) is is_head
    assert is_head or other_head(config) == other


@pytest.mark.nightly(but=("operations",))
@pytest.mark.slow
@pytest.mark.parametrize("way", ["whole", "operations"])
def test_decode_kernels_return_hidden_states_too(pair: Path, way: str) -> None:
    files = ExportedModel(
        pair / "target",
        properties={"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"},
    )
    read_draft_head(ov.Core(), pair / "head", files.graph, 100)
    plain = files.compile(files.choices)[1]
    variants = compile_few_rows(plain, WeightStore(compile_kernels("avx2", 2)))
    assert variants is not None
    makers = getattr(variants, way)
    assert makers
    ours = plain.twin()
    ours.use_for_few_rows({number: [make] for number, make in makers.items()})
    for model in (plain, ours):
        model.allocate_cache(10)
    tokens = array("q", TOKENS.tolist())
    for sampled in ([4], [0, 1, 2, 3, 4], [2, 3]):
        layout = StepLayout(32)
        layout.add(tokens, 0, 2, array("i", (0, 1)))
        layout.add(tokens, 0, 3, array("i", (2, 3)))
        inputs = layout.finish(array("q", sampled))
        found = []
        for model in (plain, ours):
            logits = model.infer(inputs).copy()
            assert model.hidden_states is not None
            found.append((logits, model.hidden_states.copy()))
        for expected, result in zip(*found, strict=True):
            assert expected.shape == result.shape
            np.testing.assert_allclose(result, expected, rtol=0, atol=0.02 * expected.std())
