"""Puts checksums behind texts: SQLite has none of its own, and what a disk has changed must not
pass for what was kept."""

from __future__ import annotations

import zlib
from typing import Final, overload

from fastovms.errors import StateFailed

LENGTH: Final = 4
"""How many bytes a seal adds to a text."""


@overload
def seal(text: bytes) -> bytes: ...
@overload
def seal(text: None) -> None: ...
def seal(text: bytes | None) -> bytes | None:
    """Returns the text with its CRC-32 behind it; None stays None."""
    return None if text is None else text + zlib.crc32(text).to_bytes(LENGTH, "little")


def unseal(sealed: bytes) -> bytes:
    """Returns the text without its seal.

    Raises:
        StateFailed: it is not the text that was sealed. Others may be, so that the file is still of
            use.
    """
    text = sealed[:-LENGTH]
    if seal(text) != sealed:
        raise StateFailed("what was kept is damaged: it has not the checksum that it had")
    return text
