"""Tests of `bench/quality` and `fastovms/parts/tuning/quality.py`."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from gguf import GGMLQuantizationType as Type
from openvino import opset13

from bench.quality.__main__ import TokenByToken
from bench.quality.activations import quantize_activations
from bench.quality.peers import PeerQuality, read_llama
from bench.quality.reader import NUM_GREEDY, check_reader
from bench.random_models.gguf_decoder import GgufModel, write_model
from fastovms.engine.model.compilation import load_model
from fastovms.gguf import graph
from fastovms.gguf.converter import convert
from fastovms.parts.tuning.quality import QualityCounter, chunk_logits, compare

# The figures.


def test_a_way_that_differs_is_counted() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.7, 0.2, 0.1]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.7, 0.2, 0.1]], np.float32)) + np.float32(3)
    counter = QualityCounter()
    counter.add(reference, other, [0, 2])
    found = counter.quality()
    assert (found.num_tokens, found.agreement) == (2, 0.5)
    assert found.mean_difference == pytest.approx(np.log(2) / 2, rel=1e-5)
    assert found.mean_divergence == pytest.approx(0.25 * np.log(2) / 2, rel=1e-5)
    assert found.perplexity_ratio == pytest.approx(np.sqrt(2), rel=1e-5)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_smaller_cache_costs_exactness(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", GgufModel())
    convert(tmp_path / "a.gguf", tmp_path)
    exact = load_model(tmp_path, exact=True)
    ways = {
        name: load_model(tmp_path, properties={"KV_CACHE_PRECISION": name})
        for name in ("f32", "u8")
    }
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 200, length).tolist() for length in (2, 65, 150)]
    found = compare(exact, ways, texts)
    assert {quality.num_tokens for quality in found.values()} == {1 + 64 + 149}
    assert found["f32"].mean_difference < 1e-5
    assert found["f32"].agreement == 1
    assert found["u8"].mean_difference > 10 * found["f32"].mean_difference
    assert found["u8"].mean_divergence > 0


# Activations of 8 bits are rounded as OpenVINO's kernels round them.


def test_activations_are_rounded_in_groups() -> None:
    activations = opset13.parameter([-1, 8], np.float32)
    weights = opset13.convert(opset13.constant(np.eye(8, dtype=np.int8)), "f32")
    product = opset13.matmul(activations, weights, False, True)
    model = ov.Model([product], [activations])
    assert quantize_activations(model.clone(), 3) == 0
    assert quantize_activations(model.clone(), 4, lambda index, num: False) == 0
    assert quantize_activations(model, 4) == 1
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    values = np.array([[127, 0.4, -2.6, 0, 1.27, -0.004, 0.006, 0], [0] * 8], np.float32)
    expected = [[127, 0, -3, 0, 1.27, 0, 0.01, 0], [0] * 8]
    np.testing.assert_allclose(compiled([values])[0], expected, atol=1e-6)


# A graph that contradicts its file is found.

MODEL = GgufModel(types=(Type.Q8_0, Type.Q4_1))
TEXT = [1, *range(40, 90)]


@pytest.mark.slow
def test_a_right_reader_is_right(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", MODEL)
    convert(tmp_path / "a.gguf", tmp_path)
    found = check_reader(tmp_path, tmp_path / "a.gguf", TEXT)
    assert found.is_right
    assert found.num_greedy == NUM_GREEDY


@pytest.mark.nightly(but=("order of rows",))
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["order of rows", "base of rotation"])
def test_a_wrong_reader_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gguf"
    write_model(path, MODEL)
    if fault == "order of rows":
        monkeypatch.setattr(graph._DecoderBuilder, "_row_order", lambda *given: None)
    else:
        unscaled = graph._unscaled

        def wrong(base: float, num_dimensions: int) -> Any:
            return unscaled(2 * base, num_dimensions)

        monkeypatch.setattr(graph, "_unscaled", wrong)
    convert(path, tmp_path)
    assert not check_reader(tmp_path, path, TEXT).is_right


# Other engines.

PRINTED = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  21.123456 ±   1.234567
Mean PPL(base)                :  21.058000 ±   1.230000
Cor(ln(PPL(Q)), ln(PPL(base))):  99.90%
Mean ln(PPL(Q)/PPL(base))     :   0.003100 ±   0.002000
Mean PPL(Q)/PPL(base)         :   1.003105 ±   0.002006
====== KL divergence statistics ======
Mean    KLD:   0.003214 ±   0.000100
Maximum KLD:   0.134000
====== Token probability statistics ======
RMS Δp    :  1.523 ± 0.061 %
Same top p: 97.412 ± 0.330 %
"""


def test_figures_of_llama_are_read() -> None:
    assert read_llama(PRINTED) == PeerQuality(
        None, pytest.approx(0.97412), 0.003214, pytest.approx(1.003105)
    )


def test_token_by_token_gives_the_logits_of_a_chunk(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", GgufModel())
    convert(tmp_path / "a.gguf", tmp_path)
    model = load_model(tmp_path, exact=True)
    decoder = TokenByToken(model)
    token_ids = array("q", np.random.default_rng(0).integers(3, 200, 40).tolist())
    found = []
    for one in (model, decoder):
        one.allocate_cache(8)
        found.append([chunk_logits(one, token_ids, *part) for part in ((0, 25), (25, 40))])
    np.testing.assert_array_equal(np.concatenate(found[0]), np.concatenate(found[1]))
