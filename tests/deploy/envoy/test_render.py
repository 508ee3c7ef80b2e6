"""Tests of the configuration as shipped, and for given addresses."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.envoy.render import DNS, LISTENERS, SOURCE, STATIC, render
from fastovms.config import EngineConfig, HttpConfig
from tests.deploy.client import ask, json_of
from tests.deploy.envoy.process import ENVOY, needs_envoy, running_envoy
from tests.deploy.replica import Replica, replicas
from tests.paths import ROOT

TLS = ROOT / "tests/http/tls"
BOOTSTRAPS = (STATIC, DNS)
NAME = "replicas.test"


def read(name: str) -> Any:
    return yaml.safe_load((SOURCE / name).read_text())


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def manager() -> Any:
    """Returns the settings of client connections."""
    return read(LISTENERS)["resources"][0]["filter_chains"][0]["filters"][0]["typed_config"]


# The files as shipped


@needs_envoy
@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_bootstrap_files_are_valid_for_envoy(name):
    done = subprocess.run(
        [str(ENVOY), "--mode", "validate", "-c", name],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


def test_the_files_differ_in_where_the_replicas_are_from():
    static, dns = (read(name) for name in BOOTSTRAPS)
    for bootstrap, names in (
        (static, ("type", "eds_cluster_config")),
        (dns, ("cluster_type", "load_assignment")),
    ):
        for cluster in bootstrap["static_resources"]["clusters"][:2]:
            for name in names:
                del cluster[name]
    assert static == dns


def test_time_outs_and_limits_are_beyond_those_of_a_replica():
    http, connections = HttpConfig(), manager()
    longest_body = http.body_timeout + http.max_body / http.min_body_rate
    assert seconds(connections["request_timeout"]) > longest_body
    assert seconds(connections["request_headers_timeout"]) >= http.head_timeout
    assert connections["max_request_headers_kb"] * 1024 >= http.max_head
    assert (
        connections["common_http_protocol_options"]["max_headers_count"] >= http.max_header_fields
    )
    assert seconds(connections["stream_idle_timeout"]) > 100 * http.ping_interval
    [cluster, *_] = read(STATIC)["static_resources"]["clusters"]
    [protocol] = cluster["typed_extension_protocol_options"].values()
    assert (
        seconds(protocol["common_http_protocol_options"]["idle_timeout"]) < http.keep_alive_timeout
    )
    [breaker] = cluster["circuit_breakers"]["thresholds"]
    assert breaker["max_connections"] > http.max_connections
    assert breaker["max_requests"] > 16 * EngineConfig().max_num_queued_requests
    routes = connections["route_config"]["virtual_hosts"][0]["routes"]
    assert [found["route"]["timeout"] for found in routes if "route" in found] == ["0s", "0s"]


def test_the_script_knows_how_much_it_sees():
    [view] = re.findall(r"local VIEW = (\d+)", (SOURCE / "affinity.lua").read_text())
    [seen] = [
        found["typed_config"]["with_request_body"]["max_request_bytes"]
        for found in manager()["http_filters"]
        if found["name"] == "envoy.filters.http.ext_authz"
    ]
    listener = read(LISTENERS)["resources"][0]
    assert int(view) == seen < listener["per_connection_buffer_limit_bytes"]


def test_render_command_writes_endpoints_and_listeners(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "deploy.envoy.render", str(tmp_path), "--listen", "[::1]:80",
         "--replica", "10.0.0.1:8001", "--replica", "[fe80::1]:8002"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == f"cd {tmp_path} && envoy -c static.yaml\n"
    [assignment] = yaml.safe_load((tmp_path / "endpoints.yaml").read_text())["resources"]
    addresses = [
        tuple(found["endpoint"]["address"]["socket_address"].values())
        for found in assignment["endpoints"][0]["lb_endpoints"]
    ]
    assert addresses == [("10.0.0.1", 8001), ("fe80::1", 8002)]
    listeners = yaml.safe_load((tmp_path / LISTENERS).read_text())
    assert listeners["resources"][0]["address"]["socket_address"]["address"] == "::1"
    assert "transport_socket" in listeners["resources"][0]["filter_chains"][0]


# TLS and HTTP/2


@needs_envoy
async def test_rendered_listener_serves_http2_and_http1_over_tls(tmp_path):
    (tmp_path / "tls").mkdir()
    for suffix in ("crt", "key"):
        shutil.copy(TLS / f"first.{suffix}", tmp_path / f"tls/tls.{suffix}")
    async with replicas("a") as [replica]:
        bootstrap = render(
            tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0", replicas=[replica.address]
        )
        with ExitStack() as stack:
            envoy = await asyncio.to_thread(stack.enter_context, running_envoy(bootstrap))
            await asyncio.to_thread(envoy.wait_for_stat, "cluster.replicas.membership_healthy", 1)
            for protocol, expected in (("h2", b"\x88"), ("http/1.1", b"200 OK")):
                received = await asyncio.to_thread(_ask_tls, envoy.port("clients"), protocol)
                assert expected in received
        assert [request.path for request in replica.requests] == ["/", "/"]


def _ask_tls(port: int, protocol: str) -> bytes:
    """Requests / and returns the bytes up to the end of the answer's head."""
    context = ssl.create_default_context(cafile=str(TLS / "first.crt"))
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        assert connection.selected_alpn_protocol() == protocol
        if protocol == "h2":
            # HPACK's static table has GET, https and /; :authority is written literally (RFC 7541
            # A).
            fields = b"\x82\x87\x84\x41\x09localhost"
            settings = b"\x00\x00\x00\x04\x00" + bytes(4)
            headers = b"\x00\x00%c\x01\x05\x00\x00\x00\x01" % len(fields) + fields
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + headers)
            return _head_of_answer(connection)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        return received


