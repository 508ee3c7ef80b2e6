"""Reads and writes grammars in Lark's syntax."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from fastovms.grammar_tree import ANY_TEXT

MAX_LENGTH: Final = 20_000
"""The maximum number of characters of a regular expression, in which each use of a rule is a
copy."""

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
"""The terminals of Lark's module `common` as regular expressions."""

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


class NotRegular(Exception):
    """The grammar is not regular, or has unsupported syntax."""


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The statements of a grammar: the tokens of rules and terminals, and the ignored terminals."""

    bodies: dict[str, list[_Token]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    ignored: list[list[_Token]] = field(default_factory=list)


def lark_regex(source: str) -> str:
    """Returns a regular expression, in the syntax of Rust's `regex` and without anchors, of the
    strings that the rule `start` matches; unlike a grammar, it can be applied within a JSON string.
    Raises NotRegular if no regular expression was found, or it has more than `MAX_LENGTH`
    characters, and ValueError if the grammar is malformed. The syntax is Lark's
    (https://lark-parser.readthedocs.io/en/stable/grammar.html), as far as llguidance supports
    it."""
    grammar = _read(source)
    if "start" not in grammar.bodies:
        raise ValueError("the grammar has no rule 'start'")
    return _Writer(grammar).written()


def regex_of_lark(source: str) -> str | None:
    """Like `lark_regex`, but returns None if there is no such regular expression."""
    try:
        return lark_regex(source)
    except NotRegular:
        return None


def _read(source: str) -> _Grammar:
    found = _Grammar()
    # A line that begins with white space or `|` continues the statement before it.
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
                    raise NotRegular
                _tokens(body[given.end() :], must_be_blank=True)
                found.imported[given[2] or given[1]] = _COMMON[given[1]]
            case "ignore":
                found.ignored.append(_tokens(body))
            case _:
                raise NotRegular
    return found


def _tokens(body: str, *, must_be_blank: bool = False) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(body):
        found = _TOKEN.match(body, position)
        if found is None:
            raise NotRegular
        position = found.end()
        kind = str(found.lastgroup)
        if kind != "blank":
            tokens.append(_Token(kind, found[0]))
    if tokens and must_be_blank:
        raise NotRegular
    return tokens


class _Writer:
    """Converts rules to regular expressions, each rule once."""

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
            raise NotRegular
        self._open.add(name)
        body = self._alternatives(iter(tokens), "", in_rule=_is_rule(name))
        self._open.remove(name)
        self._written[name] = f"(?:{body})"
        return self._written[name]

    def _alternatives(self, tokens: Iterator[_Token], end: str, *, in_rule: bool) -> str:
        """Reads tokens up to `end`, which closes a group; "" = up to the last token."""
        parts: list[str] = []
        last = ""
        length = 0
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotRegular
        for kind, text in tokens:
            if kind == "count":
                if not last:
                    raise ValueError(f"{text!r} has nothing before it to repeat")
                last = f"(?:{last}){_count(text)}"
                continue
            parts.append(last)
            length += len(last)
            if length > MAX_LENGTH:
                raise NotRegular
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
                raise ValueError(f"{text!r} is unmatched")
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
    """Returns whether a name is a rule's; terminals have upper-case names."""
    return name.strip("_")[:1].islower()


def _limited(expression: str) -> str:
    if len(expression) > MAX_LENGTH:
        raise NotRegular
    return expression


def _count(text: str) -> str:
    if text in "?*+":
        return text
    low, comma, high = re.sub(r"[{}~\s]", "", text).replace("..", ",").partition(",")
    if not low and not high:
        raise ValueError(f"the repetition {text!r} must have a number")
    return f"{{{low or 0}{comma}{high}}}"


def _text(text: str) -> str:
    flag = "(?i:" if text.endswith("i") else "(?:"
    return f"{flag}{_escaped(_unquoted(text.removesuffix('i')))})"


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise ValueError(f"{text[:100]} is not a JSON string") from None


def _regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    if set(flags) - set("ismxu"):
        raise NotRegular
    inner = body.replace("\\/", "/")
    flags = flags.replace("u", "")
    return f"(?{flags}:{inner})"


def _range(text: str) -> str:
    low, high = (_escaped(_unquoted(part)) for part in _QUOTED.findall(text))
    return f"[{low}-{high}]"


def _escaped(text: str) -> str:
    """Returns a regular expression that matches this string, without characters that different
    dialects escape differently."""
    return _SPECIAL.sub(lambda found: _CONTROLS.get(found[0]) or f"\\{found[0]}", text)


_ATOMS: Final = {"text": _text, "regex": _regex, "range": _range}


_DEFINITION: Final = re.compile(
    r"^[ \t]*[?!]*([A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*(?:\[[^\]\n]*\])?[ \t]*:", re.MULTILINE
)
_DIRECTIVE: Final = re.compile(r"^[ \t]*%(?!json\b|regex\b|lark\b).*$", re.MULTILINE)
_RULE_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|->\s*\w+)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[imslux]*|<[^>\n]*>|@\w+|\.\.)
    |(?P<embedded>%(?:json|regex|lark)\s*\{)
    |(?P<optional>[?*]|\{\s*0?\s*,[^}\n]*\}|\{\s*0\s*\}|~\s*0(?:\s*\.\.\s*\d+)?)
    |(?P<repeated>\+|\{[^}\n]*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>[()\[\]|&~])""",
    re.VERBOSE,
)
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"|[{}]')
_MAX_VISITS: Final = 2_000_000
"""The maximum number of tokens that are read, counted again for each reference: far beyond usual
grammars."""

_MAX_RULE_DEPTH: Final = 250
"""The maximum length of a chain of rules. llguidance follows it recursively, and overflows a stack
of 2 MB at 600."""

Token = tuple[str, str]


def unmatchable_rule(lark: str) -> str | None:
    """Returns the first rule that matches nothing; None = all rules match something. llguidance
    accepts such rules, and may then follow forced text before one forever, holding the GIL: `start:
    /a+/ b` with `b: b` would stop the whole server. Invalid Lark is ignored here, because
    llguidance refuses it. Raises ValueError if the grammar is too large to decide, or its rules are
    nested too deeply."""
    bodies = _bodies(lark)
    if _depth(bodies) > _MAX_RULE_DEPTH:
        raise ValueError(f"a chain of rules is longer than {_MAX_RULE_DEPTH}")
    users: defaultdict[str, set[str]] = defaultdict(set)
    for name, tokens in bodies.items():
        for kind, text in tokens:
            if kind == "name" and text in bodies:
                users[text].add(name)
    matchable: set[str] = set()
    pending = list(bodies)
    num_visits = 0
    while pending:
        name = pending.pop()
        if name in matchable:
            continue
        num_visits += len(bodies[name])
        if num_visits > _MAX_VISITS:
            raise ValueError("the rules have too many references to each other")
        if _matches(bodies[name], bodies, matchable):
            matchable.add(name)
            pending += users[name]
    return next((name for name in bodies if name not in matchable), None)


def _depth(bodies: dict[str, list[Token]]) -> int:
    """Returns the depth of llguidance's depth-first search over references, which visits each rule
    once."""
    deepest = 0
    seen: set[str] = set()
    for root in bodies:
        path = [iter([("name", root)])]
        while path:
            for kind, text in path[-1]:
                if kind == "name" and text in bodies and text not in seen:
                    seen.add(text)
                    path.append(iter(bodies[text]))
                    break
            else:
                path.pop()
            deepest = max(deepest, len(path) - 1)
    return deepest


def _matches(tokens: list[Token], rules: dict[str, list[Token]], matchable: set[str]) -> bool:
    """Returns whether the tokens match any string, given the rules known to match one."""
    outer: list[tuple[bool, bool]] = []
    any_before, all_before, last = False, True, True
    for kind, text in tokens:
        if kind in ("text", "name"):
            all_before = all_before and last
            last = kind == "text" or text in matchable or text not in rules
        elif kind == "optional":
            last = True
        elif text == "|":
            any_before = any_before or (all_before and last)
            all_before, last = True, True
        elif text in ("(", "["):
            outer.append((any_before, all_before and last))
            any_before, all_before, last = False, True, True
        elif text in (")", "]") and outer:
            last = text == "]" or any_before or (all_before and last)
            any_before, all_before = outer.pop()
    return any_before or (all_before and last)


def _bodies(lark: str) -> dict[str, list[Token]]:
    """Returns the tokens of the body of each rule and terminal."""
    lark = _DIRECTIVE.sub("", lark)
    starts = list(_DEFINITION.finditer(lark))
    ends = [*(start.start() for start in starts[1:]), len(lark)][: len(starts)]
    return {
        start[1]: _rule_tokens(lark[start.end() : end])
        for start, end in zip(starts, ends, strict=True)
    }


def _rule_tokens(body: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(body):
        found = _RULE_TOKEN.match(body, position)
        if found is None:
            position += 1
            continue
        position = found.end()
        kind = str(found.lastgroup)
        if kind == "embedded":
            position = _after_braces(body, position)
            kind = "text"
        if kind not in ("blank", "repeated"):
            tokens.append((kind, found[0]))
    return tokens


def _after_braces(body: str, position: int) -> int:
    """Returns the position after the brace that closes one already open."""
    depth = 1
    for found in _STRING.finditer(body, position):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(body)


_ANY_TEXT = f"/{ANY_TEXT.pattern}/"

OPAQUE = r""""(?:\\.|[^"\\\n])*"|(?://|\#)[^\n]*|/(?:\\.|[^/\\\n])+/"""
"""Matches string literals, comments and regular expressions in rules, whose content is not
searched."""


