"""Servers that stand for replicas behind a balancer and record their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from fastovms.config import HttpConfig
from fastovms.http.messages import Request, Response
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer

FULL = Response(503, b'{"error": {"message": "full"}}', headers=(("Retry-After", "7"),))


class Replica:
    """A fake replica.

    `/stream` sends the items of `frames`; None ends it. `/slow` waits for `release`. Other paths
    return the name of the replica and the fields of the request.

    Attributes:
        requests: all requests except probes.
        is_full: whether it answers with 503.
        arrivals: gets this replica for each request to `/stream` or `/slow`.
        cancelled: set when a client disconnects from a stream.
    """

    def __init__(self, name: str, arrivals: asyncio.Queue[Replica]) -> None:
        self.name = name
        self.arrivals = arrivals
        self.is_ready = True
        self.is_full = False
        self.requests: list[Request] = []
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.address = ""
        router = Router()
        router.add("GET", "/ready", self._ready)
        router.add("GET", "/stream", self._stream)
        router.add("POST", "/slow", self._slow)
        for method in ("GET", "POST"):
            router.add(method, "/", self._answer)
            router.add(method, "/{rest:path}", self._answer)
        self._router = router
        self._server: HttpServer | None = None

    @property
    def num_asked(self) -> int:
        return len(self.requests)

    async def start(self, address: str = "127.0.0.1:0") -> None:
        host, _, port = address.rpartition(":")
        config = HttpConfig(host=host, port=int(port), close_timeout=0.1, drain_grace=0.1)
        self._server = HttpServer(config, Dispatcher(self._router, _render_error))
        await self._server.start()
        self.address = self._server.addresses[0].removeprefix("http://")

    async def kill(self) -> None:
        """Ends the replica as a crash does: connections are reset."""
        if self._server is not None:
            await self._server.close()
            self._server = None

    def _ready(self, request: Request) -> Response:
        return Response(200 if self.is_ready else 503)

    def _answer(self, request: Request) -> Response:
        self.requests.append(request)
        if self.is_full:
            return FULL
        seen = {
            "replica": self.name,
            "headers": dict(request.headers),
            "length": len(request.body),
        }
        return Response(200, orjson.dumps(seen))

    async def _slow(self, request: Request) -> Response:
        self.requests.append(request)
        self.arrivals.put_nowait(self)
        await self.release.wait()
        return Response(200, orjson.dumps({"replica": self.name}))

    async def _stream(self, request: Request) -> None:
        self.requests.append(request)
        stream = request.stream()
        self.arrivals.put_nowait(self)
        try:
            while (frame := await self.frames.get()) is not None:
                stream.send(frame)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        stream.finish()


@asynccontextmanager
async def replicas(*names: str) -> AsyncIterator[list[Replica]]:
    """Runs a replica with each name. They share the queue of arrivals."""
    arrivals: asyncio.Queue[Replica] = asyncio.Queue()
    running = [Replica(name, arrivals) for name in names]
    try:
        for replica in running:
            await replica.start()
        yield running
    finally:
        for replica in running:
            await replica.kill()


def _render_error(request: Request, status: int, message: str) -> Response:
    return Response(status, orjson.dumps({"error": message}))
