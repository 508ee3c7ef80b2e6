"""Regular expressions in JSON schemas, and string formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

_DATE: Final = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
)
_HOUR: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:(?:[0-5][0-9]|60)(?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR})"

_DAYS: Final = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_HOURS: Final = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"

_OCTET: Final = r"(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_IPV4: Final = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16: Final = r"[0-9a-fA-F]{1,4}"
_LS32: Final = rf"{_H16}:{_H16}"
_IPV6: Final = "|".join(
    [
        rf"(?:{_H16}:){{7}}{_H16}",
        rf"::(?:{_H16}:){{0,5}}{_LS32}",
        rf"(?:{_H16})?::(?:{_H16}:){{0,4}}{_LS32}",
        *(
            rf"(?:(?:{_H16}:){{0,{number}}}{_H16})?::(?:{_H16}:){{0,{4 - number}}}{_LS32}"
            for number in (1, 2)
        ),
        rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
)
"""RFC 4291, 2.2."""

_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_ATOM: Final = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+"
_SUBDOMAIN: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_EMAIL: Final = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*|\[{_IPV4}\])"
"""RFC 5321, 4.1.2, without quotes."""

_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

_PERCENT: Final = "%[0-9a-fA-F]{2}"
_UNRESERVED: Final = r"a-zA-Z0-9\-._~!$&'()*+,;="
_SEGMENT: Final = rf"(?:[{_UNRESERVED}:@]|{_PERCENT})"
_HOST: Final = (
    rf"(?:\[(?:{_IPV6}|v[0-9a-fA-F]+\.[{_UNRESERVED}:]+)\]|(?:[{_UNRESERVED}]|{_PERCENT})*)"
)
_AUTHORITY: Final = rf"(?:(?:[{_UNRESERVED}:]|{_PERCENT})*@)?{_HOST}(?::[0-9]*)?"
_ROOTLESS: Final = rf"{_SEGMENT}+(?:/{_SEGMENT}*)*"
_QUERY: Final = rf"(?:[{_UNRESERVED}:@/?]|{_PERCENT})*"
_URI: Final = (
    rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?://{_AUTHORITY}(?:/{_SEGMENT}*)*|/(?:{_ROOTLESS})?|{_ROOTLESS}|)"
    rf"(?:\?{_QUERY})?(?:#{_QUERY})?"
)
"""RFC 3986, appendix A."""

FORMATS: Final[Mapping[str, str]] = {
    "date-time": f"{_DATE}[tT]{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|[0-9]+W)",
    "email": _EMAIL,
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uuid": _UUID,
}


Ranges = list[tuple[int, int]]
"""Ranges of code points, (first, last) inclusive, ascending."""

_LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
ALL: Final[Ranges] = [(0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST)]

_DIGITS: Final[Ranges] = [(48, 57)]
_WORD: Final[Ranges] = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE: Final[Ranges] = [
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
]  # fmt: skip

_CATEGORIES: Final = {"DIGIT": _DIGITS, "WORD": _WORD, "SPACE": _SPACE}


def ranges_of(members: Sequence[Any]) -> Ranges:
    """Returns the characters of a class, given its members as parsed by `re`."""
    found: Ranges = []
    for kind, value in members:
        match str(kind):
            case "LITERAL":
                found.append((value, value))
            case "RANGE":
                found.append(value)
            case "CATEGORY":
                name = str(value).removeprefix("CATEGORY_")
                ranges = _CATEGORIES[name.removeprefix("NOT_")]
                found += without(ranges) if name.startswith("NOT_") else ranges
    is_negated = bool(members) and str(members[0][0]) == "NEGATE"
    return without(found) if is_negated else merged(found)


def merged(ranges: Ranges) -> Ranges:
    """Returns the same characters as ascending, disjoint ranges with gaps between them."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def without(ranges: Ranges) -> Ranges:
    """Returns the complement of the ranges."""
    found: Ranges = []
    for first, last in ALL:
        low = first
        for start, end in merged(ranges):
            if low < start <= last:
                found.append((low, min(start - 1, last)))
            low = max(low, end + 1)
        if low <= last:
            found.append((low, last))
    return found


def common(first: Ranges, second: Ranges) -> Ranges:
    """Returns the characters that are in both."""
    return [
        (max(low, start), min(high, end))
        for low, high in first
        for start, end in second
        if max(low, start) <= min(high, end)
    ]


_PART: Final = re.compile(
    r"\\[pP]\{\w+\}|\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\(\?(?:<?[=!]|P?<\w+>|P=|[>#(])|.", re.DOTALL
)
"""Matches a token of a regular expression: an escape, a class, the beginning of a special group, a
character."""

