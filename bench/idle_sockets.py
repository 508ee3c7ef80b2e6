"""What idle WebSocket connections cost: memory of the server, and the latency of chats beside them.

python -m bench.idle_sockets [--connections N] [MODEL]

The connections answer the server's pings, and send nothing else. The limit of open files (`ulimit
-n`) must be above their number.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import openai

from bench.common.process import server_process
from bench.common.report import machine, median, table
from fastovms.server_config import DEMO_MODEL

NUM_CHATS = 50
AT_ONCE = 200
PING = 0x89
PONG = b"\x8a\x80\0\0\0\0"


class Idle(asyncio.Protocol):
    """One connection."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.opened = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            assert data.startswith(b"HTTP/1.1 101 "), data
            self.opened.set_result(None)
        elif data[0] == PING:
            self.transport.write(PONG)


@asynccontextmanager
async def idle_connections(url: str, count: int) -> AsyncIterator[float]:
    """Opens the connections. Yields how many seconds that took."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 0
    key = base64.b64encode(bytes(16)).decode()
    head = (
        f"GET /v1/responses HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(AT_ONCE)

    async def open_one() -> Idle:
        async with room:
            _, protocol = await loop.create_connection(lambda: Idle(head), host, port)
            await protocol.opened
            return protocol

    start = time.perf_counter()
    opened = await asyncio.gather(*(open_one() for _ in range(count)))
    try:
        yield time.perf_counter() - start
    finally:
        for one in opened:
            one.transport.abort()


async def chat_latencies(url: str, model: str) -> list[float]:
    """Returns the seconds of short chats, one after the other."""
    times = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for _ in range(NUM_CHATS + 5):
            start = time.perf_counter()
            await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Hello"}],
                max_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            times.append(time.perf_counter() - start)
    return times[5:]


def resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def measure(url: str, pid: int, model: str, count: int) -> list[list[object]]:
    rows: list[list[object]] = []

    def note(connections: int, opening: float, times: list[float]) -> None:
        ordered = sorted(times)
        rows.append(
            [connections, resident(pid) / 2**20, opening, 1000 * median(ordered),
             1000 * ordered[int(0.95 * len(ordered))]]
        )  # fmt: skip

    note(0, 0.0, await chat_latencies(url, model))
    async with idle_connections(url, count) as opening:
        note(count, opening, await chat_latencies(url, model))
    await asyncio.sleep(2)
    note(0, 0.0, await chat_latencies(url, model))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.idle_sockets")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO_MODEL)
    options = parser.parse_args()
    name = options.model.name
    arguments = ["-m", "fastovms", "serve", str(options.model), "--served-model-name", name]
    arguments += ["--cache-size", "0.2", "--state-dir", ":memory:", "--access-log", "off"]
    print(machine())
    with server_process(arguments) as server:
        rows = asyncio.run(measure(server.url, server.pid, name, options.connections))
    header = ["connections", "resident MiB", "opened in s", "chat ms, median", "chat ms, 95 %"]
    print(table(header, rows))
    grown = (float(str(rows[1][1])) - float(str(rows[0][1]))) * 1024 / options.connections
    print(f"{grown:.1f} KiB for a connection")


if __name__ == "__main__":
    main()
