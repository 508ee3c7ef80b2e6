"""Renders templates in another process, which may die."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

from fastovms.backends.processes import ChildProcess
from fastovms.errors import BackendUnavailable
from fastovms.text.budget import FULL, Budget, LimitExceeded, Limits

MAX_MEMORY: Final = 2**30
"""Bytes of address space that the process may have beyond what it has when it is ready."""

_MARGIN: Final = 5.0
"""Seconds beyond its limit in which the process must end."""


class Asked(NamedTuple):
    """A template to render, and what that may take."""

    source: str
    variables: Mapping[str, Any]
    limits: Limits


class Answer(NamedTuple):
    """The end of a rendering.

    Attributes:
        text: the prompt, or the text of the error.
        error: its class; None = there is none.
        left: the rest of the limits.
        is_last: whether the process ends, because it has grown.
    """

    text: str
    error: type[TemplateError] | None
    left: Limits
    is_last: bool


class TemplateRenderer:
    """Renders templates in a process, which is started when it is needed. One thread renders, any
    thread may call `close`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: ChildProcess | None = None
        self._is_closed = False

    def render(self, source: str, variables: Mapping[str, Any], budget: Budget) -> str:
        """Renders a template; see `fastovms.text.budget.OutsideRenderer`. Raises
        BackendUnavailable if no process can be started, or the server is shutting down."""
        limits = Limits(budget.passes, budget.chars, budget.seconds)
        if limits.seconds <= 0:
            raise too_much()
        child = self._started()
        try:
            answer = self._answer(child, Asked(source, variables, limits), budget)
        except BaseException:  # its next answer would be that to this template
            self._end(child)
            raise
        budget.passes, budget.chars, budget.seconds = answer.left
        if answer.is_last:
            self._end(child)
        if answer.error is not None:
            raise answer.error(answer.text)
        return answer.text

    def close(self) -> None:
        """Ends the process. A rendering then fails, and later ones are refused."""
        with self._lock:
            self._is_closed = True
            child = self._child
        if child is not None:
            child.kill()
            child.wait()

    def _answer(self, child: ChildProcess, asked: Asked, budget: Budget) -> Answer:
        try:
            child.connection.send(asked)
            if child.connection.poll(10 * asked.limits.seconds + _MARGIN):
                answer: Answer = child.connection.recv()
                return answer
        except (EOFError, ConnectionError):
            pass  # the process has ended at a limit
        budget.seconds = 0.0
        self._check_open()
        raise too_much()

    def _started(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            if self._child is None:
                try:
                    self._child = ChildProcess("fastovms.backends.template_process")
                except OSError as error:
                    raise BackendUnavailable(
                        f"no template can be rendered now: {error.strerror or error}"
                    ) from error
            return self._child

    def _end(self, child: ChildProcess) -> None:
        with self._lock:
            self._child = None
        child.kill()
        child.connection.close()
        child.wait()

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(
                "no template is rendered any more: the server is shutting down"
            )


def too_much() -> LimitExceeded:
    """Returns the error for a template whose process ended at a limit."""
    return LimitExceeded(
        f"takes more than {FULL.seconds:g} seconds, or than {MAX_MEMORY // 2**20} MiB of memory"
    )
