"""Writes a grammar in Lark as one regular expression, where its language is regular: text within a
JSON string can be kept to an expression, and not to a grammar.

The syntax is Lark's (https://lark-parser.readthedocs.io/en/stable/grammar.html), as far as
llguidance has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_LENGTH: Final = 20_000
"""The most characters of an expression: rules that are used often stand in it often."""

_MAX_DEPTH: Final = 100

_COMMON: Final[Mapping[str, str]] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": "[ \\t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""The terminals of Lark's `common` as expressions."""

_STATEMENT: Final = re.compile(
    r"^(?:%(?P<directive>\w+)|[?!]*(?P<name>[A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*:)", re.MULTILINE
)
_IMPORT: Final = re.compile(r"\s*common\.(\w+)\s*(?:->\s*(\w+))?\s*")
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|(?://|\#)[^\n]*|->\s*\w+)
    |(?P<range>"(?:\\.|[^"\\\n])"\s*\.\.\s*"(?:\\.|[^"\\\n])")
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[ismxlu]*)
    |(?P<count>\{\s*\d*\s*,?\s*\d*\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?|[?*+])
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>[()\[\]|])""",
    re.VERBOSE,
)

_QUOTED: Final = re.compile(r'"(?:\\.|[^"\\\n])*"')
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~/\-\n\r\t\f\v]")
_CONTROLS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v"}


class Irregular(Exception):
    """The grammar is one that no regular expression says, or has what is not read here."""


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The statements of a grammar: the tokens of rules and terminals, and what is ignored between
    terminals."""

    bodies: dict[str, list[_Token]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    ignored: list[list[_Token]] = field(default_factory=list)


def lark_regex(source: str) -> str:
    """Returns an expression, in the syntax of Rust's `regex` and without anchors, of the texts that
    the rule `start` matches.

    Raises:
        Irregular: there may be none, or it has more than `MAX_LENGTH` characters.
        ValueError: the grammar is malformed.
    """
    grammar = _read(source)
    if "start" not in grammar.bodies:
        raise ValueError("it has no rule 'start'")
    return _Writer(grammar).written()


def _read(source: str) -> _Grammar:
    found = _Grammar()
    # A line that begins with white space or `|` goes on with the statement before it.
    starts = list(_STATEMENT.finditer(source))
    ends = [*(start.start() for start in starts[1:]), len(source)]
    _tokens(source[: starts[0].start() if starts else None], must_be_blank=True)
    for start, end in zip(starts, ends, strict=False):
        body = source[start.end() : end]
        match start["directive"]:
            case None:
                found.bodies[start["name"]] = _tokens(body)
            case "import":
                given = _IMPORT.match(body)
                if given is None or given[1] not in _COMMON:
                    raise Irregular
                _tokens(body[given.end() :], must_be_blank=True)
                found.imported[given[2] or given[1]] = _COMMON[given[1]]
            case "ignore":
                found.ignored.append(_tokens(body))
            case _:
                raise Irregular
    return found


def _tokens(body: str, *, must_be_blank: bool = False) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(body):
        found = _TOKEN.match(body, position)
        if found is None:
            raise Irregular
        position = found.end()
        kind = str(found.lastgroup)
        if kind != "blank":
            tokens.append(_Token(kind, found[0]))
    if tokens and must_be_blank:
        raise Irregular
    return tokens


class _Writer:
    """Writes the expressions of rules, each once."""

    def __init__(self, grammar: _Grammar) -> None:
        self._grammar = grammar
        self._written: dict[str, str] = {}
        self._open: set[str] = set()
        self._depth = 0
        self._gap = ""

    def written(self) -> str:
        ignored = [
            self._alternatives(iter(tokens), "", in_rule=False) for tokens in self._grammar.ignored
        ]
        if ignored:
            self._gap = f"(?:{'|'.join(ignored)})*"
            self._written.clear()
        return _limited(self._gap + self._rule("start"))

    def _rule(self, name: str) -> str:
        if name in self._written:
            return self._written[name]
        tokens = self._grammar.bodies.get(name)
        if tokens is None:
            raise ValueError(f"there is no rule or terminal {name[:100]!r}")
        if name in self._open:
            raise Irregular
        self._open.add(name)
        body = self._alternatives(iter(tokens), "", in_rule=_is_rule(name))
        self._open.remove(name)
        self._written[name] = f"(?:{body})"
        return self._written[name]

    def _alternatives(self, tokens: Iterator[_Token], end: str, *, in_rule: bool) -> str:
        """Reads up to the mark that ends a group; "" = to the end of the tokens."""
        parts: list[str] = []
        last = ""
        length = 0
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Irregular
        for kind, text in tokens:
            if kind == "count":
                if not last:
                    raise ValueError(f"{text!r} has nothing before it to repeat")
                last = f"(?:{last}){_count(text)}"
                continue
            parts.append(last)
            length += len(last)
            if length > MAX_LENGTH:
                raise Irregular
            last = ""
            if kind == "mark" and text in ("|", end):
                if text == end:
                    self._depth -= 1
                    return _limited("".join(parts))
                parts.append("|")
            elif text == "(":
                last = f"(?:{self._alternatives(tokens, ')', in_rule=in_rule)})"
            elif text == "[":
                last = f"(?:{self._alternatives(tokens, ']', in_rule=in_rule)})?"
            elif kind == "mark":
                raise ValueError(f"{text!r} closes nothing")
            else:
                last = self._atom(kind, text, in_rule=in_rule)
        if end:
            raise ValueError(f"{end!r} is missing")
        self._depth -= 1
        return _limited("".join([*parts, last]))

    def _atom(self, kind: str, text: str, *, in_rule: bool) -> str:
        if kind == "name":
            if text in self._grammar.imported and text not in self._grammar.bodies:
                return f"(?:{self._grammar.imported[text]}){self._gap if in_rule else ''}"
            body = self._rule(text)
            is_terminal_in_rule = in_rule and not _is_rule(text)
            return body + (self._gap if is_terminal_in_rule else "")
        return _ATOMS[kind](text) + (self._gap if in_rule else "")


def _is_rule(name: str) -> bool:
    """Returns whether a name is a rule's; those of terminals are in capitals."""
    return name.strip("_")[:1].islower()


def _limited(expression: str) -> str:
    if len(expression) > MAX_LENGTH:
        raise Irregular
    return expression


def _count(text: str) -> str:
    if text in "?*+":
        return text
    low, comma, high = re.sub(r"[{}~\s]", "", text).replace("..", ",").partition(",")
    if not low and not high:
        raise ValueError(f"{text!r} says no number")
    return f"{{{low or 0}{comma}{high}}}"


def _text(text: str) -> str:
    flag = "(?i:" if text.endswith("i") else "(?:"
    return f"{flag}{_escaped(_unquoted(text.removesuffix('i')))})"


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise ValueError(f"{text[:100]} is no text in JSON's notation") from None


def _regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    if set(flags) - set("ismxu"):
        raise Irregular
    inner = body.replace("\\/", "/")
    flags = flags.replace("u", "")
    return f"(?{flags}:{inner})"


def _range(text: str) -> str:
    low, high = (_escaped(_unquoted(part)) for part in _QUOTED.findall(text))
    return f"[{low}-{high}]"


def _escaped(text: str) -> str:
    """Returns the expression of a text, in letters that need no escape in any syntax."""
    return _SPECIAL.sub(lambda found: _CONTROLS.get(found[0]) or f"\\{found[0]}", text)


_ATOMS: Final = {"text": _text, "regex": _regex, "range": _range}
