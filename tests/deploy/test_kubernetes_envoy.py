"""Tests of Envoy on Kubernetes: consistent with its static configuration, and the real Envoy ends
without cutting a stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.envoy.render import render
from tests.deploy.client import DEADLINE, ask, connected
from tests.deploy.envoy.process import needs_envoy, running_envoy
from tests.deploy.manifests import KUBERNETES, Resource, of_kind, overlay
from tests.deploy.replica import replicas

DRAIN = KUBERNETES / "components/envoy/drain.sh"


def named(kind: str, name: str) -> Resource:
    found = of_kind(overlay("replicas"), kind)
    [resource] = [it for it in found if it["metadata"]["name"] == name]
    return resource


def pod() -> Resource:
    specification: Resource = named("Deployment", "fastovms-envoy")["spec"]["template"]["spec"]
    return specification


def configuration(file: str) -> Any:
    [config] = [it for it in of_kind(overlay("replicas"), "ConfigMap") if file in it["data"]]
    return yaml.safe_load(config["data"][file])


def address(value: Any) -> tuple[str, int]:
    socket = value["address"]["socket_address"]
    return socket["address"], socket["port_value"]


def test_envoy_asks_the_headless_service() -> None:
    clusters = configuration("dns.yaml")["static_resources"]["clusters"]
    asked = {
        address(endpoint["endpoint"])
        for cluster in clusters
        if cluster["name"].startswith("replicas")
        for locality in cluster["load_assignment"]["endpoints"]
        for endpoint in locality["lb_endpoints"]
    }
    service = named("Service", "fastovms-replicas")
    assert service["spec"]["clusterIP"] == "None"
    # The addresses are those of pods, so the port is that of the container.
    [port] = named("Deployment", "fastovms")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert asked == {(service["metadata"]["name"], port["containerPort"])}


def test_envoy_listens_where_clients_and_probes_connect() -> None:
    [container] = pod()["containers"]
    [port] = container["ports"]
    [clients] = [
        it for it in configuration("listeners.yaml")["resources"] if it["name"] == "clients"
    ]
    assert address(clients) == ("::", port["containerPort"])
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["port"], asked["scheme"]) == (port["name"], "HTTPS")


def test_envoy_files_are_mounted_where_it_reads_them() -> None:
    [container] = pod()["containers"]
    mounts = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
    assert container["workingDir"] == mounts["configuration"]
    [started] = [
        it for it in of_kind(overlay("replicas"), "ConfigMap") if container["args"][1] in it["data"]
    ]
    volumes = {it["name"]: it for it in pod()["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] == started["metadata"]["name"]
    [secret] = configuration("certificate.yaml")["resources"]
    watched = secret["tls_certificate"]["watched_directory"]["path"]
    assert Path(container["workingDir"], watched) == Path(mounts["certificate"])
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert Path(command[-1]) == Path(mounts["drain"], DRAIN.name)


def test_envoy_grace_is_longer_than_that_of_replicas() -> None:
    replica = named("Deployment", "fastovms")["spec"]["template"]["spec"]
    own = pod()["terminationGracePeriodSeconds"]
    assert own > replica["terminationGracePeriodSeconds"]


@pytest.mark.nightly
@needs_envoy
async def test_envoy_ends_when_what_it_carries_has_ended(tmp_path: Path) -> None:
    async with replicas("a") as [replica]:
        bootstrap = render(
            tmp_path,
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            replicas=[replica.address],
            plain=True,
        )
        with running_envoy(bootstrap) as envoy:
            await asyncio.to_thread(envoy.wait_for_stat, "cluster.replicas.membership_healthy", 1)
            port = envoy.port("clients")
            async with connected(port) as client:
                await client.send("GET", "/stream")
                async with asyncio.timeout(DEADLINE):
                    await replica.arrivals.get()
                admin = envoy.admin.removeprefix("http://")
                drain = await asyncio.create_subprocess_exec("/bin/bash", DRAIN, admin, "0.3")
                try:
                    await asyncio.to_thread(envoy.wait_for_stat, "server.live", 0)
                    assert (await ask(port, "GET", "/ready")).status == 503
                    # It gets no new connections from the service, but serves those that arrive.
                    assert (await ask(port, "GET", "/v1/models")).status == 200
                    await asyncio.sleep(0.5)
                    assert drain.returncode is None, "there is a stream"
                    replica.frames.put_nowait(None)
                    await client.read_until(b"0\r\n\r\n")
                    async with asyncio.timeout(DEADLINE):
                        assert await drain.wait() == 0
                finally:
                    if drain.returncode is None:
                        drain.kill()
                        await drain.wait()
