"""The Ray Serve replica, which forwards requests to its own server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

import aiohttp
import orjson
import ray
from multidict import CIMultiDict
from yarl import URL

from fastovms.errors import BackendUnavailable
from fastovms.parts.ray_serve.child_server import ChildServer, ReplicaOptions, queue_lengths

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_OF_ONE_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Header fields that concern one connection and are not forwarded (RFC 9110, 7.6.1), in addition to
those listed in `Connection`. Ray's proxy has already answered `Expect`."""

_WRITTEN_BY_RAY: Final = frozenset({b"date", b"x-request-id"})
"""Response headers that Ray's proxy adds itself. The server's request id equals Ray's, which Ray
sends in the request."""

_RETRY_AFTER: Final = b"1"
"""Seconds after which another replica, or the successor of this one, can answer."""


class HttpProxy:
    """An ASGI application that forwards requests unchanged to the server at `url`, which has no
    path. Connections are kept open, and bodies are streamed: the next piece is read after `send`
    has returned."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            # The client closes idle connections before the server does: see HttpConfig.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> tuple[int, str]:
        """Sends a GET request to the server and returns status and body. Raises aiohttp.ClientError
        if the server does not answer."""
        async with self._session.get(self._url + path) as answer:
            return answer.status, await answer.text()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._exchange(scope, receive, send)
            case "lifespan":
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
            case "websocket":
                await send({"type": "websocket.close"})

    async def _exchange(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Forwards one request, and cancels it when the client disconnects."""
        body = _RequestBody(scope["headers"], receive)
        forwarding = asyncio.ensure_future(self._forward(scope, body, send))
        leaving = asyncio.ensure_future(body.wait_until_left())
        leaving.add_done_callback(lambda _: forwarding.cancel())
        try:
            await forwarding
        except asyncio.CancelledError:
            if not leaving.done():
                raise  # Ray Serve has cancelled it
        finally:
            leaving.cancel()

    async def _forward(self, scope: Mapping[str, Any], body: _RequestBody, send: Send) -> None:
        """Forwards a request and its response.

        Raises:
            ConnectionResetError: the server has ended during its response; the client must not
                mistake the received part for the whole.
        """
        has_begun = False
        try:
            async with self._session.request(
                scope["method"],
                URL(self._url + _target(scope), encoded=True),
                headers=CIMultiDict(
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in _end_to_end(scope["headers"])
                ),
                data=body.pieces() if body.is_sent else None,
                allow_redirects=False,
            ) as answer:
                fields = _end_to_end(answer.raw_headers, _WRITTEN_BY_RAY)
                await _send_head(send, answer.status, fields)
                has_begun = True
                async for piece in answer.content.iter_any():
                    await _send_body(send, piece, more=True)
                await _send_body(send, b"", more=False)
        except aiohttp.ClientError:
            if has_begun:
                raise ConnectionResetError("the server ended during its response") from None
            await _send_unavailable(send)


class _RequestBody:
    """The body of a request, and the message after it, which reports that the client has
    disconnected."""

    def __init__(self, headers: Headers, receive: Receive) -> None:
        names = {name.lower() for name, _ in headers}
        self.is_sent = not names.isdisjoint({b"content-length", b"transfer-encoding"})
        self._receive = receive
        self._was_read = asyncio.Event()
        if not self.is_sent:
            self._was_read.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client disconnected during its request")
            yield message.get("body", b"")
            more = message.get("more_body", False)
        self._was_read.set()

    async def wait_until_left(self) -> None:
        await self._was_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _target(scope: Mapping[str, Any]) -> str:
    """Returns path and query as sent by the client, without the application's prefix."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.removeprefix(scope.get("root_path", "").encode()) or b"/"
    query: bytes = scope.get("query_string", b"")
    return (path + b"?" + query if query else path).decode("latin-1")


def _end_to_end(
    headers: Headers, without: frozenset[bytes] = frozenset()
) -> list[tuple[bytes, bytes]]:
    fields = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in fields
        if name == b"connection"
        for token in value.split(b",")
    }
    left_out = _OF_ONE_CONNECTION | named | without
    return [field for field in fields if field[0] not in left_out]


async def _send_head(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_body(send: Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _send_unavailable(send: Send) -> None:
    """Sends an error in OpenAI's format: the server is not available."""
    message = "The replica that got this request has ended; another will answer it."
    fields = {"message": message, "type": "server_error", "param": None, "code": None}
    body = orjson.dumps({"error": fields})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", _RETRY_AFTER),
    ]
    await _send_head(send, 503, headers)
    await _send_body(send, body, more=False)


_FAILURE_GRACE: Final = 0.5
"""Seconds between the end of the server and that of the replica, during which the last responses
are delivered."""


class ServeReplica:
    """The class of a Ray Serve replica; Ray Serve calls its methods by name.

    If the server ends, the replica ends too, so that Ray sends no more requests. Otherwise Ray
    would replace the replica only after three failed health checks.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: ReplicaOptions
    ) -> None:
        context = ray.get_runtime_context()
        num_cpus = context.get_assigned_resources().get("CPU", 0.0)
        self._server = await ChildServer.start(
            options.serve_arguments(num_cpus), options.environment
        )
        self._proxy = HttpProxy(self._server.url)
        self._supervision = asyncio.create_task(self._end_with_server())

    def __serve_build_asgi_app__(self) -> HttpProxy:
        return self._proxy

    async def check_health(self) -> None:
        """Raises BackendUnavailable if the server's health check fails."""
        try:
            status, body = await self._proxy.get("/health")
        except aiohttp.ClientError as error:
            raise BackendUnavailable(f"/health does not answer: {error}") from None
        if status != 200:
            raise BackendUnavailable(f"/health answers {status}: {body}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the server's queue lengths, for `replicas_for_queues`."""
        _, metrics = await self._proxy.get("/metrics")
        return queue_lengths(metrics)

    async def __del__(self) -> None:
        """Ends the server after the replica's last request. Ray kills both if this takes longer
        than `graceful_shutdown_timeout_s`."""
        if hasattr(self, "_supervision"):
            self._supervision.cancel()
            await self._server.stop()
            await self._proxy.close()

    async def _end_with_server(self) -> None:
        exit_description = await self._server.wait()
        logger.error("the server %s; this replica ends with it", exit_description)
        await asyncio.sleep(_FAILURE_GRACE)
        _end_this_actor()


def _end_this_actor() -> None:
    ray.kill(ray.get_runtime_context().current_actor)
