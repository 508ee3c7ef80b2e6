"""What a handler raises becomes its dialect's answer."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from fastovms.api.wire.dialect import OPENAI, OVMS, Dialect
from fastovms.api.wire.endpoint import endpoint
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from tests.fakes import make_request


def raising(error: BaseException | None, dialect: Dialect):
    async def handle(request: Request, told: Dialect) -> Response | None:
        assert told is dialect
        if error is not None:
            raise error
        return Response(204)

    return endpoint(handle, dialect)(make_request("/x"))


@pytest.mark.parametrize(
    ("dialect", "error", "status", "message"),
    [
        (OPENAI, InvalidField("n is wrong", param="n"), 400, "n is wrong"),
        (OVMS, InvalidField("n is wrong", param="n"), 400, "n is wrong"),
        (OPENAI, ZeroDivisionError("a secret"), 500, "internal server error"),
    ],
)
async def test_errors(dialect: Dialect, error: Exception, status: int, message: str) -> None:
    response = await raising(error, dialect)
    assert response is not None
    assert response.status == status
    told = orjson.loads(response.body)["error"]
    assert (told["message"] if dialect is OPENAI else told) == message


async def test_answers_and_cancellation_pass_through() -> None:
    response = await raising(None, OPENAI)
    assert response == Response(204)
    with pytest.raises(asyncio.CancelledError):
        await raising(asyncio.CancelledError(), OPENAI)
