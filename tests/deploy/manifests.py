"""Renders the overlays for Kubernetes and validates resources against schemas."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
KUBERNETES_VERSION = "1.32"
"""The oldest supported version of Kubernetes."""

Resource = dict[str, Any]


def overlay(name: str) -> list[Resource]:
    """Returns the resources of an overlay as kubectl would apply them."""
    return list(yaml.safe_load_all(_rendered(name)))


@cache
def _rendered(name: str) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is missing: install it from https://kubernetes.io/docs/tasks/tools/")
    directory = KUBERNETES / "overlays" / name
    return subprocess.run(
        [kubectl, "kustomize", directory], check=True, capture_output=True, text=True
    ).stdout


def of_kind(resources: list[Resource], *kinds: str) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] in kinds]


def pods(resources: list[Resource]) -> Iterator[tuple[Resource, Resource]]:
    """Yields the metadata and the specification of each pod template, including KServe's runtime,
    which lacks the settings of a whole pod."""
    for deployment in of_kind(resources, "Deployment"):
        template = deployment["spec"]["template"]
        yield template["metadata"], template["spec"]
    for runtime in of_kind(resources, "ClusterServingRuntime"):
        yield {}, runtime["spec"]


def our_containers(resources: list[Resource]) -> Iterator[tuple[Resource, Resource]]:
    """Yields each container that runs our image, with the specification of its pod."""
    for _, pod in pods(resources):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            if container["image"].partition(":")[0] == "fastovms":
                yield container, pod


def check_schema(resource: Resource) -> None:
    """Validates resources.

    Raises:
        jsonschema.ValidationError: a custom resource is invalid.
        kubernetes_validate.ValidationError: another resource is invalid.
        kubernetes_validate.SchemaNotFoundError: its kind has no schema.
    """
    group, _, version = resource["apiVersion"].rpartition("/")
    file = KUBERNETES / "schemas" / f"{resource['kind'].lower()}.{group}_{version}.json"
    if file.exists():
        jsonschema.validate(resource, _closed(json.loads(file.read_text())))
    else:
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)


def _closed(schema: Any) -> Any:
    """Forbids fields that a schema does not name: an API server would drop them, so that a misspelt
    field would have no effect."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items() if name != "properties"}
    if "properties" in schema:
        closed["properties"] = {key: _closed(it) for key, it in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    return closed
