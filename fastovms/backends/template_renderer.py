"""Renders templates in another process, which may die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

from fastovms.backends.processes import ChildProcess, ProcessPool
from fastovms.text.budget import FULL, Budget, LimitExceeded, Limits

MAX_MEMORY: Final = 2**30
"""Bytes of address space that the process may have beyond what it has when it is ready."""

_PROCESS: Final = "fastovms.backends.template_process"
_MARGIN: Final = 5.0
"""Seconds beyond its limit in which the process must end."""


class RenderTask(NamedTuple):
    """A template to render, and what that may take."""

    source: str
    variables: Mapping[str, Any]
    limits: Limits


class Answer(NamedTuple):
    """The end of a rendering.

    Attributes:
        text: the prompt, or the text of the error.
        error: the class of the error; None = no error.
        left: the rest of the limits.
        is_last: whether the process ends, because it has grown.
    """

    text: str
    error: type[TemplateError] | None
    left: Limits
    is_last: bool


class TemplateRenderer(ProcessPool):
    """Renders templates in a process, which is started when it is needed. One thread renders, any
    thread may call `close`."""

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
