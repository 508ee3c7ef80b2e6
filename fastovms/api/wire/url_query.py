"""Reads query parameters: flags, numbers, and which page of a list is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import parse_qs

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField, RequestError
from fastovms.http.routing.messages import Request
from fastovms.state.store import Page

_MAX_PARAMETERS: Final = 100
_MAX_LIMIT: Final = 100
_USUAL_LIMIT: Final = 20
_MAX_NUMBER: Final = 2**53
_FLAGS: Final = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}

T = TypeVar("T")


class UrlQuery:
    """The parameters of one request, by name. Where one is given several times, the last counts.

    Raises:
        RequestError: there are too many.
    """

    def __init__(self, request: Request) -> None:
        try:
            values: Mapping[str, Sequence[str]] = parse_qs(
                request.query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS
            )
        except ValueError:
            raise RequestError(
                f"the query must have at most {_MAX_PARAMETERS} parameters"
            ) from None
        self._values = {name.removesuffix("[]"): found for name, found in values.items()}

    def texts(self, name: str) -> Sequence[str]:
        """Returns all values that are given."""
        return self._values.get(name, ())

    def text(self, name: str) -> str | None:
        return self._values.get(name, [None])[-1]

    def flag(self, name: str) -> bool:
        """Reads a boolean, also as Python and vLLM's clients write it.

        Raises:
            InvalidField: it is none.
        """
        return self._choice(name, _FLAGS, default=False)

    def number(self, name: str, low: int, high: int = _MAX_NUMBER) -> int | None:
        """Reads an integer.

        Raises:
            InvalidField: it is none, or out of range.
        """
        text = self.text(name)
        if text is None:
            return None
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 17 else -1
        if not low <= number <= high:
            raise InvalidField(
                f"{name} must be an integer from {low} to {high}, not {show(text)}", param=name
            )
        return number

    def page(self, *, usual: int = _USUAL_LIMIT, most: int = _MAX_LIMIT) -> Page:
        """Reads `limit`, `order` and `after`.

        Args:
            usual: the limit where none is given.
            most: the largest one that may be.

        Raises:
            InvalidField: one of them is wrong.
        """
        limit = self.number("limit", 1, most)
        ascending = self._choice("order", {"asc": True, "desc": False}, default=False)
        return Page(usual if limit is None else limit, ascending, self.text("after"))

    def _choice(self, name: str, values: Mapping[str, T], *, default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        if text not in values:
            raise InvalidField(
                f"{name} must be one of {', '.join(values)}, not {show(text)}", param=name
            )
        return values[text]
