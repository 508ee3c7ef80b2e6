from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import DEMO_MODEL, ModelConfig
from fastovms.doctor.model_facts import read_model
from fastovms.errors import ConfigurationError
from fastovms.system.disk_cache import DiskCache

NOTHING_KEPT = DiskCache(None)


def demo(**engine: object) -> ModelConfig:
    return ModelConfig(DEMO_MODEL, ("demo",), EngineConfig(**engine))  # type: ignore[arg-type]


def test_the_demo_model() -> None:
    facts = read_model(demo(), DEMO_MODEL, NOTHING_KEPT, runs=True)
    assert (facts.name, facts.device, facts.backend) == ("demo", "CPU", "paged")
    assert facts.max_model_len == 2048
    size = (DEMO_MODEL / "openvino_model.bin").stat().st_size
    assert facts.traffic.total == pytest.approx(size, rel=0.05)
    run = facts.run
    assert run is not None
    assert run.way.startswith("f32")
    assert "so small" in run.way_reason
    assert run.token_budget == 256
    assert run.kv_bytes_per_token > 0
    assert run.seconds_per_token is not None
    assert 0 < run.seconds_per_token < 1


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"precision": "exact"}, "--precision exact"),
        ({"plugin_config": {"KV_CACHE_PRECISION": "u8"}}, "so small"),
    ],
)
def test_why_it_is_run_so(engine: dict[str, object], reason: str) -> None:
    model = demo(max_num_batched_tokens=64, **engine)
    run = read_model(model, DEMO_MODEL, NOTHING_KEPT, runs=False).run
    assert run is not None
    assert reason in run.way_reason
    assert run.token_budget == 64
    assert run.seconds_per_token is None


def test_the_genai_backend_is_not_looked_into() -> None:
    facts = read_model(demo(backend="genai"), DEMO_MODEL, NOTHING_KEPT, runs=True)
    assert (facts.backend, facts.backend_reason, facts.run) == ("genai", "as --backend says", None)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="openvino_model"):
        read_model(replace(demo(), path=tmp_path), tmp_path, NOTHING_KEPT, runs=False)
