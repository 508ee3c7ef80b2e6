"""Splits texts into sentences, which are spoken one at a time."""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 300
"""The maximum characters that are spoken at once. SpeechT5 supports 600 tokens, Kokoro 510
phonemes."""

_SHORTEST: Final = 24
"""The minimum characters of a sentence; shorter ones such as "Mr." are joined with the next one."""

_ENDS: Final = re.compile(
    r"""(?<=[.!?\u2026])["'\u201d\u2019)\]\u00bb]*\s+|\n+|(?<=[\u3002\uff01\uff1f\u0964])"""
)
"""The end of a sentence: its punctuation, closing quotes and white space, or the end of a line."""

_LONG_NUMBER: Final = re.compile(r"[0-9](?:,*[0-9]){12,}")
"""Matches numbers of a trillion or more."""

_PAUSES: Final = re.compile(r"(?<=[,;:])\s+|(?<=[\u060c\u3001\uff0c\uff1b])|\s+[-\u2013\u2014]\s+")


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, with at most `MAX_CHARS` characters each. Longer sentences
    are split at commas or spaces."""
    return _joined(_split(text, _ENDS), _SHORTEST)


def readable(text: str, language: str) -> str:
    """Returns a text without parts that crash the conversion to phonemes: English numbers from two
    trillion on become words or digits, and Hindi plus signs become words."""
    if language == "hi":
        return text.replace("+", " \u092a\u094d\u0932\u0938 ")
    return _LONG_NUMBER.sub(_in_words, text) if language.startswith("en") else text


def _in_words(number: re.Match[str]) -> str:
    digits = number[0].replace(",", "")
    head, rest = digits[:-12], int(digits[-12:])
    if len(head) > 3 or digits[0] == "0":
        return " ".join(digits)
    return f"{head} trillion {rest or ''}".rstrip()


def _split(text: str, marks: re.Pattern[str]) -> list[str]:
    pieces: list[str] = []
    start = 0
    for mark in marks.finditer(text):
        pieces += _fitting(text[start : mark.end()], marks)
        start = mark.end()
    return pieces + _fitting(text[start:], marks)


def _fitting(piece: str, marks: re.Pattern[str]) -> list[str]:
    """Returns a piece, split into several if it is too long."""
    piece = piece.strip()
    if len(piece) <= MAX_CHARS:
        return [piece] if piece else []
    if marks is _ENDS:
        return _joined(_split(piece, _PAUSES), MAX_CHARS)
    found = []
    while len(piece) > MAX_CHARS:
        space = piece.rfind(" ", 1, MAX_CHARS)
        end = space if space > 0 else MAX_CHARS
        found.append(piece[:end].strip())
        piece = piece[end:].strip()
    return [*found, piece]


def _joined(pieces: list[str], wanted: int) -> list[str]:
    """Joins pieces shorter than `wanted` characters with the following ones, up to `MAX_CHARS`."""
    found: list[str] = []
    for piece in pieces:
        if found and len(found[-1]) < wanted and len(found[-1]) + len(piece) < MAX_CHARS:
            found[-1] += f" {piece}"
        else:
            found.append(piece)
    return found
