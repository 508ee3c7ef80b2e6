"""Functions whose modules are imported at the first call, because many servers never call them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Deferred(Generic[P, R]):
    """A function of a module that is imported at the first call.

    Args:
        where: "module:function" below `fastovms`.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._function: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._function is None:
            module, _, name = self.where.partition(":")
            self._function = getattr(import_module(f"fastovms.{module}"), name)
        return self._function(*args, **kwargs)
