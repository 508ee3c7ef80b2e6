"""Refuses what asks for a response, a conversation or an item that is not kept: a 404."""

from __future__ import annotations

from typing import TypeVar

from fastovms.errors import NotFound

T = TypeVar("T")


def not_found(what: str, id: str, *, param: str | None = None, code: str | None = None) -> NotFound:
    """Returns the error about an id that nothing is kept under."""
    return NotFound(f"{what} with id '{id[:200]}' not found.", param=param, code=code)


def previous_not_found(id: str) -> NotFound:
    """Returns the error about a response that is to be continued, and is not kept."""
    return not_found(
        "Previous response",
        id,
        param="previous_response_id",
        code="previous_response_not_found",
    )


def found(result: T | None, what: str, id: str) -> T:
    """Returns what was found.

    Raises:
        NotFound: nothing was.
    """
    if result is None:
        raise not_found(what, id)
    return result