_COUNT: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_LOOK_AHEAD: Final = ("(?=", "(?!")
_UNSUPPORTED: Final = ("(?<=", "(?<!", "(?P=", "(?>", "(?#", "(?(", r"\b", r"\B", r"\k")
_ESCAPES: Final = {r"\Z": r"\z", r"\0": r"\x00", r"\h": r"[ \t]", r"\e": r"\x1b", "[^]": r"[\s\S]"}
_IN_CLASS: Final = re.compile(r"\\.|&&|~~|\[", re.DOTALL)
_UNIT: Final = re.compile(r"\\u(?![dD][89a-fA-F])(?:[0-9a-fA-F]{4}|\{[0-9a-fA-F]{1,6}\})")

_MAX_LENGTH: Final = 2_000
_MAX_STATES: Final = 64
_MAX_STEPS: Final = 20_000
_MAX_COPIES: Final = 200
"""Limits for regular expressions with look-ahead: their length before and after the conversion, the
states of the automaton, the number of steps of the conversion, and the copies for a repetition
count."""


def usable_patterns(pattern: str) -> list[str] | None:
    """Returns regular expressions that llguidance supports and that together match the same
    strings; None = there are none, or they are too large. Schema generators use the dialects of
    JavaScript and Python, which have look-ahead; llguidance does not. A regular expression with
    look-ahead is converted to an automaton, and the automaton to a regular expression without
    look-ahead."""
    pieces = _pieces(pattern)
    if pieces is None:
        return None
    found = "".join(pieces)
    if not any(piece in _LOOK_AHEAD for piece in pieces):
        found = _with_outer_anchors(pieces) or found
        return [pattern if found == pattern else found]
    if len(found) > _MAX_LENGTH:
        return None
    try:
        return [_without_look_ahead(found)]
    except (_AutomatonTooLarge, re.error, RecursionError, OverflowError):
        return _conjuncts(pieces)


def _pieces(pattern: str) -> list[str] | None:
    """Returns the tokens of a regular expression in llguidance's syntax, including look-aheads;
    None = it has other unsupported syntax."""
    pieces: list[str] = []
    position = 0
    while position < len(pattern):
        match = _PART.match(pattern, position)
        assert match is not None
        piece, position = match[0], match.end()
        if piece == "{":
            count = _COUNT.match(pattern, match.start())
            if count is None or not (count[1] or count[3]):
                piece = r"\{"
            else:
                piece = f"{{{count[1] or 0}{count[2]}{count[3]}}}"
                position = count.end()
        elif piece.startswith("[") and len(piece) > 1 and piece not in _ESCAPES:
            piece = _class(piece)
        elif piece in _UNSUPPORTED or (piece[0] == "\\" and piece[1:2] in "123456789cuU"):
            unit = _UNIT.match(pattern, match.start())
            if unit is None:
                return None
            piece, position = unit[0], unit.end()
        pieces.append(_ESCAPES.get(piece, piece))
    return pieces


_QUANTIFIER: Final = re.compile(r"[*+?]|\{\d")
_ANYTHING: Final = r"[\s\S]*"

_Items = list[Any]
"""The items of one alternative: a token, or `(opening, alternatives)` for a group."""


def _with_outer_anchors(pieces: Sequence[str]) -> str | None:
    """Returns an equivalent regular expression with anchors only at its two ends, as formats
    without quotes need it; None if the anchors are already there, or there are none, or one is in
    the middle."""
    if "^" not in pieces and "$" not in pieces:
        return None
    try:
        alternatives, end = _alternatives(pieces, 0)
        inner = pieces[pieces[0] == "^" : len(pieces) - (pieces[-1] == "$")]
        if end < len(pieces) or (len(alternatives) == 1 and "^" not in inner and "$" not in inner):
            return None
        for anchor, side in (("^", 0), ("$", -1)):
            alternatives = [_open(one, anchor, side) for one in alternatives]
        return None if _has_anchor(alternatives) else f"^(?:{_written(alternatives)})$"
    except RecursionError:
        return None


def _alternatives(pieces: Sequence[str], start: int) -> tuple[list[_Items], int]:
    """Returns the alternatives from `start` to the end of their group, and the position of that
    end."""
    found: list[_Items] = [[]]
    while start < len(pieces) and pieces[start] != ")":
        piece = pieces[start]
        if piece == "|":
            found.append([])
        elif piece.startswith("("):
            opening = piece
            while pieces[start + 1 : start + 2] == ["?"] or opening[1:2] == "?":
                if opening.endswith((":", ">", ")")):
                    break
                start += 1
                opening += "".join(pieces[start : start + 1])
            inner, start = _alternatives(pieces, start + 1) if opening[-1] != ")" else (None, start)
            found[-1].append(opening if inner is None else (opening, inner))
        else:
            found[-1].append(piece)
        start += 1
    return found, start


