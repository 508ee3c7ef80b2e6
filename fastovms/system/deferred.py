"""Functions whose modules are imported at the first call, because many servers never call them."""

from __future__ import annotations

import sys
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


def leave_out_converter() -> None:
    """Has `import openvino` leave out its converter of models, which no code here uses. Importing
    it takes longer than the rest, and reports the use of OpenVINO to Intel over the network, unless
    the user has declined that (openvino_telemetry)."""
    sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
