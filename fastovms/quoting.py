"""Makes clients' text safe for error messages and logs, shortens it, and checks ids."""

from __future__ import annotations

import json
from typing import Final

MAX_QUOTED: Final = 2000
"""The maximum number of characters of a message that quotes a client."""


def quotable(text: str) -> str:
    """Returns the text cut to `MAX_QUOTED` characters, with lone surrogates escaped: UTF-8 cannot
    encode them (RFC 3629, 3)."""
    if len(text) > MAX_QUOTED:
        text = f"{text[: MAX_QUOTED - 3]}..."
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """Returns the text with line separators, terminal controls, direction controls and lone
    surrogates as JSON escapes. JSON text keeps its meaning."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def is_id(text: str, max_length: int) -> bool:
    """Returns whether the text has 1 to `max_length` visible ASCII characters (VCHAR of RFC 5234,
    B.1), which are valid in a header, a log line and a path."""
    return 0 < len(text) <= max_length and text.isascii() and text.isprintable() and " " not in text


MAX_ADAPTER_NAME: Final = 256
MAX_ADAPTER_PATH: Final = 4096
"""The maximum number of characters of an adapter's name and of its path."""


def fault_of_text(value: str, most: int) -> str | None:
    """Returns the rule that an adapter's name or path violates, for a message; None = valid.

    Args:
        most: the maximum number of characters.
    """
    if not value.strip():
        return "must not be empty"
    if len(value) > most or not value.isprintable():
        return f"must be at most {most} printable characters"
    return None
