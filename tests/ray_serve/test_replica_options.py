from __future__ import annotations

import json

import pytest

from fastovms.errors import ConfigurationError
from fastovms.parts.ray_serve.child_server import ReplicaOptions, replica_options


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
def test_threads_of_the_operator_stay(arguments: tuple[str, ...], num_cpus: float) -> None:
    assert ReplicaOptions("", arguments).serve_arguments(num_cpus) == list(arguments)
