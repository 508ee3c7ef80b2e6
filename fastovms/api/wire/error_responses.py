"""Turns exceptions into responses, in each dialect's form: the status, `code`, `param`, and the
header `Retry-After`."""

from __future__ import annotations

import logging
import math
from typing import Final

from fastovms.api.wire.dialect import Dialect, dialect_of
from fastovms.api.wire.error_forms import ToldError
from fastovms.errors import (
    BackendError,
    BackendUnavailable,
    InvalidField,
    MalformedBody,
    ModelNotFound,
    NotFound,
    Overloaded,
    RequestError,
)
from fastovms.http.routing.messages import Request, Response

logger = logging.getLogger(__name__)

LogFields = tuple[tuple[str, object], ...]
"""Names and values for the access log."""

_MAX_LOGGED: Final = 300
"""Characters of an error's message that the access log repeats."""


def model_not_found(name: str, dialect: Dialect) -> ModelNotFound:
    return ModelNotFound(
        dialect.unknown_model.format(name[:200]), param="model", code="model_not_found"
    )


def error_response(error: Exception, dialect: Dialect, request_id: str = "") -> Response:
    """Returns the answer to a request that ended with `error`."""
    status = _status(error, dialect)
    headers: tuple[tuple[str, str], ...] = ()
    if status in (429, 503):
        seconds = 1.0
        if isinstance(error, (Overloaded, BackendUnavailable)):
            seconds = error.retry_after
        headers = (("Retry-After", str(max(1, math.ceil(seconds)))),)
    return Response(
        status,
        error_body(error, dialect, request_id),
        headers=headers,
        log_fields=log_fields_of(error),
    )


def log_fields_of(error: Exception) -> LogFields:
    """Returns what the access log tells of an error that ends a stream."""
    return _log_fields(*_words(error))


def error_body(error: Exception, dialect: Dialect, request_id: str = "") -> bytes:
    """Returns the JSON that tells of `error`."""
    told = ToldError(_status(error, dialect), *describe(error), request_id)
    return dialect.error_form.body(told)


def last_frames(error: Exception, dialect: Dialect, request_id: str = "") -> bytes:
    """Returns what ends a stream that had begun, and cannot go on for `error`."""
    return dialect.error_form.last_frames(error_body(error, dialect, request_id))


def describe(error: Exception) -> tuple[str, str | None, str | None]:
    """Returns the message, the field at fault and the reason's code that a client is told.
    Unexpected errors are logged here, and tell it nothing about the server's insides."""
    if not isinstance(error, (RequestError, BackendError)):
        logger.error("request failed", exc_info=error)
    return _words(error)


def render_error(request: Request, status: int, message: str) -> Response:
    """Returns the answer to an error of the HTTP layer itself (no such route, body too large,
    ...)."""
    told = ToldError(status, message, request_id=request.id)
    body = dialect_of(request.path).error_form.body(told)
    return Response(status, body, log_fields=_log_fields(message, None, None))


def _status(error: Exception, dialect: Dialect) -> int:
    match error:
        case MalformedBody():
            return dialect.malformed_body_status
        case InvalidField() if error.param in dialect.body_level_fields:
            return dialect.malformed_body_status
        case NotFound():
            return 404
        case RequestError():
            return 400
        case Overloaded():
            return 429
        case BackendUnavailable():
            return 503
    return 500


def _words(error: Exception) -> tuple[str, str | None, str | None]:
    if isinstance(error, RequestError):
        return error.message, error.param, error.code
    return str(error) if isinstance(error, BackendError) else "internal server error", None, None


def _log_fields(message: str, param: str | None, code: str | None) -> LogFields:
    fields = {"param": param, "code": code, "error": message}
    return tuple((name, value[:_MAX_LOGGED]) for name, value in fields.items() if value is not None)
