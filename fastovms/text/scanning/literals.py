"""Reads values in the notation of a model, and passes them on as JSON meanwhile.

What has been passed on can always become valid JSON. Reading stops before the first character that
the notation does not have there, which is then next to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastovms.text.scanning.scanner import Emit, Incremental, Scanner

_SPACE = re.compile(r"[ \t\n\r]+")
_WORD = re.compile(r"[-+.\w]+", re.ASCII)

Copy = Callable[[Scanner, Emit], Incremental[bool]]
"""Passes something on as JSON; returns False if what comes next is not it, or not whole."""


@dataclass(frozen=True, slots=True)
class Notation:
    """How a model writes values.

    Attributes:
        quotes: what strings begin with.
        copy_string: reads a string from its quote on.
        copy_key: reads the key of an object.
        convert: returns a number or a name as JSON, or None if it is neither.
        convert_cut: the same for one that the text's end has cut.
        brackets: what arrays and objects begin and end with.
        is_json: whether white space is passed on, and no comma stands before a closing bracket.
        bare_ends: what ends a scalar that may be a string without quotes; empty = strings have
            quotes.
    """

    quotes: tuple[str, ...]
    copy_string: Copy
    copy_key: Copy
    convert: Callable[[str], str | None]
    convert_cut: Callable[[str], str | None]
    brackets: Mapping[str, str]
    is_json: bool = False
    bare_ends: tuple[str, ...] = ()


def copy_value(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    """Passes on one value, strings as they are generated, and returns whether it was a whole
    one."""
    closers: list[str] = []
    while True:
        if not (yield from _copy_opening(scan, emit, notation, closers)):
            return False
        while True:  # behind a value
            if not closers:
                return True
            yield from copy_space(scan, emit, notation)
            if (yield from scan.take(closers[-1])):
                emit(_json_bracket(closers.pop()))
                continue
            if not (yield from scan.take(",")):
                return False
            if not notation.is_json:
                yield from scan.space()
                if (yield from scan.peek()) == closers[-1]:
                    continue
            emit(",")
            if closers[-1] == "}" and not (yield from _copy_key(scan, emit, notation)):
                return False
            break


def copy_space(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[None]:
    if notation.is_json:
        yield from scan.run(_SPACE, emit)
    else:
        yield from scan.space()


def _copy_opening(
    scan: Scanner, emit: Emit, notation: Notation, closers: list[str]
) -> Incremental[bool]:
    """Passes on a scalar or an empty container, or the beginning of containers down to the first
    value of the innermost, which then ends here."""
    while True:
        yield from copy_space(scan, emit, notation)
        if (yield from starts_string(scan, notation)):
            return (yield from notation.copy_string(scan, emit))
        char = yield from scan.peek()
        if char not in notation.brackets or not char:
            return (yield from _copy_scalar(scan, emit, notation))
        yield from scan.read(1)
        closer = notation.brackets[char]
        emit("{" if closer == "}" else "[")
        yield from copy_space(scan, emit, notation)
        if (yield from scan.take(closer)):
            emit(_json_bracket(closer))
            return True
        closers.append(closer)
        if closer == "}" and not (yield from _copy_key(scan, emit, notation)):
            return False


def starts_string(scan: Scanner, notation: Notation) -> Incremental[bool]:
    return (yield from scan.starts(*notation.quotes))


def _json_bracket(closer: str) -> str:
    return "}" if closer == "}" else "]"


def _copy_key(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    yield from copy_space(scan, emit, notation)
    if not (yield from notation.copy_key(scan, emit)):
        return False
    yield from copy_space(scan, emit, notation)
    if not (yield from scan.take(":")):
        return False
    emit(":")
    return True


def _copy_scalar(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    """Passes on a number or a name whole, or as far as the end has cut it."""
    if notation.bare_ends:
        return (yield from copy_bare(scan, emit, notation))
    word = yield from read_word(scan)
    converted = notation.convert(word)
    is_at_end = scan.is_ended and not (yield from scan.peek())
    if converted is None and is_at_end and (cut := notation.convert_cut(word)) is not None:
        emit(cut)
        return False
    if converted is None:
        scan.put_back(word)
        return False
    emit(converted)
    return True


def copy_bare(
    scan: Scanner, emit: Emit, notation: Notation, *, is_text: bool = False
) -> Incremental[bool]:
    """Passes on a scalar that `bare_ends` ends: a number, a name, or else a string.

    Args:
        is_text: whether it is a string in any case.
    """
    pieces: list[str] = []
    end = yield from scan.until(notation.bare_ends, pieces.append)
    word = "".join(pieces).strip()
    if end is None:
        cut = None if is_text else notation.convert_cut(word)
        emit(json.dumps(word, ensure_ascii=False)[:-1] if cut is None else cut)
        return False
    scan.put_back(end)
    converted = None if is_text else notation.convert(word)
    emit(json.dumps(word, ensure_ascii=False) if converted is None else converted)
    return True


def read_word(scan: Scanner) -> Incremental[str]:
    """Reads what numbers and names consist of, perhaps nothing."""
    pieces: list[str] = []
    yield from scan.run(_WORD, pieces.append)
    return "".join(pieces)


def to_json(text: str, notation: Notation) -> str | None:
    """Returns a text that is one value and nothing else as JSON; None if it is not."""
    scan = Scanner()
    scan.feed(text)
    scan.end(is_cut=False)
    pieces: list[str] = []
    copying = copy_value(scan, pieces.append, notation)
    while True:
        try:
            next(copying)
        except StopIteration as end:
            return "".join(pieces) if end.value and scan.is_empty else None
