"""Exports the size and the failures of the state to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.state.store import StateStats

_PREFIX: Final = "fastovms_"


class StateCollector(Collector):
    """Exports the numbers of a store, and of what runs for it.

    Args:
        stats: asked at every scrape.
        num_background: returns how many responses run in the background.
    """

    def __init__(self, stats: Callable[[], StateStats], num_background: Callable[[], int]) -> None:
        self._stats = stats
        self._num_background = num_background

    def collect(self) -> Iterable[Metric]:
        num_objects, num_bytes, num_failures, is_on_disk = self._stats()
        for name, text, value in (
            ("state_objects", "Responses and conversations kept", num_objects),
            ("state_bytes", "Bytes of them", num_bytes),
            ("state_on_disk", "1 = what is kept outlives the process", is_on_disk),
            ("background_responses", "Responses in the background", self._num_background()),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        text = "Operations of the store that failed"
        yield CounterMetricFamily(f"{_PREFIX}state_failures", text, value=num_failures)
