"""Tagged rules as XGrammar's structural tags, the only form in which the pipeline takes them.

Its formats know no rules, no empty text, no repetition, and no text without a tag but around tags
that may come. So rules are written out, repetitions end after `MAX_REPEATS`, and a grammar of
another form than those that `text.output_grammar` makes is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastovms.params import Grammar, GrammarKind

Format = dict[str, Any]
"""A format of XGrammar's."""

MAX_REPEATS: Final = 8

_NOTHING: Final[Format] = {"type": "regex", "pattern": "()"}
_ANY_TEXT: Final[Format] = {"type": "any_text"}

_LINE: Final = re.compile(
    r'%tag (?P<tag>\w+) (?P<text>".*")|(?P<rule>\w+): (?P<expression>.*)|%text \w+ .*'
)
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|/(?P<regex>(?:[^/\\]|\\.)+)/|(?P<name>@?\w+)'
    r"|(?P<json>%json )|(?P<sign>[()|?*]))"
)


class CannotTranslate(ValueError):
    """The grammar has a part that structural tags do not."""


@dataclass(frozen=True, slots=True)
class _Until:
    """Any text, up to and including the tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class _Without:
    """Any text that has not the tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    """Nothing, or the item, once or often."""

    item: _Node
    often: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    items: tuple[_Node, ...]


_Node = Format | _Until | _Without | _Repeat | _Sequence | _Choice


def needs_structural_tag(grammar: Grammar) -> bool:
    return grammar.kind is GrammarKind.TAGGED_RULES or bool(grammar.frame)


def structural_tag(grammar: Grammar) -> str:
    """The structural tag, as JSON, of tagged rules or of a grammar in a frame of them.

    Raises CannotTranslate.
    """
    if grammar.kind is GrammarKind.TAGGED_RULES:
        found = _format(_Rules(grammar.source, None).start())
    else:
        found = _format(_Rules(grammar.frame, _answer(grammar)).start())
    return json.dumps({"type": "structural_tag", "format": found})


def _answer(grammar: Grammar) -> Format:
    write = _ANSWERS.get(grammar.kind)
    if write is None:
        raise CannotTranslate(f"a {grammar.kind.value} beside reasoning or calls")
    return write(grammar.source)


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text} if text else _NOTHING


def _schema(schema: Mapping[str, Any]) -> Format:
    known = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"type": "json_schema", "json_schema": known}


_ANSWERS: Final[Mapping[GrammarKind, Callable[[str], Format]]] = {
    GrammarKind.JSON_SCHEMA: lambda source: _schema(json.loads(source)),
    GrammarKind.JSON_OBJECT: lambda source: _schema({"type": "object"}),
    GrammarKind.REGEX: lambda source: {"type": "regex", "pattern": source},
    GrammarKind.GRAMMAR: lambda source: {"type": "grammar", "grammar": source},
    GrammarKind.CHOICE: lambda source: _either([_const(text) for text in json.loads(source)]),
    GrammarKind.STRUCTURAL_TAG: lambda source: _tag_format(json.loads(source)),
}


def _tag_format(body: Mapping[str, Any]) -> Format:
    if "format" in body:
        format_: Format = body["format"]
        return format_
    tags = [
        {"begin": item["begin"], "content": _schema(item["schema"]), "end": item["end"]}
        for item in body["structures"]
    ]
    return {"type": "triggered_tags", "triggers": body["triggers"], "tags": tags}


# Reading


class _Rules:
    """Args: answer: what `@answer` is."""

    def __init__(self, source: str, answer: Format | None) -> None:
        self._answer = answer
        self._tags: dict[str, str] = {}
        self._rules: dict[str, str] = {}
        for line in source.splitlines():
            match = _LINE.fullmatch(line)
            if match is None:
                raise CannotTranslate(f"the line {line[:80]!r}")
            if match["tag"]:
                self._tags[match["tag"]] = json.loads(match["text"])
            elif match["rule"]:
                self._rules[match["rule"]] = match["expression"]

    def start(self) -> _Node:
        return self.named("start")

    def named(self, name: str) -> _Node:
        """What a name in an expression stands for."""
        if name == "@answer" and self._answer is not None:
            return self._answer
        if name in self._tags:
            return _const(self._tags[name])
        for prefix, node in (("until_", _Until), ("without_", _Without)):
            tag = self._tags.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if tag is not None:
                return node(tag)
        if name not in self._rules or name.isupper():
            raise CannotTranslate(f"the term {name}")
        return _Reader(self._rules[name], self).read()


