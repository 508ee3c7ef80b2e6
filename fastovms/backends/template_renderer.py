"""Renders templates in another process, which may be killed at its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

from fastovms.backends.processes import ChildProcess, ProcessPool
from fastovms.text.budget import FULL, Budget, LimitExceeded, Limits

MAX_MEMORY: Final = 2**30
"""The address space in bytes that the process may use beyond its initial size."""

_PROCESS: Final = "fastovms.backends.template_process"
_MARGIN: Final = 5.0
"""Seconds beyond the time limit until the process is given up."""


class RenderTask(NamedTuple):
    """A template to render, with its variables and limits."""

    source: str
    variables: Mapping[str, Any]
    limits: Limits


class Answer(NamedTuple):
    """The result of a rendering.

    Attributes:
        text: the prompt, or the error message.
        error: the class of the error; None = no error.
        left: the unused part of the limits.
        is_last: whether the process ends now, because it has grown too much.
    """

    text: str
    error: type[TemplateError] | None
    left: Limits
    is_last: bool


class TemplateRenderer(ProcessPool):
    """Renders templates in a process that is started when needed. One thread renders; any thread
    may call `close`."""

    def __init__(self, start: Callable[[], ChildProcess] | None = None) -> None:
        super().__init__(("template", "rendered"), start or partial(ChildProcess, _PROCESS))

    def render(self, source: str, variables: Mapping[str, Any], budget: Budget) -> str:
        """Renders a template; see `fastovms.text.budget.OutsideRenderer`. Raises
        BackendUnavailable if no process can be started, or the server is shutting down."""
        limits = Limits(budget.passes, budget.chars, budget.seconds)
        if limits.seconds <= 0:
            raise limit_error()
        try:
            with self.process() as child:
                child.connection.send(RenderTask(source, variables, limits))
                if not child.connection.poll(10 * limits.seconds + _MARGIN):
                    raise EOFError
                answer: Answer = child.connection.recv()
                child.is_last = answer.is_last
        except (EOFError, ConnectionError):  # the process has ended at a limit
            budget.seconds = 0.0
            raise limit_error() from None
        budget.passes, budget.chars, budget.seconds = answer.left
        if answer.error is not None:
            raise answer.error(answer.text)
        return answer.text


def limit_error() -> LimitExceeded:
    """Returns the error for a template whose process ended at a limit."""
    return LimitExceeded(
        f"takes more than {FULL.seconds:g} seconds, or than {MAX_MEMORY // 2**20} MiB of memory"
    )
