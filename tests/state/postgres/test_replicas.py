"""Servers that share one database, directly and through PgBouncer."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fastovms.app.state_opening import open_store
from fastovms.parts.postgres.database import PostgresDatabase
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.server_config import StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import Page, StoredItem, StoredResponse
from tests.postgres_server import free_port, server_user


def url_of(address: ServerAddress, **more: object) -> str:
    given = address.parameters | more
    return "postgresql://?" + "&".join(f"{name}={value}" for name, value in given.items())


@pytest.fixture
def pgbouncer(postgres: ServerAddress) -> Iterator[ServerAddress]:
    """The address of a PgBouncer in transaction mode, with fewer sessions than come to it."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is missing: apt-get install pgbouncer")
    given, port, user = postgres.parameters, free_port(), server_user()
    with tempfile.TemporaryDirectory(prefix="fastovms-pgbouncer-") as directory:
        configuration = Path(directory, "pgbouncer.ini")
        configuration.write_text(
            "[databases]\n"
            f"state = host={given['host']} port={given['port']} dbname={given['dbname']} "
            f"user={given['user']}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\n"
        )
        if user is not None:
            shutil.chown(directory, user)
        process = subprocess.Popen([program, "-q", configuration], user=user)
        address = ServerAddress({"host": "127.0.0.1", "port": str(port), "dbname": "state"})
        ends_at = time.monotonic() + 60
        while not _listens(port):
            assert process.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        yield address
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture(params=["directly", "through PgBouncer"])
def address(request: pytest.FixtureRequest, postgres: ServerAddress) -> ServerAddress:
    return postgres if request.param == "directly" else request.getfixturevalue("pgbouncer")


@pytest.fixture
async def replicas(address: ServerAddress):
    stores = [open_store(StateConfig(state_url=url_of(address)), {}, time.time) for _ in range(3)]
    yield stores
    for store in stores:
        assert store is not None
        await store.close()


@pytest.mark.slow
async def test_turns_at_once_are_stored_as_by_one_server(replicas, make_postgres):
    """Nothing is lost, nothing comes twice, the items of a turn stay together, and what one has
    acknowledged the others know."""
    await replicas[0].run(Operations.add_conversation, "t", "c", b"{}", [])

    async def turn(number: int) -> None:
        store, other = replicas[number % 3], replicas[(number + 1) % 3]
        items = [StoredItem(f"{number}-{part}", b"x") for part in range(3)]
        response = StoredResponse(f"r{number}", b"{}", items[:1], items[1:])
        assert await store.run(Operations.add_response, "t", response, conversation_id="c")
        assert not await other.run(Operations.add_response, "t", response, conversation_id="c")
        found = await other.run(Operations.find_response, "t", f"r{number}")
        assert list(found.output) == items[1:]

    await asyncio.gather(*map(turn, range(60)))
    found = await replicas[1].run(Operations.conversation_context, "t", "c", max_bytes=10**6)
    ids = [item.id for item in found.items]
    assert sorted(ids) == sorted(f"{number}-{part}" for number in range(60) for part in range(3))
    for start in range(0, len(ids), 3):
        number = ids[start].split("-")[0]
        assert ids[start : start + 3] == [f"{number}-{part}" for part in range(3)]
    listed = await replicas[2].run(Operations.list_items, "t", "c", Page(200, ascending=True))
    assert [item.id for item in listed.items] == ids
    make_postgres().check()


@pytest.mark.slow
async def test_servers_keep_the_bounds_together(address, make_postgres):
    config = StateConfig(state_url=url_of(address), max_objects=20)
    stores = [open_store(config, {}, time.time) for _ in range(2)]

    async def fill(store: StateStore, name: str) -> None:
        for number in range(60):
            await store.run(
                Operations.add_response, "t", StoredResponse(f"{name}{number}", b"x" * 100)
            )

    await asyncio.gather(fill(stores[0], "a"), fill(stores[1], "b"))
    await stores[0].run(Operations.add_response, "t", StoredResponse("last", b"x"))
    database: PostgresDatabase = make_postgres()
    ends_at = time.monotonic() + 60
    while database.do_maintenance() and database.totals.num_objects > 20:
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.05)
    assert database.totals.num_objects == 20
    assert await stores[1].run(Operations.find_response, "t", "last") is not None
    assert await stores[1].run(Operations.find_response, "t", "a0") is None
    assert await stores[0].run(Operations.find_response, "t", "b0") is None
    for store in stores:
        await store.close()
    database.check()


@pytest.mark.slow
async def test_reads_do_not_wait_for_writes(address, postgres):
    """Neither for rows that somebody has locked, nor behind those who wait for them."""
    store = open_store(StateConfig(state_url=url_of(address)), {}, time.time)
    await store.run(Operations.add_conversation, "t", "c", b"{}", [])
    with psycopg.connect(**postgres.connection_parameters()) as other:
        other.execute("SELECT 1 FROM objects FOR UPDATE")
        writes = [
            asyncio.ensure_future(store.run(Operations.add_items, "t", "c", [StoredItem("i", b"")]))
            for _ in range(20)
        ]
        for _ in range(10):
            async with asyncio.timeout(60):
                assert await store.run(Operations.find_conversation, "t", "c") == b"{}"
        assert not any(write.done() for write in writes)
    assert await asyncio.gather(*writes) == [True] * 20
    await store.close()
