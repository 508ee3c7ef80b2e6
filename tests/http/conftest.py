"""A server on a free port with a few simple routes, for end-to-end tests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from fastovms.config import HttpConfig
from fastovms.http.listeners import BoundSockets, bind_all
from fastovms.http.messages import Exchange, Request, Response
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.http.websocket import NORMAL, RESTART, handshake_fault, open_websocket

QUICK = HttpConfig(
    port=0,
    max_body=1024 * 1024,
    head_timeout=60.0,
    body_timeout=60.0,
    min_body_rate=1024 * 1024 * 1024,
    keep_alive_timeout=60.0,
    write_timeout=60.0,
    linger_timeout=0.2,
    close_timeout=0.2,
    drain_grace=0.1,
    ping_interval=3600.0,
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns uvloop's factory, or the `loop_factory` of the test's module."""
    return {"loop": getattr(item.module, "loop_factory", uvloop.new_event_loop)}


def render_error(request: Request, status: int, message: str) -> Response:
    return Response(status, f"{status} {request.path} {message}".encode(), "text/plain")


class Site:
    """The routes of tests, with records of their requests. `/slow` waits for `release`; `/stream`
    sends the items of `frames`, None ends it."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.requests: list[Request] = []
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.router = Router()
        self.router.add("GET", "/health", self.health)
        self.router.add("POST", "/echo", self.echo)
        self.router.add("POST", "/later", self.later)
        self.router.add("GET", "/slow", self.slow)
        self.router.add("GET", "/fails", self.fails)
        self.router.add("GET", "/smuggled", self.health)
        self.router.add("GET", "/items/{id}", self.item)
        self.router.add("GET", "/stream", self.stream)
        self.router.add("GET", "/half", self.half)
        self.router.add("GET", "/large", self.large)
        self.router.add("GET", "/socket", self.socket)

    async def socket(self, request: Request) -> Response | None:
        """Echoes messages; "fail" raises."""
        if (fault := handshake_fault(request)) is not None:
            return Response(fault.status, fault.message.encode(), "text/plain")
        socket = open_websocket(request)
        while (message := await socket.receive()) is not None:
            text = bytes(message).decode()
            socket.give_back(len(message))
            if text == "fail":
                raise RuntimeError(text)
            socket.send(text)
        socket.close(RESTART if socket.draining else NORMAL)
        return None

    def health(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(200, b"ok", "text/plain")

    def echo(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(200, request.body, "text/plain")

    async def later(self, request: Request) -> Response:
        await asyncio.sleep(0.01)
        return Response(200, request.body, "text/plain")

    def item(self, request: Request) -> Response:
        return Response(200, request.path_params["id"].encode(), "text/plain")

    async def slow(self, request: Request) -> Response:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(200, b"slow", "text/plain")

    async def fails(self, request: Request) -> Response:
        raise ValueError("on purpose")

    async def stream(self, request: Request) -> None:
        stream = request.stream()
        for number in range(3):
            stream.send(b"data: %d\n\n" % number)
            await asyncio.sleep(0)
        stream.finish(b"data: [DONE]\n\n")

    async def half(self, request: Request) -> None:
        request.stream().send(b"data: 1\n\n")
        raise ValueError("on purpose")

    def large(self, request: Request) -> Response:
        return Response(200, b"x" * (8 * 1024 * 1024), "text/plain")


@dataclasses.dataclass
class Running:
    server: HttpServer
    site: Site
    port: int


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts servers; keyword arguments change the config, `options` the server."""
    servers = []

    async def start_one(options: dict[str, object] | None = None, **changes: object) -> Running:
        site = Site()
        config = dataclasses.replace(QUICK, **changes)  # type: ignore[arg-type]
        keywords = {"root_path": config.root_path, **(options or {})}
        observers = keywords.pop("observers", (site.exchanges.append,))
        inherited = keywords.pop("inherited", ())
        bound = BoundSockets(bind_all(config, inherited), True) if inherited else None  # type: ignore[arg-type]
        dispatcher = Dispatcher(site.router, render_error, **keywords)  # type: ignore[arg-type]
        server = HttpServer(config, dispatcher, observers=observers, bound=bound)  # type: ignore[arg-type]
        await server.start()
        servers.append(server)
        return Running(server, site, int(server.addresses[0].rsplit(":", 1)[1]))

    yield start_one
    for server in servers:
        await server.close()
        assert server.num_connections == 0