class LarkPart(NamedTuple):
    """A part of a rule. `is_terminal` is whether it may be part of a terminal; adjacent parts of
    this kind are joined to one terminal."""

    expression: str
    is_terminal: bool


class LarkWriter:
    """Builds Lark rules. A rule must refer to special tokens by id, because plain text never forms
    one; strings are therefore split where they contain a special token's text.

    Args:
        special_tokens: ids by text.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._lines: list[str] = []

    def source(self, start: str) -> str:
        """Returns the grammar: the rule `start` with this body, and all rules and terminals so
        far."""
        return "\n".join([*self._lines, f"start: {start}"])

    def rule(self, expression: str) -> str:
        """Adds a rule with this body, and returns its name."""
        return self._named("rule", expression)

    def terminal(self, expression: str) -> str:
        """Adds a terminal with this body, and returns its name."""
        return self._named("TERMINAL", expression)

    def lazy(self, expression: str) -> str:
        """Returns a rule body whose terminals match lazily, as short as possible."""
        name = f"lazy{len(self._lines)}"
        self._lines.append(f"{name}[lazy]: {expression}")
        return name

    def literal(self, text: str) -> list[LarkPart]:
        """Returns the parts for a fixed string; special tokens in it become token references."""
        return list(map(as_part, self.pieces(text)))

    def pieces(self, text: str) -> list[str | int]:
        """Splits a string into strings and ids of special tokens, in order."""
        found: list[str | int] = []
        position = 0
        for match in self._special.finditer(text):
            found += [text[position : match.start()], self._special_tokens[match[0]]]
            position = match.end()
        return [piece for piece in [*found, text[position:]] if piece != ""]

    def special_token_at_start(self, text: str) -> str:
        """Returns the special token with which a string begins; "" = none."""
        match = self._special.match(text)
        return match[0] if match else ""

    def special_tokens_with(self, text: str) -> list[int]:
        """Returns the ids of the special tokens whose text contains this string."""
        return [id_ for its_text, id_ in self._special_tokens.items() if text in its_text]

    def other_special_tokens(self, token_ids: Iterable[int]) -> str:
        """Returns the body of a Lark rule for one special token other than these; "" = none."""
        barred = set(token_ids)
        others = sorted(id_ for id_ in self._special_tokens.values() if id_ not in barred)
        return f"<[{','.join(map(str, others))}]>" if others else ""

    def join(self, parts: Sequence[LarkPart]) -> str:
        """Returns the body of a Lark rule for these parts in sequence."""
        expressions = []
        for is_terminal, run in groupby(parts, key=lambda part: part.is_terminal):
            joined = " ".join(part.expression for part in run)
            expressions.append(self.terminal(joined) if is_terminal else joined)
        return " ".join(expressions) or '""'

    def either(self, choices: Sequence[Sequence[LarkPart]]) -> LarkPart:
        """Returns a choice between sequences of parts."""
        if all(part.is_terminal for choice in choices for part in choice):
            joined = [" ".join(part.expression for part in choice) or '""' for choice in choices]
            return LarkPart(f"({' | '.join(joined)})", True)
        return LarkPart(f"({' | '.join(map(self.join, choices))})", False)

    def repeat(self, parts: Sequence[LarkPart], times: str) -> LarkPart:
        """Returns the body of a Lark rule that repeats parts. `times` is an operator such as `?` or
        `{2,3}`."""
        if all(part.is_terminal for part in parts):
            joined = " ".join(part.expression for part in parts) or '""'
            return LarkPart(f"({joined}){times}", True)
        return LarkPart(f"({self.join(parts)}){times}", False)

    def _named(self, prefix: str, expression: str) -> str:
        name = f"{prefix}{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name


class FreeText:
    """Builds bodies of Lark rules for free text with special tokens up to the first stop string.

    Args:
        stops: the stop strings, not empty. If stops have a common prefix and one continues with a
            special token, that one is recognized only there.
        excludes: further strings that must not occur.
    """

    def __init__(
        self, writer: LarkWriter, stops: Sequence[str], excludes: Sequence[str] = ()
    ) -> None:
        self._writer = writer
        pieces = [writer.pieces(text) for text in (*stops, *excludes)]
        token_ids = [next((p for p in found if isinstance(p, int)), None) for found in pieces]
        texts = [str(p[0]) for p, id_ in zip(pieces, token_ids, strict=True) if id_ is None]
        self._text = self._without(texts)
        self._text_before_stop = self._without(
            [text for text in excludes if text in texts and text not in stops]
        )
        barred = [id_ for id_ in token_ids if id_ is not None]
        for text in texts:
            barred += writer.special_tokens_with(text)
        others = writer.other_special_tokens(barred)
        self._gap = f"({self._text} {others})* " if others else ""

    def to_end(self) -> str:
        """Returns the body of a Lark rule for text without any of the stops."""
        return self._gap + self._text

    def until(self, stop: str) -> str:
        """Returns the body of a Lark rule for text up to and including a stop."""
        return self._gap + self._until(self._writer.pieces(stop))

    def _until(self, pieces: list[str | int]) -> str:
        writer = self._writer
        first, text = pieces[0], self._text
        if isinstance(first, str):
            if len(pieces) == 1:
                return writer.lazy(f"{self._text_before_stop} {quoted(first)}")
            text, pieces = writer.terminal(f"{_ANY_TEXT} {quoted(first)}"), pieces[1:]
        return f"{text} {writer.join(list(map(as_part, pieces)))}"

    def _without(self, texts: Sequence[str]) -> str:
        if not texts:
            return self._writer.terminal(_ANY_TEXT)
        barred = " | ".join(map(quoted, texts))
        return self._writer.terminal(f"{_ANY_TEXT} & ~({_ANY_TEXT} ({barred}) {_ANY_TEXT})")


def quoted(text: str) -> str:
    """Returns a string as a literal in Lark's syntax."""
    return json.dumps(text, ensure_ascii=False)


def as_part(piece: str | int) -> LarkPart:
    """Returns the part for a string, or for a special token's id."""
    return (
        LarkPart(f"<[{piece}]>", False) if isinstance(piece, int) else LarkPart(quoted(piece), True)
    )
