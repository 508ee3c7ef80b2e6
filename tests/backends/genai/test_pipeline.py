"""What the pipeline is loaded with."""

from __future__ import annotations

import pytest

from fastovms.backends.genai.pipeline import properties_of
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE

PRECISION, KV_PRECISION = "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"
GROUP = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
EXACT = {PRECISION: "f32", KV_PRECISION: "f32", **GROUP}
SMALL, LARGE = EXACT_WEIGHTS_SIZE, EXACT_WEIGHTS_SIZE + 1


@pytest.mark.parametrize(
    ("given", "precision", "device", "weights_size", "expected"),
    [
        ({}, "auto", "CPU", LARGE, {}),
        ({"NUM_STREAMS": 2}, "auto", "CPU", LARGE, {"NUM_STREAMS": 2}),
        ({KV_PRECISION: "u8"}, "auto", "CPU", LARGE, {KV_PRECISION: "u8"}),
        ({KV_PRECISION: "f32"}, "auto", "CPU", LARGE, EXACT),
        ({}, "exact", "CPU", LARGE, EXACT),
        ({}, "auto", "CPU", SMALL, EXACT),
        ({KV_PRECISION: "u8"}, "exact", "CPU", LARGE, {**EXACT, KV_PRECISION: "u8"}),
        ({PRECISION: "bf16"}, "auto", "CPU", SMALL, {PRECISION: "bf16", **GROUP}),
        ({KV_PRECISION: "bf16"}, "auto", "CPU", SMALL, {KV_PRECISION: "bf16"}),
        ({}, "auto", "GPU", SMALL, {}),
        ({}, "exact", "GPU.1", LARGE, {PRECISION: "f32"}),
    ],
)
def test_precisions(given, precision, device, weights_size, expected):
    config = EngineConfig(plugin_config=given, precision=precision)
    assert properties_of(config, device, weights_size=weights_size) == expected
