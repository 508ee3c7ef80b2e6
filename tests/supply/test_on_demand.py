"""What is known of models before they are loaded, and what of a list can be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import DEMO_MODEL, ModelConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.settings import ModelSource
from fastovms.engine.model.machine.device_memory import GIB
from fastovms.errors import ConfigurationError
from fastovms.supply.on_demand import find_each, plan_models, weights_size
from tests.encoder_models import encoder_dir

DEMO = ModelConfig(DEMO_MODEL, ("a", "b"), EngineConfig(cache_size=0.5))
WEIGHTS = sum(path.stat().st_size for path in DEMO_MODEL.glob("*.bin"))


def find(source: ModelSource) -> ModelConfig:
    return ModelConfig(Path(source.location), source.names)


def test_what_is_known_before_a_model_is_loaded(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"x" * 7)
    demo, other = plan_models([DEMO, ModelConfig(gguf, ("g",))], ResidencyConfig())
    assert demo.known.names == ("a", "b")
    assert demo.known.max_model_len is not None
    assert demo.known.capabilities is None
    assert demo.size == WEIGHTS + GIB // 2
    assert (demo.file_size, other.file_size) == (WEIGHTS, 7)
    assert (other.known.max_model_len, other.size) == (None, 7)
    assert weights_size(ModelConfig(gguf, ("g",), EngineConfig(draft_model=DEMO_MODEL))) == (
        WEIGHTS + 7
    )


def test_what_a_model_is_for_that_encodes_texts_is_known_before() -> None:
    configs = [ModelConfig(encoder_dir(), ("e",)), ModelConfig(encoder_dir(1), ("r",))]
    plans = plan_models(configs, ResidencyConfig(max_loaded_models=1))
    assert [plan.known.capabilities for plan in plans] == [("embedding",), ("rerank",)]
    with pytest.raises(ConfigurationError, match=r"e takes about 0\.0 GB: --model-memory"):
        plan_models(configs, ResidencyConfig(model_memory=1))


def test_caches_of_automatic_size_share_the_memory() -> None:
    automatic = ModelConfig(DEMO_MODEL, ("c",))
    [plan] = plan_models([automatic], ResidencyConfig(model_memory=GIB, max_loaded_models=2))
    assert plan.size == WEIGHTS + (GIB - WEIGHTS) // 2 // 2
    with pytest.raises(ConfigurationError, match=r"a takes about 0\.5 GB with its KV"):
        plan_models([DEMO], ResidencyConfig(model_memory=GIB // 2))


def test_a_model_at_fault_leaves_the_rest() -> None:
    sources = [
        ModelSource(str(DEMO_MODEL), ("good",)),
        ModelSource("/nowhere", ("a",)),
        ModelSource("/nowhere", ("new",)),
    ]
    found = find_each(sources, find, [DEMO], ResidencyConfig())
    assert [config.name for config in found.configs] == ["good", "a"]
    assert found.configs[1] is DEMO  # which is served, and goes on to be
    assert [fault.partition(":")[0] for fault in found.faults] == ["a", "new"]
    with pytest.raises(ConfigurationError, match="several models have the name good"):
        find_each([sources[0]] * 2, find, [], ResidencyConfig())


def test_a_model_that_is_too_large_leaves_the_rest() -> None:
    sources = [ModelSource("small", ("a",)), ModelSource("large", ("b",))]
    small, large = (
        ModelConfig(DEMO_MODEL, (name,), EngineConfig(cache_size=size))
        for name, size in (("a", 0.1), ("b", 2.0))
    )
    models = {"small": small, "large": large}
    residency = ResidencyConfig(model_memory=GIB)
    found = find_each(sources, lambda source: models[source.location], [], residency)
    assert found.configs == [small]
    assert found.faults == [
        "b: b takes about 2.0 GB with its KV cache: --model-memory must be more than that, not "
        "1.0 GB"
    ]
    assert [plan.known.name for plan in plan_models(found.configs, residency)] == ["a"]
