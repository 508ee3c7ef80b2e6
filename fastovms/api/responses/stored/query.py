"""Reads the query parameters of the Responses API: pages of lists, streams again, `include`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import parse_qs

from fastovms.api.responses.input.response_fields import check_include
from fastovms.api.wire.body import show
from fastovms.errors import InvalidField, RequestError
from fastovms.http.routing.messages import Request
from fastovms.state.store import Page

_MAX_PARAMETERS: Final = 100
_MAX_LIMIT: Final = 100
_USUAL_LIMIT: Final = 20
_MAX_NUMBER: Final = 2**53
_FLAGS: Final = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}

T = TypeVar("T")


class Query:
    """The parameters of one request, by name. Where one is given several times, the last counts.

    Raises:
        RequestError: there are too many, or `include` has a value that is not known.
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
        check_include(self._values.get("include", ()))

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

    def page(self) -> Page:
        """Reads `limit`, `order` and `after`.

        Raises:
            InvalidField: one of them is wrong.
        """
        limit = self.number("limit", 1, _MAX_LIMIT)
        ascending = self._choice("order", {"asc": True, "desc": False}, default=False)
        return Page(_USUAL_LIMIT if limit is None else limit, ascending, self.text("after"))

    def _choice(self, name: str, values: Mapping[str, T], *, default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        if text not in values:
            raise InvalidField(
                f"{name} must be one of {', '.join(values)}, not {show(text)}", param=name
            )
        return values[text]