def _head_of_answer(connection: ssl.SSLSocket) -> bytes:
    """Returns the first field of the first HEADERS frame: 0x88 is `:status: 200`."""
    received = b""
    while True:
        received += connection.recv(65536)
        while len(received) >= 9 and len(received) >= 9 + (length := int.from_bytes(received[:3])):
            if received[3] == 1:
                return received[9:10]
            received = received[9 + length :]


# DNS


@contextmanager
def name_server(addresses: list[str]) -> Iterator[int]:
    """Answers every question with the current addresses of the list. Yields its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()

        def answer() -> None:
            query, client = listener.recvfrom(512)
            question = query[12 : query.index(0, 12) + 5]
            is_a = question[-4:-2] == b"\x00\x01"
            records = b"".join(
                b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04" + socket.inet_aton(address)
                for address in (addresses if is_a else ())
            )
            counts = b"\x00\x01" + (len(addresses) if is_a else 0).to_bytes(2) + bytes(4)
            listener.sendto(query[:2] + b"\x81\x80" + counts + question + records, client)

        loop.add_reader(listener, answer)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)


@needs_envoy
async def test_replicas_follow_the_addresses_of_their_name(tmp_path):
    first, second = (Replica(name, asyncio.Queue()) for name in "ab")
    await first.start("127.0.0.1:0")
    port = first.address.rpartition(":")[2]
    await second.start(f"127.0.0.2:{port}")
    addresses = ["127.0.0.1", "127.0.0.2"]
    try:
        with name_server(addresses) as dns_port, ExitStack() as stack:
            bootstrap = render(
                tmp_path,
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                dns=f"{NAME}:{port}",
                plain=True,
            )
            _resolve_at(bootstrap, dns_port)
            envoy = await asyncio.to_thread(stack.enter_context, running_envoy(bootstrap))
            for count, expected in ((2, {"a", "b"}), (1, {"b"})):
                await asyncio.to_thread(
                    envoy.wait_for_stat, "cluster.replicas.membership_healthy", count
                )
                answers = [await ask(envoy.port("clients"), "GET", "/v1/models") for _ in range(20)]
                assert {json_of(answer)["replica"] for answer in answers} == expected
                addresses[:] = ["127.0.0.2"]
    finally:
        await first.kill()
        await second.kill()


def _resolve_at(bootstrap: Path, port: int) -> None:
    """Lets Envoy query that name server often."""
    configuration = yaml.safe_load(bootstrap.read_text())
    for cluster in configuration["static_resources"]["clusters"][:2]:
        cluster["cluster_type"]["typed_config"]["dns_refresh_rate"] = "0.2s"
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    configuration["typed_dns_resolver_config"] = {
        "name": "envoy.network.dns_resolver.cares",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            "resolvers": [address],
        },
    }
    bootstrap.write_text(yaml.safe_dump(configuration))
