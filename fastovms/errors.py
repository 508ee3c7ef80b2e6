"""Declares exceptions by their meaning. `api` decides how each is sent to clients, per dialect."""

from __future__ import annotations

import errno
from typing import Final

from fastovms.quoting import one_line, quotable

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""The error code for a prompt that exceeds the model's context."""


class FastovmsError(Exception):
    """The base class of all errors that this package raises deliberately."""


class ConfigurationError(FastovmsError):
    """The operator's configuration cannot be used (flags, model files, ports)."""


class UnsupportedModel(ConfigurationError):
    """The paged engine does not support this model."""


class RequestError(FastovmsError):
    """The client's request is invalid.

    The message and the parameter may repeat client text; `quotable` makes them safe.

    Attributes:
        param: name of the invalid field (`"stop[1]"`); None = not a single field.
        code: machine-readable reason (`"context_length_exceeded"`); None = none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = quotable(message)
        super().__init__(self.message)
        self.param = None if param is None else quotable(param)
        self.code = code


class MalformedBody(RequestError):
    """The body is not a JSON object, which every endpoint expects."""


class InvalidField(RequestError):
    """A field has a wrong type or a value outside its range."""

    @classmethod
    def about(cls, name: str, words: str) -> InvalidField:
        """Returns an error whose message is the field's name followed by `words`."""
        return InvalidField(f"{name} {words}", param=name)


class SchemaRefused(InvalidField):
    """A JSON schema or other grammar that cannot be enforced.

    Attributes:
        reason: what is wrong with it.
    """

    reason = ""


class FieldFault(InvalidField):
    """An invalid field that may have a different name in the client's request.

    Attributes:
        field: its name in `SamplingParams`, or among the arguments of a chat template.
    """

    def __init__(self, field: str, after: str, *, before: str = "") -> None:
        """Creates an error whose message is the field's name with the text before and after it."""
        super().__init__(f"{before}{field}{after}", param=field)
        self.field = field
        self._around = before, after

    def named(self, param: str, words: str) -> InvalidField:
        """Returns the error for the client: `param` is the client's name of the field, and `words`
        stand for the field in the message."""
        before, after = self._around
        return InvalidField(f"{before}{words}{after}", param=param)


class NotFound(RequestError):
    """An object in the request does not exist, or belongs to another tenant."""


class ModelNotFound(NotFound):
    """The requested model is not served here."""


class TooLarge(RequestError):
    """The data to store for this request would exceed the limit for all requests together."""


class BackendError(FastovmsError):
    """The request is valid but cannot be run now."""

    def __init__(self, message: str = "") -> None:
        super().__init__(quotable(message))


class Overloaded(BackendError):
    """Too many requests are waiting. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """A limit of the request's API key is reached."""


class BackendUnavailable(BackendError):
    """The backend is loading, shutting down or closed. `retry_after` is in seconds."""

    def __init__(self, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerClosing(BackendUnavailable):
    """The server is shutting down: another process may answer."""


class StateFailed(BackendUnavailable):
    """The stored data of earlier requests cannot be read or written."""


class StateNotLoaded(StateFailed):
    """An object was not found, but may be in stored data that cannot be read yet."""


class EngineFailed(BackendError):
    """Inference failed; the request's work is lost."""


class BrokenLogits(EngineFailed):
    """The model's logits for a request are NaN or infinite, so no token can be sampled."""

    def __init__(self) -> None:
        super().__init__("the model gave logits that are not numbers (NaN or infinite)")


_MAX_REASON: Final = 300


class RequestFailed(FastovmsError):
    """A request that this program sent to a server has failed.

    Attributes:
        kind: the category for counting, such as "HTTP 429" or "connection closed".
        reason: the message of the server or the system, in one line.
    """

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        self.reason = one_line(" ".join(reason[: 4 * _MAX_REASON].split())[:_MAX_REASON])
        super().__init__(f"{kind}: {self.reason}" if self.reason else kind)


_SHORTAGES: Final = {
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.ENOMEM: "too little memory",
    errno.ENOBUFS: "too little memory",
    errno.EAGAIN: "too many processes",
}
"""The resource that is exhausted, by the errno of a failed system call."""

_NO_THREAD: Final = "can't start new thread"


def shortage_of(error: BaseException | None) -> BackendUnavailable | None:
    """Returns the error for a client whose request failed because the process or the machine has no
    descriptors, threads, processes or memory left; None = another cause."""
    reason = ""
    if isinstance(error, MemoryError):
        reason = "too little memory"
    elif isinstance(error, OSError):
        reason = _SHORTAGES.get(error.errno or 0, "")
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        reason = "too many threads"
    return BackendUnavailable(f"the server has {reason}: retry later") if reason else None


def description_of(error: Exception) -> str:
    """Returns the message for a client whose request was ended by an error: a FastovmsError's own
    message; for other errors a text without details."""
    return str(error) if isinstance(error, FastovmsError) else f"{type(error).__name__}: {error}"
