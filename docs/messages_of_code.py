"""Collects the messages of the package that a person who starts a server may read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "fastovms"

_HOLE: Final = "…"
"""Stands for what a message says of the case at hand."""

_AFTER_THE_START: Final = (
    "api/",
    "http/protocol.py",
    "http/websocket.py",
    "http/wire.py",
    "parts/adapters/endpoints.py",
    "parts/batches/runner.py",
    "parts/responses/",
)
"""Modules whose warnings concern requests, not the start."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the package.

    Attributes:
        module: the file, below the package.
        text: the message, with "…" for what differs from case to case.
        is_error: an error ends the command; otherwise it is a warning in the log.
    """

    module: str
    text: str
    is_error: bool


def messages() -> list[Message]:
    """Returns the messages of `ConfigurationError` and the warnings at start, each once."""
    found: dict[tuple[str, str], Message] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            is_error = isinstance(node.func, ast.Name) and node.func.id == "ConfigurationError"
            if is_error or (_is_warning(node) and not module.startswith(_AFTER_THE_START)):
                for text in _texts(node.args[0]):
                    if _num_words(text) >= 2:
                        found.setdefault((module, text), Message(module, text, is_error))
    return list(found.values())


def _is_warning(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "warning"
        and "log" in ast.unparse(function.value).lower()
    )


def _texts(node: ast.expr) -> Iterator[str]:
    """Yields the texts that a Python expression may have."""
    match node:
        case ast.Constant(value=str(text)):
            yield _with_holes(text)
        case ast.JoinedStr(values=parts):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else _HOLE for part in parts
            )
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body)
            yield from _texts(other)
        case ast.BinOp(op=ast.Mod(), left=left):
            yield from _texts(left)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from (
                first + second
                for first in list(_texts(left)) or [_HOLE]
                for second in list(_texts(right)) or [_HOLE]
            )


def _with_holes(text: str) -> str:
    """Returns the format of a log message with its conversions as holes."""
    for conversion in ("%s", "%d", "%g", "%r"):
        text = text.replace(conversion, _HOLE)
    return text


def _num_words(text: str) -> int:
    return sum(any(map(str.isalpha, word)) for word in text.replace(_HOLE, " ").split())