def _open(items: _Items, anchor: str, side: int) -> _Items:
    """Removes the anchor at one side of the items; without an anchor, adds "any text" there."""
    at = items[side] if items else None
    second = items[1] if side == 0 and len(items) > 1 else None
    is_quantified = isinstance(second, str) and _QUANTIFIER.match(second) is not None
    if at == anchor and not is_quantified:
        rest = items[1:] if side == 0 else items[:-1]
        return rest if rest[side : side + 1 or None] != [anchor] else _open(rest, anchor, side)
    if isinstance(at, tuple) and not is_quantified and _has_anchor(at[1]):
        opened = (at[0], [_open(one, anchor, side) for one in at[1]])
        return [opened, *items[1:]] if side == 0 else [*items[:-1], opened]
    return [_ANYTHING, *items] if side == 0 else [*items, _ANYTHING]


def _has_anchor(alternatives: Sequence[_Items]) -> bool:
    return any(
        _has_anchor(one[1]) if isinstance(one, tuple) else one in ("^", "$")
        for items in alternatives
        for one in items
    )


def _written(alternatives: Sequence[_Items]) -> str:
    return "|".join(
        "".join(one if isinstance(one, str) else f"{one[0]}{_written(one[1])})" for one in items)
        for items in alternatives
    )


def _conjuncts(pieces: Sequence[str]) -> list[str] | None:
    """Returns the regular expressions combined in `^(?=a)(?=b)c`; None = there is look-ahead
    elsewhere."""
    found: list[str] = []
    if pieces[0] != "^":
        return None
    start = 1
    while pieces[start : start + 1] == ["(?="]:
        depth, end = 1, start
        while depth and end + 1 < len(pieces):
            end += 1
            depth += 1 if pieces[end].startswith("(") else -(pieces[end] == ")")
        found.append(_from_begin(pieces[start + 1 : end]))
        start = end + 1
    found.append(_from_begin(pieces[start:]))
    return None if any(mark in part for part in found for mark in _LOOK_AHEAD) else found


def _from_begin(pieces: Sequence[str]) -> str:
    """Returns a regular expression that matches from the beginning of a string, and to its end if
    the tokens end with an anchor."""
    if pieces and pieces[-1] == "$" and "|" not in pieces:
        return f"^(?:{''.join(pieces[:-1])})$"
    return f"^(?:{''.join(pieces)})"


def _class(text: str) -> str:
    """Returns a character class with set operators escaped."""

    def escaped(match: re.Match[str]) -> str:
        if match[0] == r"\b":
            return r"\x08"
        return match[0] if match[0].startswith("\\") else f"\\{match[0]}"

    return "[" + _IN_CLASS.sub(escaped, text[1:])


class _AutomatonTooLarge(Exception):
    """The automaton of a regular expression would be too large, or its syntax is not supported."""


_Language = tuple[Any, ...]
"""A set of strings, as a tuple: `("none",)`, `("empty",)` for the empty string, `("set",
ids)` for one character of these classes, and the combinations `("join", first, then)`, `("any",
members)`, `("all", members)`, `("not", other)` and `("star", other)`."""

_NONE: Final[_Language] = ("none",)
_EMPTY: Final[_Language] = ("empty",)
_ALL_TEXTS: Final[_Language] = ("not", _NONE)


def _join(first: _Language, then: _Language) -> _Language:
    if _NONE in (first, then):
        return _NONE
    if first == _EMPTY or then == _EMPTY:
        return then if first == _EMPTY else first
    if first[0] == "join":
        return ("join", first[1], _join(first[2], then))
    return ("join", first, then)


def _combined(kind: str, languages: Iterable[_Language]) -> _Language:
    """Returns the union ("any") or the intersection ("all") of languages."""
    neutral, ruling = (_NONE, _ALL_TEXTS) if kind == "any" else (_ALL_TEXTS, _NONE)
    members: set[_Language] = set()
    for language in languages:
        members |= language[1] if language[0] == kind else {language}
    members.discard(neutral)
    if ruling in members:
        return ruling
    return (kind, frozenset(members)) if len(members) > 1 else next(iter(members), neutral)


def _not(language: _Language) -> _Language:
    return language[1] if language[0] == "not" else ("not", language)


def _star(language: _Language) -> _Language:
    if language in (_NONE, _EMPTY) or language[0] == "star":
        return _EMPTY if language[0] != "star" else language
    return ("star", language)


