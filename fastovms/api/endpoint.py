"""Helpers that endpoints share: URL queries, path spelling, metadata, pages of lists, warnings."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from fastovms.api.body import show, wrong
from fastovms.api.dialect import (
    DIALECTS,
    OPENAI,
    AnswerSchema,
    Dialect,
    error_response,
    last_frames,
    log_fields_of,
)
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Handler, HeaderPairs, Request, Response
from fastovms.quoting import is_id

logger = logging.getLogger(__name__)


ApiHandler = Callable[[Request, Dialect], Awaitable[Response | None]]


def endpoint(handler: ApiHandler, dialect: Dialect) -> Handler:
    """Returns the `Handler` of one route. It refuses a request whose API key has reached a limit,
    converts errors to responses, except cancellation, and releases the request's resources at the
    end."""

    async def answer(request: Request) -> Response | None:
        try:
            if request.caller.budget is not None:
                request.caller.budget.admit(request)
            return _with_warnings(await handler(request, dialect), request)
        except Exception as error:
            stream = request.early_stream
            if stream is None or not stream.started:
                return error_response(error, dialect, request.id)
            request.log_fields.update(log_fields_of(error))
            stream.finish(last_frames(error, dialect, request.id))
            return None
        finally:
            request.release()

    return answer


def _with_warnings(response: Response | None, request: Request) -> Response | None:
    """Returns the response with the request's warnings, unless its handler has added them; None for
    None, a stream."""
    if response is None or not request.warnings or "Warning" in dict(response.headers):
        return response
    return replace(response, headers=(*response.headers, *warning_headers((), request)))


def json_response(answer: object, status: int = 200, *, headers: HeaderPairs = ()) -> Response:
    """Returns a response whose body is an answer as JSON."""
    return Response(status, msgspec.json.encode(answer), headers=headers)


Example = Mapping[str, Any]


class EmptyAnswer:
    """The type of an answer without content."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes an API operation for the OpenAPI document. Types of answers, events and lines may
    be given by their names in `openapi.schemas`.

    Attributes:
        answer: the type of the 200 answer; None = every request is refused.
        section: the title under which the operation is listed.
        media_type: the answer's media type, if not JSON.
        body: the type of the request's body.
        body_type: the body's media type, if not JSON.
        required: the body's required fields.
        events: the type of the frames of a streamed answer; None = never streamed.
        lines: the type of the lines, if the answer is streamed as JSON lines.
        query: the types of the query's parameters.
        examples: example bodies by title, or the name of an entry of `openapi.examples`; the
            model's name is added to bodies with a `model` field.
        answered: an example answer; None = from the entry of `openapi.examples`.
        upgrades: whether the path accepts only WebSocket connections.
    """

    summary: str
    answer: Any = None
    section: str = "Extensions"
    media_type: str = "application/json"
    body: type | None = None
    body_type: str = "application/json"
    required: tuple[str, ...] = ()
    events: Any = None
    lines: Any = None
    query: Mapping[str, Any] | None = None
    examples: Mapping[str, Example] | str | None = None
    answered: Example | None = None
    upgrades: bool = False


class Route(NamedTuple):
    """The handler of a method and a path.

    Attributes:
        path: the pattern; see `Router.add`.
        operation: its OpenAPI description; None = not described.
    """

    method: str
    path: str
    handler: Handler
    operation: Operation | None = None


PAGE_QUERY: Final[Mapping[str, Any]] = {
    "limit": int,
    "order": Literal["asc", "desc"],
    "after": str,
}
"""The types of the parameters that `UrlQuery.page` reads."""

_MAX_PARAMETERS: Final = 100
_MAX_LIMIT: Final = 100
_USUAL_LIMIT: Final = 20
_MAX_NUMBER: Final = 2**53
_FLAGS: Final = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}

T = TypeVar("T")


class Page(NamedTuple):
    """A client's request for one page of a list.

    Attributes:
        after: the id of the entry before the page; None = from the beginning (or the end).
    """

    limit: int
    ascending: bool
    after: str | None = None


class UrlQuery:
    """The query parameters of one request, by name. The last of repeated values counts. Raises
    RequestError if there are too many parameters."""

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
        """Returns all values of a parameter, in order."""
        return self._values.get(name, ())

    def text(self, name: str) -> str | None:
        """Returns the last value of a parameter; None = absent."""
        return self._values.get(name, [None])[-1]

    def flag(self, name: str) -> bool:
        """Returns a boolean parameter, also in the spellings of Python and vLLM's clients. Raises
        InvalidField if the value is not a boolean."""
        return self._choice(name, _FLAGS, default=False)

    def number(self, name: str, low: int, high: int = _MAX_NUMBER) -> int | None:
        """Returns an integer parameter; None = absent. Raises InvalidField if the value is not an
        integer or out of range."""
        text = self.text(name)
        if text is None:
            return None
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 17 else -1
        if not low <= number <= high:
            raise wrong(name, f"an integer from {low} to {high}", text)
        return number

    def page(self, *, usual: int = _USUAL_LIMIT, most: int = _MAX_LIMIT) -> Page:
        """Reads `limit`, `order` and `after`. Raises InvalidField if a parameter is invalid.

        Args:
            usual: the default of `limit`.
            most: the maximum of `limit`.
        """
        limit = self.number("limit", 1, most)
        ascending = self._choice("order", {"asc": True, "desc": False}, default=False)
        return Page(usual if limit is None else limit, ascending, self.text("after"))

    def _choice(self, name: str, values: Mapping[str, T], *, default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        if text not in values:
            raise wrong(name, f"one of {', '.join(values)}", text)
        return values[text]


_VERSIONS: Final = frozenset(
    segment
    for dialect in DIALECTS
    for prefix in dialect.prefixes
    for segment in prefix[1:].split("/")
)
_HEADS: Final = _VERSIONS | {"models"}
"""The first segments of paths whose spelling is corrected. Others, such as /metrics, are not: a
proxy may have access rules for them, which another spelling must not bypass."""

_UNTIDY: Final = re.compile(r"//|./$|^/(?:v3/)?(v[13])/\1(?:/|$)")
_MAX_FOREIGN: Final = 2
"""The maximum number of leading segments of other servers' paths, such as `/openai` or `/api`."""


