from __future__ import annotations

from pathlib import Path

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