def _without_look_ahead(pattern: str) -> str:
    """Returns an equivalent regular expression without look-ahead. Raises _AutomatonTooLarge, and
    errors of the parser."""
    parsed = _parser.parse(pattern)
    if parsed.state.flags & ~re.UNICODE:
        raise _AutomatonTooLarge
    reader = _Reader(list(parsed))
    automaton = _Automaton(reader.language, len(reader.characters))
    return _expression(automaton, reader.characters)


class _Reader:
    """Converts a regular expression to a language of whole strings. `characters` are the classes of
    characters that it does not distinguish."""

    def __init__(self, items: list[Any]) -> None:
        self._sets: list[Ranges] = []
        self._num_copies = 0
        self._collect(items)
        self.characters = _classes(self._sets)
        found = self._found(items, _ALL_TEXTS, at_start=True)
        if not items or str(items[0][1]) != "AT_BEGINNING":
            later = self._found(items, _ALL_TEXTS, at_start=False)
            found = _combined("any", [found, _join(_ALL_TEXTS, later)])
        self.language = found

    def _collect(self, items: Iterable[Any]) -> None:
        for name, value in items:
            ranges = _characters(str(name), value)
            if ranges is not None:
                self._sets.append(ranges)
            for part in _inner(str(name), value):
                self._collect(part)

    def _found(self, items: Sequence[Any], after: _Language, *, at_start: bool) -> _Language:
        """Returns the language of the items followed by `after`."""
        if not items:
            return after
        (kind, value), rest = items[0], items[1:]
        name = str(kind)
        if name == "AT":
            if str(value) == "AT_BEGINNING" and at_start:
                return self._found(rest, after, at_start=True)
            if str(value) in ("AT_END", "AT_END_STRING"):
                return _combined("all", [_EMPTY, self._found(rest, after, at_start=at_start)])
            raise _AutomatonTooLarge
        if name in ("ASSERT", "ASSERT_NOT"):
            direction, inner = value
            if direction < 0:
                raise _AutomatonTooLarge
            ahead = self._found(list(inner), _ALL_TEXTS, at_start=at_start)
            ahead = ahead if name == "ASSERT" else _not(ahead)
            return _combined("all", [ahead, self._found(rest, after, at_start=at_start)])
        ranges = _characters(name, value)
        if ranges is not None:
            return _join(self._set(ranges), self._found(rest, after, at_start=False))
        parts = [list(part) for part in _inner(name, value)]
        if name in ("BRANCH", "SUBPATTERN"):
            if name == "SUBPATTERN" and (value[1] or value[2]):
                raise _AutomatonTooLarge
            self._count(len(parts))
            return _combined(
                "any", [self._found([*part, *rest], after, at_start=at_start) for part in parts]
            )
        if name not in ("MAX_REPEAT", "MIN_REPEAT"):
            raise _AutomatonTooLarge
        if _looks_around(parts[0]):  # look-ahead past the end of a repetition is not supported
            raise _AutomatonTooLarge
        least, most = value[0], value[1]
        then = self._found(rest, after, at_start=False)
        once = self._found(parts[0], _EMPTY, at_start=False)
        if str(most) == "MAXREPEAT":
            then = _join(_star(once), then)
        else:
            self._count(most)
            skipped = then
            for _ in range(most - least):
                then = _combined("any", [skipped, _join(once, then)])
        self._count(least)
        for _ in range(least):
            then = _join(once, then)
        return then

    def _count(self, copies: int) -> None:
        self._num_copies += copies
        if self._num_copies > _MAX_COPIES:
            raise _AutomatonTooLarge

    def _set(self, ranges: Ranges) -> _Language:
        ids = [i for i, known in enumerate(self.characters) if common(known, ranges)]
        return ("set", frozenset(ids)) if ids else _NONE


def _characters(name: str, value: Any) -> Ranges | None:
    """Returns the characters that an item matches; None = the item is not a single character."""
    match name:
        case "LITERAL":
            return [(value, value)]
        case "NOT_LITERAL":
            return without([(value, value)])
        case "ANY":
            return without([(10, 10)])
        case "IN":
            return ranges_of(value)
        case _:
            return None


def _inner(name: str, value: Any) -> list[Any]:
    """Returns the items nested in an item."""
    match name:
        case "BRANCH":
            return list(value[1])
        case "SUBPATTERN":
            return [value[3]]
        case "MAX_REPEAT" | "MIN_REPEAT":
            return [value[2]]
        case "ASSERT" | "ASSERT_NOT":
            return [value[1]]
        case _:
            return []