class ApiPaths:
    """Implements `routing.PathReader` for the paths of both dialects."""

    def tidy(self, raw_path: str) -> str:
        """Returns the normalized path: single slashes, no trailing slash, and the version once.
        `//v1/models/` and `/v1/v1/models` become `/v1/models`."""
        if not _UNTIDY.search(raw_path):
            return raw_path
        segments = _segments(raw_path)
        if not segments or segments[0] not in _HEADS:
            return raw_path
        versions = list(takewhile(_VERSIONS.__contains__, segments))
        once = [version for version, _ in groupby(versions)]
        return "/" + "/".join([*once, *segments[len(versions) :]])

    def advice(self, raw_path: str, root: str, exists: Callable[[str], bool]) -> str:
        segments = _segments(raw_path)
        if segments[:3] == ["v1", "messages", "batches"]:
            return (
                ": batches in Anthropic's format are not supported; use POST /v1/batches with a "
                'file whose lines have the url "/v1/messages"'
            )
        for start in range(min(len(segments), _MAX_FOREIGN + 1)):
            for prefix in OPENAI.prefixes:
                meant = "/".join([prefix, *segments[start:]])
                if exists(meant):
                    return f"; did you mean {root}{meant}? The base URL ends in {root}{prefix}"
        return ""


def _segments(raw_path: str) -> list[str]:
    return [segment for segment in raw_path.split("/") if segment]


class HasId(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str: ...


Record = TypeVar("Record", bound=HasId)


class ListPage(AnswerSchema, Generic[T], kw_only=True):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: Sequence[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def list_page(
    records: Sequence[Record], page: Page, describe: Callable[[Record], T]
) -> ListPage[T]:
    """Returns one page of records. Raises InvalidField if `after` is not the id of a record.

    Args:
        records: all records, oldest first.
        describe: returns the object of a record; called only for the records of the page.
    """
    ordered = records if page.ascending else records[::-1]
    start = 0
    if page.after is not None:
        ids = [found.id for found in ordered]
        if page.after not in ids:
            raise InvalidField(f"after: {show(page.after)} is not in the list", param="after")
        start = ids.index(page.after) + 1
    shown = ordered[start : start + page.limit]
    return ListPage(
        data=[describe(record) for record in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=start + page.limit < len(ordered),
    )


_MAX_KEYS: Final = 16
_MAX_KEY: Final = 64
_MAX_VALUE: Final = 512


def read_metadata(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns `metadata` after checking it. Raises InvalidField if it exceeds OpenAI's limits."""
    metadata = dict(given or {})
    if len(metadata) > _MAX_KEYS:
        raise InvalidField.about(
            "metadata", f"must have at most {_MAX_KEYS} keys, not {len(metadata)}"
        )
    for key, value in metadata.items():
        name = f"metadata.{key[:_MAX_KEY]}"
        if len(key) > _MAX_KEY:
            raise InvalidField(
                f"metadata: a key must have at most {_MAX_KEY} characters, not {len(key)}",
                param="metadata",
            )
        if not isinstance(value, str) or len(value) > _MAX_VALUE:
            raise wrong(name, f"a string of at most {_MAX_VALUE} characters", value)
    return metadata


MAX_ID: Final = 256
"""The maximum number of characters of an id."""


def check_id(text: str, name: str) -> str:
    """Returns the id after checking it. Raises InvalidField if the id has characters that are not
    safe in paths, headers or logs."""
    if not is_id(text, MAX_ID):
        raise InvalidField.about(
            name, f"must have 1 to {MAX_ID} visible ASCII characters, not {show(text)}"
        )
    return text


_MAX_LENGTH: Final = 1000
_CODE: Final = "299"
"""A persistent warning about anything (RFC 7234, 5.5.7)."""


def warning_headers(warnings: Sequence[str], request: Request) -> HeaderPairs:
    """Returns a header with the warnings and those of the request, if there are any. Logs
    `warnings`; the request's own are already in the log."""
    if warnings:
        logger.warning("request %s: %s", request.id, "; ".join(warnings)[:_MAX_LENGTH])
    text = "; ".join((*warnings, *request.warnings))[:_MAX_LENGTH]
    if not text:
        return ()
    quoted = text.replace("\\", "").replace('"', "'")
    return (("Warning", f'{_CODE} - "{quoted}"'),)
