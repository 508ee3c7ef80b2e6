from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastovms.parts.ray_serve.child_server import queue_lengths, replicas_for_queues

RUNNING = "fastovms_num_requests_running"
WAITING = "fastovms_num_requests_waiting"

METRICS = f"""\
# HELP {RUNNING} Sequences (samples of requests) in the running batch
# TYPE {RUNNING} gauge
{RUNNING}{{model_name="a"}} 3.0
{RUNNING}{{model_name="b"}} 2.0
# TYPE {WAITING} gauge
{WAITING}{{model_name="a"}} 7.0
# TYPE other gauge
other 1.0
"""


def test_queues_are_summed_over_models() -> None:
    assert queue_lengths(METRICS) == {RUNNING: 5.0, WAITING: 7.0}
    assert queue_lengths("") == {RUNNING: 0.0, WAITING: 0.0}


@pytest.mark.parametrize(
    ("metrics", "queued", "replicas"),
    [
        ({RUNNING: {"a": 6.0, "b": 2.0}, WAITING: {"a": 4.0, "b": 0.0}}, 0, 3.0),
        ({RUNNING: {"a": 6.0}}, 2, 2.0),
        ({}, 4, 1.0),
        (None, None, 0.0),
    ],
)
def test_replicas_follow_the_queues(
    metrics: dict[str, dict[str, float]] | None, queued: float | None, replicas: float
) -> None:
    context = SimpleNamespace(
        aggregated_metrics=metrics,
        total_queued_requests=queued,
        config=SimpleNamespace(target_ongoing_requests=4.0),
    )
    assert replicas_for_queues(context) == (replicas, {})
