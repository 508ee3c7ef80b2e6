"""The smallest ASGI application that answers `GET /v1/models`: what uvicorn alone costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson

BODY = orjson.dumps(
    {
        "object": "list",
        "data": [
            {
                "id": "null",
                "object": "model",
                "created": 0,
                "owned_by": "fastovms",
                "root": "null",
                "parent": None,
                "max_model_len": 1_000_000,
                "permission": [],
            }
        ],
    }
)
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
    ],
}


async def app(
    scope: dict[str, object],
    receive: Callable[[], Awaitable[dict[str, object]]],
    send: Callable[[dict[str, object]], Awaitable[None]],
) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": BODY})
