"""A process that renders clients' chat templates, and slow renderings of the models' own templates.

A template may use any amount of time and memory; its limits affect only this process.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, Final

from jinja2 import Template, TemplateError

from fastovms.backends.processes import (
    NICENESS,
    discard_stderr,
    limit_growth,
    limit_time,
    max_resident,
)
from fastovms.backends.template_renderer import MAX_MEMORY, Answer, RenderTask, limit_error
from fastovms.text.budget import Budget, LimitExceeded, Limits, Malformed
from fastovms.text.sandbox import Sandbox, make_environment

_MAX_GROWTH: Final = 128 * 2**20
"""The growth in bytes after which the process is replaced."""

_MAX_COMPILED: Final = 8
_MAX_REASON: Final = 1000


class _Renderer:
    """Renders templates in this process."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)

    def answer(self, asked: RenderTask) -> Answer:
        """Renders one template."""
        begin = time.process_time()
        error: type[TemplateError] | None = None
        with self._budget.of(asked.limits):
            try:
                environment, template = self._compiled(asked.source)
                text = environment.render(template, asked.variables)
            except (LimitExceeded, Malformed) as fault:
                text, error = str(fault), type(fault)
            except MemoryError:
                text, error = str(limit_error()), LimitExceeded
            except Exception as fault:  # the code of a template may raise any exception
                text, error = str(fault)[:_MAX_REASON] or type(fault).__name__, TemplateError
            passes, chars = max(0, self._budget.passes), max(0, self._budget.chars)
        seconds = asked.limits.seconds - (time.process_time() - begin)
        return Answer(text, error, Limits(passes, chars, seconds), is_last=False)

    def _compile(self, source: str) -> tuple[Sandbox, Template]:
        environment = make_environment(self._budget, datetime.now)
        try:
            return environment, environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # Jinja's compiler may raise any exception
            raise Malformed(str(error)[:_MAX_REASON] or type(error).__name__) from error


def serve(connection: Connection[Any, Any]) -> None:
    """Renders templates until the connection ends, or the process has grown too much."""
    limit_growth(MAX_MEMORY)
    discard_stderr()  # messages of the interpreter may contain a client's text
    os.nice(NICENESS)
    renderer, most = _Renderer(), max_resident() + _MAX_GROWTH
    is_last = False
    while not is_last:
        asked: RenderTask = connection.recv()
        limit_time(asked.limits.seconds)
        answer = renderer.answer(asked)
        limit_time(0)
        is_last = max_resident() > most
        connection.send(answer._replace(is_last=is_last))