def _looks_around(items: Iterable[Any]) -> bool:
    return any(
        str(name) in ("AT", "ASSERT", "ASSERT_NOT")
        or any(map(_looks_around, _inner(str(name), value)))
        for name, value in items
    )


def _classes(sets: Iterable[Ranges]) -> list[Ranges]:
    """Returns the coarsest partition of characters of which each set is a union."""
    classes: list[Ranges] = [ALL]
    for ranges in sets:
        halves = [common(known, side) for known in classes for side in (ranges, without(ranges))]
        classes = [half for half in halves if half]
        if len(classes) > _MAX_STATES:
            raise _AutomatonTooLarge
    return classes


class _Automaton:
    """The automaton of a language; state 0 is the start.

    Attributes:
        is_end: whether each state is accepting.
        edges: the character classes of each transition, by pair of states.
    """

    def __init__(self, language: _Language, num_classes: int) -> None:
        self.is_end: list[bool] = []
        self.edges: dict[tuple[int, int], set[int]] = {}
        self._num_steps = 0
        states = {language: 0}
        pending = [language]
        while pending:
            state = pending.pop(0)
            self.is_end.append(self._may_end(state))
            for character in range(num_classes):
                following = self._after(state, character)
                if following == _NONE:
                    continue
                if following not in states:
                    states[following] = len(states)
                    pending.append(following)
                    if len(states) > _MAX_STATES:
                        raise _AutomatonTooLarge
                self.edges.setdefault((states[state], states[following]), set()).add(character)

    def _step(self) -> None:
        self._num_steps += 1
        if self._num_steps > _MAX_STEPS:
            raise _AutomatonTooLarge

    def _may_end(self, language: _Language) -> bool:
        self._step()
        match language:
            case ("empty",) | ("star", _):
                return True
            case ("join", first, then):
                return self._may_end(first) and self._may_end(then)
            case ("any", members):
                return any(map(self._may_end, members))
            case ("all", members):
                return all(map(self._may_end, members))
            case ("not", other):
                return not self._may_end(other)
            case _:
                return False

    def _after(self, language: _Language, character: int) -> _Language:
        """Returns the derivative of a language: the rests of its strings that begin with this
        character."""
        self._step()
        match language:
            case ("set", ids):
                return _EMPTY if character in ids else _NONE
            case ("join", first, then):
                found = _join(self._after(first, character), then)
                if not self._may_end(first):
                    return found
                return _combined("any", [found, self._after(then, character)])
            case ("any" | "all" as kind, members):
                return _combined(kind, [self._after(member, character) for member in members])
            case ("not", other):
                return _not(self._after(other, character))
            case ("star", other):
                return _join(self._after(other, character), language)
            case _:
                return _NONE


def _expression(automaton: _Automaton, characters: Sequence[Ranges]) -> str:
    """Returns the regular expression of an automaton, by eliminating its states, those with the
    fewest paths through them first."""
    start, end = -1, -2
    ways = {
        pair: _of_characters([one for i in sorted(ids) for one in characters[i]])
        for pair, ids in automaton.edges.items()
    }
    ways[start, 0] = ""
    ways |= {(i, end): "" for i, is_end in enumerate(automaton.is_end) if is_end}
    states = set(range(len(automaton.is_end)))
    while states:
        into = {state: [a for a, b in ways if b == state != a] for state in states}
        out = {state: [b for a, b in ways if a == state != b] for state in states}
        state = min(states, key=lambda state: len(into[state]) * len(out[state]))
        states.remove(state)
        again = ways.pop((state, state), None)
        loop = "" if again is None else f"(?:{again})*"
        before = [(one, ways.pop((one, state))) for one in into[state]]
        behind = [(one, ways.pop((state, one))) for one in out[state]]
        for first, begin in before:
            for last, rest in behind:
                way = f"{begin}{loop}{rest}"
                other = ways.get((first, last))
                ways[first, last] = way if other is None else _either(other, way)
                if len(ways[first, last]) > _MAX_LENGTH:
                    raise _AutomatonTooLarge
    found = ways.get((start, end))
    if found is None:
        raise _AutomatonTooLarge
    return f"^(?:{found})$"


def _either(first: str, second: str) -> str:
    if not first or not second:
        return f"(?:{first or second})?"
    return f"(?:{first}|{second})"


def _of_characters(ranges: Ranges) -> str:
    """Returns a regular expression that matches one of these characters."""
    shown = [
        _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"
        for low, high in merged(ranges)
    ]
    is_one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return shown[0] if is_one else f"[{''.join(shown)}]"


def _escaped(code: int) -> str:
    if code < 0x80 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
