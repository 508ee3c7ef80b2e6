"""Tests of the manifests for Kubernetes: valid by their schemas, consistent with each other and
with the server."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from fastovms.api.admin import HEALTH_PATHS
from fastovms.backend_stats import BackendStats
from fastovms.cli.environment import IGNORED, VARIABLES, read_environment
from fastovms.cli.flags import read_flags
from fastovms.cli.main import parse
from fastovms.config import HttpConfig
from fastovms.server_config import (
    RepositoryConfig,
    SecurityConfig,
    ServiceConfig,
    Settings,
    StateConfig,
)
from fastovms.telemetry.metrics import GenerationCollector, GenerationMetrics
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    Resource,
    check_schema,
    of_kind,
    our_containers,
    overlay,
    pods,
)

ENGINE_STOP = 5.0
"""The seconds that the end of the engine may take in addition to all flags."""

DEFAULT_GRACE = 30
"""Kubernetes' own default of terminationGracePeriodSeconds."""

OTHERS_VARIABLES = {"HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_TOKEN", "HF_HUB_OFFLINE"}
"""Environment variables that other programs read: XDG's, and those of huggingface_hub."""

SECRETS = "/run/secrets/fastovms"

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def environment(container: Resource, resources: list[Resource]) -> dict[str, str]:
    """Returns the variables of a container that are not secrets."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        name = source["configMapRef"]["name"]
        [config] = [it for it in of_kind(resources, "ConfigMap") if it["metadata"]["name"] == name]
        found.update(config["data"])
    found.update({it["name"]: it["value"] for it in container.get("env", ()) if "value" in it})
    return found


def settings(container: Resource, resources: list[Resource]) -> Settings:
    """Returns the settings of a container's command line and environment. A wrong one ends the
    test."""
    variables = environment(container, resources)
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], argument)
        for argument in container["args"]
    ]
    return read_environment(variables).settings | read_flags(parse(arguments))


def servers(resources: list[Resource]) -> Iterator[tuple[Resource, Resource, Settings]]:
    """Yields each container that serves, its pod and its settings."""
    for container, pod in our_containers(resources):
        if container["args"][0] != "pull":
            yield container, pod, settings(container, resources)


def test_every_overlay_is_found() -> None:
    assert {"demo", "replicas", "inference-pool", "kserve"} < set(OVERLAYS)


@every_overlay
def test_every_resource_is_valid(name: str) -> None:
    for resource in overlay(name):
        check_schema(resource)


@pytest.mark.parametrize(
    ("name", "kind", "path"),
    [
        ("demo", "Deployment", ("spec", "template", "spec", "containers", 0)),
        ("autoscaled-keda", "ScaledObject", ("spec",)),
        ("inference-pool", "InferencePool", ("spec", "endpointPickerRef")),
        ("kserve", "ClusterServingRuntime", ("spec", "containers", 0)),
    ],
)
def test_a_field_that_is_not_there_is_found(name: str, kind: str, path: tuple[str | int]) -> None:
    resource = copy.deepcopy(of_kind(overlay(name), kind)[0])
    place: Any = resource
    for key in path:
        place = place[key]
    place["misspelt"] = 1
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check_schema(resource)


@every_overlay
def test_the_server_understands_its_command_line_and_environment(name: str) -> None:
    known = set(VARIABLES) - set(IGNORED) | OTHERS_VARIABLES
    resources = overlay(name)
    for container, _ in our_containers(resources):
        settings(container, resources)
        named = {it["name"] for it in container.get("env", ())}
        assert set(environment(container, resources)) | named <= known


@every_overlay
def test_probes_ask_what_the_server_answers_to_anybody(name: str) -> None:
    for container, _, given in servers(overlay(name)):
        port = given.section(HttpConfig).port
        assert given.section(HttpConfig).host == "0.0.0.0"
        ports = {it["name"]: it["containerPort"] for it in container["ports"]}
        assert list(ports.values()) == [port]
        paths = {}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert ports.get(asked["port"], asked["port"]) == port
            paths[probe] = asked["path"]
        assert set(paths.values()) <= set(HEALTH_PATHS)
        assert (paths["readinessProbe"], paths["livenessProbe"]) == ("/ready", "/v2/health/live")


@every_overlay
def test_a_pod_is_not_killed_before_the_server_has_drained(name: str) -> None:
    for _, pod, given in servers(overlay(name)):
        http = given.section(HttpConfig)
        patience = http.drain_timeout + http.drain_grace + http.close_timeout + ENGINE_STOP
        delay = given.section(ServiceConfig).drain_delay
        assert delay > 0, "balancers need time to notice"
        assert patience + delay <= pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE)


@every_overlay
def test_pods_are_within_the_restricted_security_standard(name: str) -> None:
    for _, pod in pods(overlay(name)):
        whole = pod.get("securityContext", {})
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert (whole | own)["runAsNonRoot"] is True
            assert (whole | own)["runAsUser"] > 0
            assert (whole | own)["seccompProfile"] == {"type": "RuntimeDefault"}


@every_overlay
def test_written_directories_are_writable_volumes(name: str) -> None:
    resources = overlay(name)
    for container, pod, given in servers(resources):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        writable = {
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if "emptyDir" in volumes[mount["name"]] and not mount.get("readOnly")
        }
        variables = environment(container, resources)
        assert {variables["XDG_CACHE_HOME"], variables["XDG_STATE_HOME"], "/tmp"} == writable
        models = given.section(RepositoryConfig).path
        if models is not None:
            [pull] = pod["initContainers"]
            pulled = settings(pull, resources).section(RepositoryConfig).path
            assert pulled == models
            assert str(models) in {mount["mountPath"] for mount in pull["volumeMounts"]}


@every_overlay
def test_limits_are_whole_processors_and_equal_requests(name: str) -> None:
    for container, _, _ in servers(overlay(name)):
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["limits"]["cpu"].isdigit()


@every_overlay
def test_selectors_find_the_pods(name: str) -> None:
    resources = overlay(name)
    labels = [metadata["labels"] for metadata, _ in pods(resources) if metadata]
    for resource in of_kind(
        resources,
        "Deployment", "Service", "PodDisruptionBudget", "PodMonitor", "InferencePool",
    ):  # fmt: skip
        selector = resource["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert [it for it in labels if wanted.items() <= it.items()] != []


@every_overlay
def test_ports_of_services_are_those_of_containers(name: str) -> None:
    resources = overlay(name)
    found = {
        (metadata["labels"]["app.kubernetes.io/name"], port["name"]): port["containerPort"]
        for metadata, pod in pods(resources)
        if metadata
        for container in pod["containers"]
        for port in container["ports"]
    }
    for service in of_kind(resources, "Service"):
        app = service["spec"]["selector"]["app.kubernetes.io/name"]
        for port in service["spec"]["ports"]:
            assert (app, port["targetPort"]) in found
    for monitor in of_kind(resources, "PodMonitor"):
        assert ("fastovms", monitor["spec"]["podMetricsEndpoints"][0]["port"]) in found
    for pool in of_kind(resources, "InferencePool"):
        targets = [target["number"] for target in pool["spec"]["targetPorts"]]
        assert targets == [found["fastovms", "http"]]
        picker = pool["spec"]["endpointPickerRef"]
        assert found[picker["name"], "grpc"] == picker["port"]["number"]


def exported() -> Mapping[str, set[str]]:
    """The series that a server exports, with their labels."""
    registry = CollectorRegistry()
    registry.register(GenerationCollector(lambda: [GenerationMetrics("m", BackendStats)]))
    return {
        sample.name: set(sample.labels)
        for family in registry.collect()
        for sample in family.samples
    }


def test_metrics_that_others_read_are_exported() -> None:
    names = {
        name
        for path in KUBERNETES.rglob("*.yaml")
        for name in re.findall(r"\bfastovms_\w+", path.read_text())
    }
    assert {"fastovms_num_requests_waiting", "fastovms_kv_cache_usage_perc"} < names
    assert names <= set(exported())


def test_the_router_reads_the_size_of_the_cache() -> None:
    [config] = [
        yaml.safe_load(it["data"]["router-plugins.yaml"])
        for it in of_kind(overlay("inference-pool"), "ConfigMap")
        if "router-plugins.yaml" in it["data"]
    ]
    [extractor] = [it for it in config["plugins"] if it["type"] == "core-metrics-extractor"]
    [engine] = extractor["parameters"]["engineConfigs"]
    labels = exported()[engine["cacheInfoSpec"]]
    assert {engine["cacheBlockSizeLabelName"], engine["cacheNumBlocksLabelName"]} <= labels
    [replica] = [
        metadata
        for metadata, pod in pods(overlay("inference-pool"))
        if pod["containers"][0]["name"] == "fastovms"
    ]
    assert replica["labels"]["llm-d.ai/engine-type"] == engine["name"]
    assert extractor["parameters"]["defaultEngine"] == engine["name"]
    types = {it["type"] for it in config["plugins"]}
    for profile in config["schedulingProfiles"]:
        assert {it["pluginRef"] for it in profile["plugins"]} <= types


def test_autoscaled_deployments_have_no_replica_count() -> None:
    for name in OVERLAYS:
        resources = overlay(name)
        scaled = {
            it["spec"]["scaleTargetRef"]["name"]
            for it in of_kind(resources, "HorizontalPodAutoscaler", "ScaledObject")
        }
        counted = {
            it["metadata"]["name"]
            for it in of_kind(resources, "Deployment")
            if "replicas" in it["spec"]
        }
        assert not scaled & counted
        assert "fastovms" in scaled | counted or name == "kserve"


@every_overlay
def test_secrets_have_the_keys_that_are_asked_for(name: str) -> None:
    example = yaml.safe_load((KUBERNETES / "secret.example.yaml").read_text())
    check_schema(example)
    given = set(example["stringData"])
    resources = overlay(name)
    for _, pod, set_ in servers(resources):
        for volume in pod["volumes"]:
            if "secret" in volume and volume["name"] == "secrets":
                assert volume["secret"]["secretName"] == example["metadata"]["name"]
        for file in (
            set_.section(SecurityConfig).api_key_file,
            set_.section(StateConfig).password_file,
        ):
            if file is not None:
                assert str(file.parent) == SECRETS
                assert file.name in given
    for monitor in of_kind(resources, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            credentials = endpoint["authorization"]["credentials"]
            assert credentials["name"] == example["metadata"]["name"]
            assert credentials["key"] in given
            keys = example["stringData"]["api-keys"].split()
            assert example["stringData"][credentials["key"]] in keys


def test_replicas_share_one_state() -> None:
    for name in ("replicas", "autoscaled-hpa", "autoscaled-keda"):
        resources = overlay(name)
        [(_, _, given)] = servers(resources)
        state = given.section(StateConfig)
        assert state.state_url is not None
        assert state.password_file is not None
