"""Limits on the cost of rendering templates for a request, and the errors when they are
exceeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from typing import Any, Final, NamedTuple, NoReturn

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError


class Limits(NamedTuple):
    """The limits of all renderings of one request.

    Attributes:
        passes: iterations of loops and runs of macros and blocks; a long operation counts as
            several.
        chars: the characters of all created strings; eight for each item of a list.
        seconds: the CPU time in a process for templates.
    """

    passes: int
    chars: int
    seconds: float = 0.0


FULL: Final = Limits(10_000_000, 1_000_000_000, 5.0)
"""The limits of a request. Some templates iterate over all messages for each message."""


class LimitExceeded(SecurityError):
    """A template exceeds a limit. The message continues "the template", such as "makes ..."."""


class NeedsProcess(Exception):
    """A rendering exceeds the limits of this process, or its template is a client's. The work must
    be restarted in a process for templates."""


class Malformed(TemplateError):
    """A template cannot be compiled."""


OutsideRenderer = Callable[[str, Mapping[str, Any], "Budget"], str]
"""Renders a template in another process, given its source, its variables and the budget to spend.
Raises Malformed if the template cannot be compiled, LimitExceeded if the rendering exceeds a limit,
and TemplateError if the template refuses the variables."""


class Budget(local):
    """The remaining budget for the renderings of one request. Each thread has its own.

    Attributes:
        outside: renders in another process; None = templates are rendered here.
    """

    def __init__(self) -> None:
        self.passes = self.chars = 0
        self.seconds = 0.0
        self.outside: OutsideRenderer | None = None
        self._is_set = self._is_small = False

    @contextmanager
    def of(
        self, limits: Limits, *, outside: OutsideRenderer | None = None, is_small: bool = False
    ) -> Iterator[None]:
        """Sets the limits for the duration of the context, unless an outer context has done so.
        `is_small`: a process for templates may spend more."""
        if self._is_set:
            yield
            return
        self.passes, self.chars, self.seconds = limits
        self.outside, self._is_set, self._is_small = outside, True, is_small
        try:
            yield
        finally:
            self.outside, self._is_set = None, False
            self.passes = self.chars = 0

    def spend(self, passes: int, chars: int) -> None:
        """Spends a part of the budget. Raises NeedsProcess if this process may not spend so much,
        and LimitExceeded if the request may not."""
        self.passes -= passes
        self.chars -= chars
        if self.passes < 0 or self.chars < 0:
            self.refuse(chars)

    def refuse(self, chars: int = 0) -> NoReturn:
        """Raises the error for an exhausted budget."""
        if self._is_small and chars <= FULL.chars:
            raise NeedsProcess
        if self.passes < 0:
            raise LimitExceeded(f"takes more than {FULL.passes} operations")
        raise LimitExceeded(f"makes more than {FULL.chars} characters of text")
