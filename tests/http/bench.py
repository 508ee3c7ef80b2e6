"""The parts of a server with fake transports, for tests of connections."""

from __future__ import annotations

import asyncio

from fastovms.config import HttpConfig
from fastovms.http.messages import Exchange, Request, Response, Stream
from fastovms.http.protocol import Connection
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.writers import ServerState
from tests.http.client import Conversation
from tests.http.fake_transport import FakeTransport

CONFIG = HttpConfig(
    head_timeout=10,
    body_timeout=60,
    min_body_rate=100,
    keep_alive_timeout=75,
    write_timeout=60,
    linger_timeout=2,
    close_timeout=5,
    ping_interval=15,
    max_write_buffer=1_000_000,
    max_pipelined=4,
    max_connections=2,
    drain_grace=1,
)


class Bench:
    """The parts of a server with fake transports, and handlers that wait for the test."""

    def __init__(self, config: HttpConfig = CONFIG) -> None:
        self.exchanges: list[Exchange] = []
        self.streams: list[Stream] = []
        self.waits: list[asyncio.Future[Response | None]] = []
        self.cancelled = 0
        self.now = 0.0
        router = Router()
        router.add("GET", "/health", lambda request: Response(200, b"ok", "text/plain"))
        router.add("GET", "/large", lambda request: Response(200, b"x" * 300_000, "text/plain"))
        router.add("POST", "/echo", lambda request: Response(200, request.body, "text/plain"))
        router.add("GET", "/wait", self.wait)
        router.add("GET", "/stream", self.stream)
        self.state = ServerState(
            config,
            Dispatcher(
                router,
                lambda path, status, message: Response(status, message.encode()),
            ),
            asyncio.get_running_loop(),
            [self.exchanges.append],
            clock=lambda: self.now,
        )

    async def wait(self, request: Request) -> Response | None:
        future = asyncio.get_running_loop().create_future()
        self.waits.append(future)
        try:
            return await future  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def stream(self, request: Request) -> Response | None:
        self.streams.append(request.stream())
        return await self.wait(request)

    def connect(self, address: str = "127.0.0.1") -> FakeTransport:
        return FakeTransport(Connection(self.state), address)


def statuses(transport: FakeTransport) -> list[int]:
    return Conversation(transport.sent, transport.lost).statuses


async def ticks(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
