"""Each model is in one state."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from fastovms.api.serving.model_metrics import ModelCollector
from fastovms.api.serving.residency import ModelState
from fastovms.telemetry.metrics import render
from tests.api.serving.test_model_pool import Pool, plan


async def test_states() -> None:
    pool = Pool(plan("a"), plan("b"), max_loaded_models=1)
    registry = CollectorRegistry()
    registry.register(ModelCollector(pool.models, pool))
    await pool.use("a")
    lines = render(registry, "")[0].decode().splitlines()
    of_models = {
        name: [line for line in lines if f'{{model_name="{name}",state=' in line] for name in "ab"
    }
    for name, state in (("a", "available"), ("b", "unloaded")):
        assert len(of_models[name]) == len(ModelState)
        [there] = [line for line in of_models[name] if line.endswith(" 1.0")]
        assert f'state="{state}"' in there
    assert 'fastovms_num_requests_waiting_for_model{model_name="b"} 0.0' in lines
    assert 'fastovms_model_loads_total{model_name="a"} 1.0' in lines
    await pool.close()
