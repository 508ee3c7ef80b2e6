"""Tests of `fastovms/parts/ray_serve/child_server.py`."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from types import SimpleNamespace

import pytest

from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.parts.ray_serve.child_server import (
    ChildServer,
    ReplicaOptions,
    queue_lengths,
    replica_options,
    replicas_for_queues,
)


def test_options_are_read() -> None:
    args = {"model": "m", "arguments": ["--cache-size", "1"], "environment": {"A": "b"}}
    assert replica_options(args) == ReplicaOptions("m", ("--cache-size", "1"), {"A": "b"})
    assert replica_options({}) == ReplicaOptions()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"modle": "m"}, "unknown field `modle`"),
        ({"model": 1}, r"Expected `str`, got `int` - at `\$.model`"),
        ({"arguments": "--cache-size 1"}, r"at `\$.arguments`"),
        ({"arguments": ["--port", "8000"]}, "`arguments` has --port"),
        ({"arguments": ["--listen=unix:/x"]}, "`arguments` has --listen"),
        ({"environment": {"A": 1}}, r"at `\$.environment"),
    ],
)
def test_wrong_options_are_named(args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replica_options(args)


@pytest.mark.parametrize(("num_cpus", "num_threads"), [(4, 4), (2.5, 2), (0.5, 1)])
def test_threads_are_as_many_as_processors(num_cpus: float, num_threads: int) -> None:
    *arguments, config = ReplicaOptions("m", ("--tune",)).serve_arguments(num_cpus)
    assert arguments == ["m", "--tune", "--plugin-config"]
    assert json.loads(config) == {
        "INFERENCE_NUM_THREADS": num_threads,
        "ENABLE_CPU_PINNING": False,
    }


@pytest.mark.parametrize(
    ("arguments", "num_cpus"),
    [((), 0.0), (("--plugin-config", "{}"), 4.0), (("--plugin_config={}",), 4.0)],
)
def test_plugin_config_of_the_operator_is_not_replaced(
    arguments: tuple[str, ...], num_cpus: float
) -> None:
    assert ReplicaOptions("", arguments).serve_arguments(num_cpus) == list(arguments)


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


SMALL = ("--cache-size", "0.01", "--no-enable-store")


def is_healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        return answer.status == 200


@pytest.mark.slow
async def test_a_server_starts_and_stops() -> None:
    server = await ChildServer.start(SMALL, {"MAX_NUM_SEQS": "3"})
    assert await asyncio.to_thread(is_healthy, server.url)
    await server.stop()
    assert await server.wait() == "has ended with code 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--no-such-flag"], {}), ([], {"MAX_NUM_SEQS": "many"})]
)
async def test_a_server_that_cannot_start_is_an_error(
    arguments: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(BackendUnavailable, match="the server has ended with code 2 before it was"):
        await ChildServer.start(arguments, environment)
