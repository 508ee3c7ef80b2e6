"""A TCP proxy that delays, splits, half-closes and resets connections to PostgreSQL, also in the
middle of statements and commits."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MAX_CHUNK: Final = 65536

_TAKES_LEASE: Final = (b"UPDATE runs SET owner", b"DELETE FROM runs WHERE")
"""Statements before which another replica may renew the lease. They are always delayed."""

_RESETS: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a socket is closed by a reset."""

FAULTS: Final = ("before", "middle", "after", "late", "delay", "half-close", "mute")
"""The faults of a message from a client:

- before: the connection is reset before the server receives the message.
- middle: the server receives the first part of the message; then the connection is reset.
- after: the server receives the message; the connection is reset before the client gets the answer.
- late: the server receives the message after the client has stopped waiting.
- delay: the message arrives later.
- half-close: the server receives the message and the end of the stream.
- mute: the server receives the message; the client gets no answer.
"""


class FaultProxy:
    """Forwards the connections of one replica to a server on the loopback.

    Args:
        port: the port of the server.
        patience: the seconds for which a client waits for an answer.
        rate: the share of messages with a fault; of commits five times as many.

    Attributes:
        is_active: whether to inject faults.
        outage: "refuse" = connections are reset; "hang" = connections stay open, but nothing is
            forwarded; "slow" = each message of a client is delayed; "" = no outage.
        num_faults: the number of faults of each kind; those of commits are "commit <kind>".
        on_takeover: called before a statement that takes a lease is delayed.
    """

    def __init__(self, port: int, chance: random.Random, patience: float, rate: float) -> None:
        self._server_port = port
        self._chance = chance
        self._patience = patience
        self._rate = rate
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._muted: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reachable = asyncio.Event()
        self._reachable.set()
        self.is_active = False
        self.outage = ""
        self.num_faults: Counter[str] = Counter()
        self.on_takeover: Callable[[], None] = lambda: None

    async def start(self) -> int:
        """Starts listening, and returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def begin_outage(self, kind: str) -> None:
        self.outage = kind
        if kind != "slow":
            self._reachable.clear()
        if kind == "refuse":
            self.reset_all()

    def end_outage(self) -> None:
        self.outage = ""
        self._reachable.set()

    def reset_all(self) -> None:
        """Resets all client connections. Messages received before may still be forwarded."""
        for client in list(self._clients):
            _reset(client)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._clients.add(writer)
        try:
            if self.outage == "refuse":
                return
            await self._reachable.wait()
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            down = asyncio.ensure_future(self._forward_down(up_reader, writer))
            try:
                await self._forward_up(reader, up_writer, writer)
            finally:
                up_writer.close()
                down.cancel()
                await asyncio.wait((down,))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(writer)
            self._muted.discard(writer)
            _reset(writer)

    async def _forward_up(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        """Forwards messages of the client until the connection ends."""
        chance = self._chance
        while data := await reader.read(_MAX_CHUNK):
            await self._reachable.wait()
            if self.outage == "slow":
                await asyncio.sleep(self._patience * chance.uniform(0.06, 0.3))
            is_commit = b"COMMIT" in data
            fault = ""
            if self.is_active and chance.random() < self._rate * (5 if is_commit else 1):
                fault = chance.choice(FAULTS)
                self.num_faults["commit " * is_commit + fault] += 1
            elif self.is_active and any(text in data for text in _TAKES_LEASE):
                self.on_takeover()
                await asyncio.sleep(self._patience * chance.uniform(0.2, 0.9))
            if fault == "before":
                return
            if fault == "middle":
                server.write(data[: chance.randrange(len(data))])
                await server.drain()
                return
            if fault == "late":
                await asyncio.sleep(self._patience * chance.uniform(0.9, 1.5))
            elif fault == "delay":
                await asyncio.sleep(self._patience * chance.uniform(0.0, 0.9))
            elif fault in ("after", "mute"):
                self._muted.add(client)
            server.write(data)
            await server.drain()
            if fault == "half-close":
                server.write_eof()
                while await reader.read(_MAX_CHUNK):
                    continue
            elif fault == "after":
                await asyncio.sleep(chance.uniform(0.0, 0.05))
                return

    async def _forward_down(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        """Forwards data of the server, some of it in two parts, until the connection ends."""
        chance = self._chance
        with suppress(OSError):
            while data := await reader.read(_MAX_CHUNK):
                await self._reachable.wait()
                if client in self._muted:
                    continue
                if self.is_active and chance.random() < 0.02:
                    middle = chance.randrange(len(data))
                    client.write(data[:middle])
                    await asyncio.sleep(chance.uniform(0.0, 0.1))
                    data = data[middle:]
                client.write(data)
                await client.drain()
            client.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes a socket with a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
    writer.transport.abort()
