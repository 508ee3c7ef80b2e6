"""Exports where the models are, and how often they come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.api.serving.model_pool import ModelPool
from fastovms.api.serving.residency import ModelState
from fastovms.api.serving.served import ServedModels

_PREFIX: Final = "fastovms_"


class ModelCollector(Collector):
    """Exports the state of each model, by its name."""

    def __init__(self, models: ServedModels, pool: ModelPool) -> None:
        self._models = models
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily(
            f"{_PREFIX}model_state",
            "1 for the state in which a model is, 0 for the others",
            labels=["model_name", "state"],
        )
        for model in self._models.known:
            for state in ModelState:
                states.add_metric([model.name, state.value], float(model.state is state))
        yield states
        pool = self._pool
        waiting = GaugeMetricFamily(
            f"{_PREFIX}num_requests_waiting_for_model",
            "Requests that wait for their model to be loaded",
            labels=["model_name"],
        )
        numbers = pool.num_waiting()
        for model in self._models.known:
            waiting.add_metric([model.name], numbers.get(model.name, 0))
        yield waiting
        yield self._count("model_loads", "Loads of a model that was asked for", pool.num_loads)
        yield self._count("model_load_failures", "Loads that failed", pool.num_failures)
        yield self._count("model_unloads", "Models unloaded", pool.num_unloads)

    def _count(self, name: str, text: str, numbers: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=["model_name"])
        for model in self._models.known:
            family.add_metric([model.name], numbers.get(model.name, 0))
        return family
