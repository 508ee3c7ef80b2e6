"""Tests of `fastovms/parts/ray_serve/application.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("ray_serve")

YAML = Path(__file__).parents[2] / "deploy" / "ray" / "serve.yaml"


def test_the_yaml_is_one_that_serve_run_takes() -> None:
    import yaml
    from ray._common.utils import import_attr
    from ray.serve.schema import ServeDeploySchema

    from fastovms.parts.ray_serve.application import NAME, build

    config = ServeDeploySchema.model_validate(yaml.safe_load(YAML.read_text()))
    [application] = config.applications
    assert import_attr(application.import_path) is build
    build(application.args)
    [deployment] = application.deployments
    assert deployment.name == NAME


def test_the_server_refuses_before_ray_queues() -> None:
    from fastovms.parts.ray_serve.application import build

    deployment = build({})._bound_deployment
    engine = EngineConfig()
    assert deployment.max_ongoing_requests > engine.max_num_seqs + engine.max_num_queued_requests


def test_wrong_args_are_refused_before_anything_starts() -> None:
    from fastovms.parts.ray_serve.application import build

    with pytest.raises(ConfigurationError, match="unknown field `modle`"):
        build({"modle": "x"})


NAMES = ("a", "b", "c", "d")


class Cluster:
    """A router with replicas that are told apart by their names."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        from ray.serve._private.common import DeploymentHandleSource
        from ray.serve.config import DeploymentID, ReplicaID

        from fastovms.parts.ray_serve.application import AffinityRouter

        deployment = DeploymentID(name="fastovms")
        self.router = AffinityRouter(deployment, DeploymentHandleSource.UNKNOWN)
        self.router.update_replicas(
            [
                SimpleNamespace(replica_id=ReplicaID(name, deployment), max_ongoing_requests=9)
                for name in names
            ]
        )

    async def choose(self, session_id: str) -> list[list[str]]:
        metadata = SimpleNamespace(session_id=session_id, internal_request_id="1")
        request: Any = SimpleNamespace(metadata=metadata, routing_context=SimpleNamespace())
        groups = await self.router.choose_replicas(self.router._replicas_list, request)
        return [[replica.replica_id.unique_id for replica in group] for group in groups]


async def test_a_session_has_one_replica_and_others_for_when_it_is_full() -> None:
    chosen = [await Cluster().choose("one session") for _ in range(3)]
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(chosen[0]) == 3
    assert len({name for [name] in chosen[0]}) == 3


async def test_few_sessions_move_when_a_replica_goes() -> None:
    before, after = Cluster(), Cluster(NAMES[:3])
    moved = Counter[bool]()
    for number in range(200):
        [[first], *_] = await before.choose(f"session {number}")
        [[then], *_] = await after.choose(f"session {number}")
        moved[first != then and first != "d"] += 1
    assert moved[True] == 0


async def test_a_request_of_no_session_goes_to_the_less_busy_of_two() -> None:
    cluster = Cluster()
    seen = set[str]()
    for _ in range(100):
        [pair] = await cluster.choose("")
        assert len(set(pair)) == 2
        seen.update(pair)
    assert seen == set(NAMES)


async def test_the_only_replica_is_chosen() -> None:
    assert await Cluster(("a",)).choose("") == [["a"]]
    assert await Cluster(("a",)).choose("one session") == [["a"]]