class _Reader:
    """Reads one expression."""

    def __init__(self, source: str, rules: _Rules) -> None:
        self._source = source
        self._rules = rules
        self._at = 0

    def read(self) -> _Node:
        node = self._choice()
        if self._source[self._at :].strip():
            raise CannotTranslate(f"the expression {self._source[self._at :][:80]!r}")
        return node

    def _choice(self) -> _Node:
        items = [self._sequence()]
        while self._take("|"):
            items.append(self._sequence())
        return items[0] if len(items) == 1 else _Choice(tuple(items))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            if self._take("?"):
                item = _Repeat(item, often=False)
            elif self._take("*"):
                item = _Repeat(item, often=True)
            items.append(item)
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        if self._take("("):
            node = self._choice()
            if not self._take(")"):
                raise CannotTranslate("a parenthesis that is left open")
            return node
        match = _TOKEN.match(self._source, self._at)
        if match is None or match["sign"]:
            return None
        self._at = match.end()
        if match["text"] is not None:
            return _const(json.loads(match["text"]))
        if match["regex"] is not None:
            return {"type": "regex", "pattern": match["regex"]}
        if match["json"]:
            schema, self._at = json.JSONDecoder().raw_decode(self._source, self._at)
            return _schema(schema)
        return self._rules.named(match["name"])

    def _take(self, sign: str) -> bool:
        match = _TOKEN.match(self._source, self._at)
        if match is None or match["sign"] != sign:
            return False
        self._at = match.end()
        return True


# Writing


def _format(node: _Node) -> Format:
    match node:
        case _Until(tag):
            return {"type": "tag", "begin": "", "content": _ANY_TEXT, "end": tag}
        case _Without(tag):
            raise CannotTranslate(f"text without {tag}")
        case _Repeat(item, often):
            return _repeated(_format(item), MAX_REPEATS if often else 1)
        case _Choice(items):
            return _tags_once(items) or _either([_format(item) for item in items])
        case _Sequence(items):
            return _tags_often(items) or _joined([_format(item) for item in items])
        case _:
            return node


def _either(formats: Sequence[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": list(formats)}


def _joined(formats: Sequence[Format]) -> Format:
    elements: list[Format] = []
    for item in formats:
        elements += item["elements"] if item["type"] == "sequence" else [item]
    elements = [item for item in elements if item != _NOTHING] or [_NOTHING]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _repeated(item: Format, most: int) -> Format:
    found = _NOTHING
    for _ in range(most):
        found = _either([_joined([item, found]), _NOTHING])
    return found


def _tags_often(items: tuple[_Node, ...]) -> Format | None:
    """`(until_tag rest)* without_tag` at the end: free text in which tags may come."""
    match items[-2:]:
        case (_Repeat(_Sequence((_Until(tag), *rest)), often=True), _Without(outside)):
            if tag == outside:
                tags = _triggered(tag, rest, stop_after_first=False)
                return _joined([*map(_format, items[:-2]), tags])
    return None


def _tags_once(items: tuple[_Node, ...]) -> Format | None:
    """`until_tag rest | without_tag`: free text that a tag may end."""
    match items:
        case (_Sequence((_Until(tag), *rest)), _Without(outside)) if tag == outside:
            return _triggered(tag, rest, stop_after_first=True)
    return None


def _triggered(tag: str, rest: Sequence[_Node], *, stop_after_first: bool) -> Format:
    content = _joined([_format(item) for item in rest])
    elements = content["elements"] if content["type"] == "sequence" else [content]
    end = elements[-1]
    if end["type"] != "const_string" or len(elements) < 2:
        raise CannotTranslate(f"what follows {tag} without an end of its own")
    return {
        "type": "triggered_tags",
        "triggers": [tag],
        "tags": [{"begin": tag, "content": _joined(elements[:-1]), "end": end["value"]}],
        "at_least_one": False,
        "stop_after_first": stop_after_first,
    }
