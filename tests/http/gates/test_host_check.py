"""Names that lead to the server without being its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fastovms.http.gates.host_check import HostCheck, is_local, machine_names
from fastovms.http.routing.messages import Headers, Request
from tests.http.conftest import render_error

CHECK = HostCheck({"box", "box.lan", "LLM.example."}, render_error)


def request(host: str | None, client: str = "127.0.0.1:1") -> Request:
    named = [] if host is None else [("Host", host)]
    return Request("GET", "/v1/x", headers=Headers(named), client=client)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8000", "192.0.2.7:80", "[::1]", "[::1]:8000", "127.1:8000",
        "localhost", "localhost:8000", "LocalHost:", "localhost.", "ui.localhost:8000", "box",
        "Box:8000", "box.lan", "box.lan.:1", "llm.example", "LLM.EXAMPLE:443", "", None,
    ],
)  # fmt: skip
def test_the_servers_own_names(host: str | None) -> None:
    assert CHECK(request(host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "notlocalhost", "localhost.evil.example", "box.evil",
        "127.0.0.1.evil.example", "127.0.0.1.nip.io:8000", "xbox", "a", "llm.example..evil",
        "127.0.0.256", "%6cocalhost", "127.0.0.1%2eevil",
    ],
)  # fmt: skip
def test_other_names(host: str) -> None:
    answer = CHECK(request(host))
    assert answer is not None
    assert answer.status == 421
    assert f"start it with --allowed-hosts {host.partition(':')[0]}".encode() in answer.body
    assert CHECK(request(host, client="")) is None, "no page can reach a Unix socket"


def test_many_names_take_no_memory() -> None:
    check = HostCheck(set(), render_error)
    for host in [f"n{number}.localhost" for number in range(200)] + ["x" * 300 + ".localhost"]:
        assert check(request(host)) is None
        assert check(request(host)) is None
    assert len(check._passed) == 64
    assert max(map(len, check._passed)) < 300


def test_where_it_does_not_apply() -> None:
    applies = False
    check = HostCheck(set(), render_error, lambda: applies)
    assert check(request("evil.example")) is None
    applies = True
    assert check(request("evil.example")) is not None


def test_machine_names(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "127.0.0.1 localhost\n"
        "127.0.1.1\tBox.lan  box  llm # box.comment\n"
        "# 127.0.0.1 box box.old\n"
        "127.0.0.1 ads.example\n\n"
        "::1 box ip6-box\n"
    )
    assert machine_names("Box", hosts) == {"box", "box.lan", "llm", "ip6-box"}
    assert machine_names("box.lan", tmp_path / "none") == {"box", "box.lan"}
    assert machine_names("", tmp_path / "none") == set()


@pytest.mark.parametrize(
    ("family", "address", "local"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.9.9.9", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
        (socket.AF_INET6, "::", False),
    ],
)
def test_sockets(family: int, address: str, local: bool) -> None:
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        assert is_local(sock) is local


def test_a_unix_socket() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        assert is_local(sock)
