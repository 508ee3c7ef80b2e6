"""Converts the contents of JSON strings, free text or the matches of a regular expression, to
XGrammar's EBNF, with characters escaped as in JSON.

XGrammar's own conversion applies a pattern to the escaped text, so that a dot matches the closing
quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from fastovms.grammar.patterns import Ranges, common, merged, ranges_of, without

_OF_ONE_LENGTH: Final[Sequence[Ranges]] = ([(0, 0x7FF)], [(0x800, 0xFFFF)], [(0x10000, 0x10FFFF)])
_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_CONTROLS: Final = [*range(0x20), 0x7F]
_QUOTED: Final = {ord('"'): r'"\\\""', ord("\\"): r'"\\\\"'}

_PLAIN: Final = (
    r"[ !#-\[\]-~\u0080-\u07ff]",
    r"[\u0800-\ud7ff\ue000-\uffff]",
    r"[\U00010000-\U0010ffff]",
)
"""The characters that JSON writes unescaped. They are separate classes, because XGrammar converts
`[^"]`, and classes that mix three-byte characters with others, to classes that also match invalid
UTF-8."""

CHARACTERS: Final = (*_PLAIN, r'"\\" ["\\bfnrt]', r'"\\u00" [01] [0-9a-fA-F]', r'"\\u007" [fF]')
"""Rules for any one character of a string, unescaped or escaped. They have no groups, of
which XGrammar would make separate rules."""

NAME_CHARACTERS: Final = (
    *_PLAIN,
    r'"\\" ["\\/bfnrt]',
    r'"\\u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F]',
)
"""Rules for any one character of an undeclared property name."""

CHARACTER: Final = " | ".join(CHARACTERS)


def rest_of_string(rule: str, characters: Iterable[str]) -> str:
    """Returns a regular expression for any text of these characters and the closing quote, to be
    the body of `rule`. It is recursive, because XGrammar precomputes the allowed tokens of
    recursive rules but not of repetitions."""
    return " | ".join((r'"\""', *(f"{one} {rule}" for one in characters)))


_NOT_SHARED: Final = re.compile(r"\[\[|&&|--|~~|\|\||\(\?[^:P]|\(\?P[^<]")
"""Syntax that Python's regular expression parser rejects, or interprets differently than
llguidance."""


class UnsupportedSchema(ValueError):
    """Raised if a schema has an unsupported keyword."""


def quoted(text: str) -> str:
    """Returns a text as an EBNF literal."""
    return f'"{"".join(map(_escaped, text))}"'


def matching(pattern: str, character: str, *, whole: bool = False) -> str:
    """Returns a regular expression for the texts that a pattern matches. Raises UnsupportedSchema
    if a part of the pattern is not supported.

    Args:
        character: the name of the rule for any single character.
        whole: whether the pattern must match the whole text.
    """
    if _NOT_SHARED.search(pattern) is not None:
        raise UnsupportedSchema(_THIS)
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedSchema(_THIS) from error
    if parsed.state.flags & ~re.UNICODE:
        raise UnsupportedSchema(_THIS)
    if not whole and _num_counted(parsed) > MAX_COUNTED:
        raise UnsupportedSchema(
            f"counts of more than {MAX_COUNTED} characters in a pattern are not supported"
        )
    anything = "" if whole else f"{character}*"
    return _found(list(parsed), anything, anything)


_THIS: Final = "something in a pattern is not supported"

MAX_COUNTED: Final = 128
"""The maximum number of characters that the repetition counts in a client's pattern may sum to.
XGrammar makes a rule for each. With a vocabulary of 120,000 tokens, `.{1,64}` takes 4 s to compile,
which delays all clients."""


def _num_counted(items: Iterable[Any], *, outside: bool = True) -> int:
    """Returns the number of characters of a pattern's repetitions when they are expanded. `outside`
    is whether the items are outside of any repetition."""
    total = 0
    for item, value in items:
        match str(item):
            case "BRANCH":
                total += sum(_num_counted(branch, outside=outside) for branch in value[1])
            case "SUBPATTERN":
                total += _num_counted(value[3], outside=outside)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                times = least if str(most) == "MAXREPEAT" else most
                total += int(times) * _num_counted(inner, outside=False)
            case _:
                total += not outside
    return total


def _found(items: Sequence[Any], before: str, after: str) -> str:
    """Returns a regular expression for a pattern with any text before and after it, except at
    anchors."""
    items = list(items)
    while items and _is_anchor(items[0], "AT_BEGINNING"):
        before, items = "", items[1:]
    while items and _is_anchor(items[-1], "AT_END"):
        after, items = "", items[:-1]
    if len(items) == 1:
        name, value = str(items[0][0]), items[0][1]
        if name == "BRANCH":
            return _either(_found(branch, before, after) for branch in value[1])
        if name == "SUBPATTERN" and not value[1] and not value[2]:
            return _found(value[3], before, after)
    return " ".join(filter(None, (before, _sequence(items), after))) or '""'


def _is_anchor(item: Any, name: str) -> bool:
    return str(item[0]) == "AT" and str(item[1]) == name


def _either(expressions: Iterable[str]) -> str:
    return f"({' | '.join(dict.fromkeys(expressions))})"


def _sequence(items: Iterable[Any]) -> str:
    return " ".join(_item(str(name), value) for name, value in items) or '""'


def _item(name: str, value: Any) -> str:
    match name:
        case "LITERAL":
            return _one_of([(value, value)])
        case "NOT_LITERAL":
            return _one_of(without([(value, value)]))
        case "ANY":
            return _one_of(without([(10, 10)]))
        case "IN":
            return _one_of(ranges_of(value))
        case "BRANCH":
            return _either(map(_sequence, value[1]))
        case "SUBPATTERN" if not value[1] and not value[2]:
            return f"({_sequence(value[3])})"
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, inner = int(value[0]), value[1], value[2]
            highest = "" if str(most) == "MAXREPEAT" else int(most)
            return f"({_sequence(inner)}){{{least},{highest}}}"
        case _:
            raise UnsupportedSchema(_THIS)


def _one_of(ranges: Ranges) -> str:
    """Returns a regular expression for a single character in `ranges`, escaped as in JSON."""
    special = [*_CONTROLS, *_QUOTED]
    barred = merged([(code, code) for code in special])
    plain = common(ranges, without(barred))
    parts = []
    for alike in _OF_ONE_LENGTH:
        shown = [
            f"{_escaped(chr(low))}-{_escaped(chr(high))}" for low, high in common(plain, alike)
        ]
        if shown:
            parts.append(f"[{''.join(shown)}]")
    for code in special:
        if any(low <= code <= high for low, high in ranges):
            parts.append(_QUOTED.get(code) or _control(code))
    if not parts:
        raise UnsupportedSchema(_THIS)
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _control(code: int) -> str:
    high, low = f"{code >> 4:x}", f"{code & 15:x}"
    digit = f'"{low}"' if low.isdigit() else f"[{low}{low.upper()}]"
    spelled = f'"\\\\u00{high}" {digit}'
    return f'("\\\\{_SHORT[code]}" | {spelled})' if code in _SHORT else f"({spelled})"


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isascii() and (character.isalnum() or character in " _:,{}"):
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
