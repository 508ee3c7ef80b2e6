"""Where the server can be reached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.http.listening.listeners import raise_file_limit
from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get


async def unix_get(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(get("/health", "Connection: close"))
    data = await reader.read()
    writer.close()
    return data


async def test_several_addresses(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen = ("127.0.0.1:0", "[::1]:0", f"unix:{path}")
    running = await start(listen=listen, unix_mode=0o600)
    first, second, third, fourth = running.server.addresses
    assert first != second
    assert third.startswith("http://[::1]:")
    assert fourth == f"unix:{path}"
    assert (await talk(int(second.rsplit(":", 1)[1]), get())).statuses == [200]
    reader, writer = await asyncio.open_connection("::1", int(third.rsplit(":", 1)[1]))
    writer.write(get("/health", "Connection: close"))
    assert b" 200 OK" in await reader.read()
    writer.close()
    assert running.site.requests[-1].client.startswith("[::1]:")
    assert b" 200 OK" in await unix_get(path)
    assert running.site.requests[-1].client == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await running.server.close()
    assert not path.exists()


async def test_every_interface(start: Start) -> None:
    running = await start(host="")
    ports = {address.rsplit(":", 1)[1] for address in running.server.addresses}
    assert len(ports) == 1, "one port for both families"
    assert (await talk(running.port, get())).statuses == [200]


async def test_a_dead_unix_socket_is_replaced(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)


async def test_a_live_one_is_not(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s"
    running = await start(listen=(f"unix:{path}",))
    with pytest.raises(ConfigurationError, match="another server answers"):
        await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)
    # Someone else's socket under our name is not ours to remove.
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        await running.server.close()
        assert path.exists()


async def test_a_live_one_that_accepts_nobody(start: Start, tmp_path: Path) -> None:
    """Its queue is full: asking whether it lives must not wait for a place."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(str(path))
        busy.listen(0)
        error = 0
        while not error:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            error = client.connect_ex(str(path))
        with pytest.raises(ConfigurationError, match="another server answers"):
            await start(listen=(f"unix:{path}",))


async def test_a_unix_path_as_long_as_may_be(start: Start, tmp_path: Path) -> None:
    path = tmp_path / ("s" * (107 - len(str(tmp_path)) - 1))
    # Left by a process with the same id, as in containers, which was killed as it started.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path.with_name(f".{os.getpid()}")))
    await start(listen=(f"unix:{path}",))
    assert b" 200 OK" in await unix_get(path)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "message"), [("file", "not a socket"), ("none/s", "No such"), ("x" * 120, "too long")]
)
async def test_bad_unix_paths(name: str, message: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigurationError, match=message):
        await start(listen=(f"unix:{tmp_path / name}",))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_addresses_that_are_not_here(host: str, start: Start) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen on {host}"):
        await start(host=host)


async def test_failing_frees_what_was_bound(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "s"
        with pytest.raises(ConfigurationError):
            await start(listen=(f"unix:{path}", f"127.0.0.1:{port}"))
        assert not path.exists()


async def test_reuse_port(start: Start) -> None:
    first = await start(reuse_port=True)
    second = await start(reuse_port=True, port=first.port)
    assert first.port == second.port


def test_file_limit(caplog: pytest.LogCaptureFixture) -> None:
    raise_file_limit(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    assert not caplog.records
    if hard != resource.RLIM_INFINITY:
        raise_file_limit(hard + 1)
        assert "open files are allowed" in caplog.text
