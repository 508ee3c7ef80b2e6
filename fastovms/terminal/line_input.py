"""Reads what a user types, with the history and the keys that readline has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

_QUOTES: Final = '"""'
"""What begins and ends a text of several lines."""

ReadLine = Callable[[str], str]
"""Shows a prompt and returns a line. Raises EOFError at the end of input, KeyboardInterrupt for
Ctrl-C."""


def terminal_line(prompt: str) -> str:
    """Reads a line of the terminal."""
    with contextlib.suppress(ImportError):  # Python without it reads lines all the same
        import readline  # noqa: F401  (`input` uses it once it is imported)
    try:
        return input(prompt)
    except KeyboardInterrupt:
        print()  # the next prompt goes to a line of its own
        raise


def read_text(read_line: ReadLine, prompt: str) -> str | None:
    """Returns a line, or what stands between three quotes, without them; Ctrl-C drops what was
    typed. None = the user ends the chat."""
    try:
        text = read_line(prompt)
        if not text.startswith(_QUOTES):
            return text.strip()
        lines = [text.removeprefix(_QUOTES)]
        while not lines[-1].endswith(_QUOTES):
            lines.append(read_line("... "))
        lines[-1] = lines[-1].removesuffix(_QUOTES)
        return "\n".join(lines).strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        return ""
