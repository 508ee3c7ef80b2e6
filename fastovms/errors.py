"""Declares exceptions by their meaning. The form of each on the wire is decided in `api`, per
dialect."""

from __future__ import annotations

import errno
from typing import Final

from fastovms.quoting import one_line, quotable

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""The code of the error about what the model's context has no room for."""


class FastovmsError(Exception):
    """The base of every error that is raised on purpose."""


class ConfigurationError(FastovmsError):
    """The operator asked for something that cannot be started (flags, model files, ports)."""


class UnsupportedModel(ConfigurationError):
    """The paged engine cannot run a model of this form."""


class RequestError(FastovmsError):
    """The client's request is invalid.

    The message and the parameter may repeat what the client wrote; `quotable` makes them safe.

    Attributes:
        param: name of the offending field (`"stop[1]"`), or None if it is not a single field.
        code: machine-readable reason (`"context_length_exceeded"`), or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = quotable(message)
        super().__init__(self.message)
        self.param = None if param is None else quotable(param)
        self.code = code


class MalformedBody(RequestError):
    """The body is not the JSON object that every endpoint expects, regardless of its fields."""


class InvalidField(RequestError):
    """A field has a wrong type or a value outside its range."""

    @classmethod
    def about(cls, name: str, words: str) -> InvalidField:
        """Returns the error whose message is the field's name followed by `words`."""
        return InvalidField(f"{name} {words}", param=name)


class SchemaRefused(InvalidField):
    """A schema or another grammar that cannot be enforced.

    Attributes:
        reason: the fault of the value.
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
        """Returns the error with the client's name of the field, `param`, and with `words` for it
        in the message."""
        before, after = self._around
        return InvalidField(f"{before}{words}{after}", param=param)


class NotFound(RequestError):
    """The object that the request names does not exist, or belongs to another tenant."""


class ModelNotFound(NotFound):
    """The named model is not served here."""


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
    """The backend is loading, draining or closed. `retry_after` is in seconds."""

    def __init__(self, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerClosing(BackendUnavailable):
    """The server shuts down: another process may answer."""


class StateFailed(BackendUnavailable):
    """The stored data of earlier requests cannot be read or written."""


class StateNotLoaded(StateFailed):
    """An object was not found, and may be in stored data that cannot be read yet."""


class EngineFailed(BackendError):
    """Inference failed; the request's work is lost."""


class BrokenLogits(EngineFailed):
    """The model gave a request logits that are NaN or infinite, from which nothing is sampled."""

    def __init__(self) -> None:
        super().__init__("the model gave logits that are not numbers (NaN or infinite)")


_MAX_REASON: Final = 300


class RequestFailed(FastovmsError):
    """A request to a server has failed.

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
"""Reasons for which a system call fails, by the number of the error."""

_NO_THREAD: Final = "can't start new thread"


def shortage_of(error: BaseException | None) -> BackendUnavailable | None:
    """Returns the error for a client whose request failed because the process or the machine has
    too few descriptors, threads, processes or too little memory; None = another error."""
    reason = ""
    if isinstance(error, MemoryError):
        reason = "too little memory"
    elif isinstance(error, OSError):
        reason = _SHORTAGES.get(error.errno or 0, "")
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        reason = "too many threads"
    return BackendUnavailable(f"the server has {reason}: retry later") if reason else None


def description_of(error: Exception) -> str:
    """Returns the message that a client receives about an error that ended its request. For a
    FastovmsError that is its own message; other errors are not described in detail."""
    return str(error) if isinstance(error, FastovmsError) else f"{type(error).__name__}: {error}"
