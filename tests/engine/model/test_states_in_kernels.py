"""Tests that hybrid models on the kernels leave the same states as OpenVINO does."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.config import EngineConfig
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.instructions import Field, Opcode
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.parts.decode_kernels import check
from fastovms.parts.decode_kernels.step_program import StepProgramRunner
from tests.engine.engines import full_engine, greedy, texts
from tests.engine.model.test_few_rows import TEXT, with_kernels
from tests.engine.model.test_mixtures import change_programs, variants_of

NUM_BLOCKS = 12

EXPORTED = Path(__file__).parents[2] / "models" / "kernels"
"""What `bench/architectures/export.py` makes with 512 tokens, with weights in int8: a Qwen 3 Next
of three layers of the gated delta rule and one of attention, with mixtures and a gated shared
expert; and a Granite 4 hybrid of two layers of Mamba 2 and one of attention."""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return compile_kernels("avx2", 2)


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next", "granite_hybrid"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    directory = EXPORTED / request.param
    if request.param == "lfm2":
        directory = tmp_path_factory.mktemp("model")
        write_model(SHAPES["tiny-lfm2"], directory)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}
    return load_model(directory, properties=properties)


@pytest.fixture(scope="module")
def ours(model: PagedModel, kernels: Kernels) -> PagedModel:
    return with_kernels(model, variants_of(model, kernels).whole)


def states_of(model: PagedModel, block: int) -> NDArray[np.float32]:
    """Returns the state after the last token of a block."""
    rows = zip(model.block_rows(block), model.cache_inputs, strict=True)
    return np.concatenate([row.view(np.float32) for row, one in rows if one.is_state])


def test_states_after_chunks_drafts_and_full_blocks_are_openvinos(
    model: PagedModel, ours: PagedModel
) -> None:
    found = []
    for one in (model.twin(), ours):
        one.allocate_cache(NUM_BLOCKS)
        size = one.block_size
        tables = [array("i", (0, 1, 2)), array("i", (3, 4, 5))]
        # The second and third step fill blocks, and so does the last one, by drafts.
        begins = (0, 0)
        for ends in ((size - 3, size), (size + 4, size + 9), (2 * size - 3, 2 * size + 2)):
            layout = StepLayout(size)
            for table, begin, end in zip(tables, begins, ends, strict=True):
                layout.add(TEXT, begin, end, table)
            one.infer(layout.finish(array("q", (0,))))
            begins = ends
        layout = StepLayout(size)
        layout.add(TEXT[: 2 * size - 2], 2 * size - 3, 2 * size + 4, tables[0], TEXT[:6])
        one.infer(layout.finish(array("q", range(7))))
        one.accept_drafts(tables[0], 2 * size - 2, 2 * size + 2)
        found.append([states_of(one, block) for block in range(6)])
    for own, expected in zip(*found, strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=0.01 * expected.std())


def test_texts_with_drafts_and_cached_prefixes_are_openvinos(
    model: PagedModel, ours: PagedModel
) -> None:
    end = model.block_size + 138
    prompts = [TEXT[:end], TEXT[: end - 4] + TEXT[:9], array("q", [*TEXT[:9]] * 5)]
    found = []
    for one in (model.twin(), ours):
        one.allocate_cache(64)
        engine = full_engine(one, EngineConfig(), num_blocks=64, max_model_len=512)
        for turn in range(2):
            asked = [
                greedy(f"{turn}.{number}", prompt, max_tokens=24, ignore_eos=True)
                for number, prompt in enumerate(prompts)
            ]
            found.append(list(texts(engine, *asked).values()))
        assert engine.counters.num_prefix_cache_hits
    assert found[2:] == found[:2]


def test_exact_kernels_are_right(model: PagedModel, kernels: Kernels) -> None:
    variants = variants_of(model, kernels)
    cut = check.compile_cut(model.graph, model.device, model.precisions)
    assert check.why_wrong(cut, variants.store) is None
    assert not check.differs(model, variants)


def with_weights_of_other_columns(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.CONVOLVE, Field.P2] += 4


def with_one_state_for_all_layers(program: Any) -> None:
    for opcode in (Opcode.CONVOLVE, Opcode.GATED_DELTA, Opcode.SELECTIVE_SCAN):
        is_one = program[:, Field.OPCODE] == opcode
        if is_one.any():
            program[is_one, Field.P0] = program[is_one, Field.P0].max()


def test_weights_of_other_columns_are_refused(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_programs(monkeypatch, with_weights_of_other_columns)
    refused(model, kernels)


def with_decays_of_other_heads(program: Any) -> None:
    program[program[:, Field.OPCODE] == Opcode.SELECTIVE_SCAN, Field.P6] += 4


def with_skips_of_other_heads(program: Any) -> None:
    opcodes = program[:, Field.OPCODE]
    width = program[opcodes == Opcode.SELECTIVE_SCAN, Field.WIDTH][0]
    is_one = (opcodes == Opcode.MULTIPLY_CONSTANT) & (program[:, Field.WIDTH] == width)
    skips, _norms = np.flatnonzero(is_one).reshape(-1, 2).T
    program[skips, Field.P0] += 4 * 8


@pytest.mark.parametrize("model", ["granite_hybrid"], indirect=True)
@pytest.mark.parametrize("fault", [with_decays_of_other_heads, with_skips_of_other_heads])
def test_decays_and_skips_of_other_heads_are_refused(
    model: PagedModel,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Any], None],
) -> None:
    change_programs(monkeypatch, fault)
    refused(model, kernels)


def test_states_of_other_layers_differ(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_programs(monkeypatch, with_one_state_for_all_layers)
    assert check.differs(model, variants_of(model, kernels))


def test_states_of_other_texts_are_refused(
    model: PagedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer = StepProgramRunner.infer

    def with_first_row(runner: StepProgramRunner, inputs: StepInputs) -> Any:
        rows = np.full_like(inputs.state_rows, inputs.state_rows[0])
        return infer(runner, inputs._replace(state_rows=rows))

    monkeypatch.setattr(StepProgramRunner, "infer", with_first_row)
    refused(model, kernels)


def refused(model: PagedModel, kernels: Kernels) -> None:
    cut = check.compile_cut(model.graph, model.device, model.precisions)
    wrong = check.why_wrong(cut, variants_of(model, kernels).store)
    assert wrong is not None
    assert "logits differ from f32" in wrong
