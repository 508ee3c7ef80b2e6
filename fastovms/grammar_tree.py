"""Declares grammars of answers as trees of values: formats of text build them, and each compiler of
grammars has a renderer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace


class _Part(Struct, frozen=True, cache_hash=True):
    """Any part of a tree: a value, which a cache of grammars compares and looks up."""


class Literal(_Part, frozen=True):
    """A part that is the text itself, which is not empty."""

    text: str


class Tag(_Part, frozen=True):
    """A part that is markup: a special token if the vocabulary has one of this text, otherwise the
    text."""

    text: str


class Until(_Part, frozen=True):
    """A part that is anything, special tokens too, up to and including the tag."""

    tag: str


class TriggeredTag(_Part, frozen=True):
    """A part that is anything without the tag, or with the tag where `rest` follows it.

    Attributes:
        once: whether the text ends with the first `rest`; otherwise it continues, perhaps with
            other tags.
    """

    tag: str
    rest: Node
    once: bool


class FirstTag(_Part, frozen=True):
    """A part that is anything up to the first of some tags, that tag, and what goes with it.

    Attributes:
        cases: the tags, each with what follows it.
        must_come: whether one of them has to come; otherwise the part may be anything without them.
    """

    cases: tuple[tuple[str, Node], ...]
    must_come: bool


class Regex(_Part, frozen=True):
    """A part that is text without special tokens and as a whole matches expressions, as Rust's
    `regex` reads them.

    Attributes:
        pattern: one that it matches.
        also: more that it matches.
        unlike: expressions that it does not match.
    """

    pattern: str
    also: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    def excluding(self, *patterns: str) -> Regex:
        """Returns the same with more expressions that it does not match."""
        return replace(self, unlike=(*self.unlike, *patterns))


class OtherText(_Part, frozen=True):
    """A part that is text without special tokens, in which no tag stands, and which does not begin
    as something else does, white space before that or not.

    Attributes:
        begins: what it does not begin with. Where a compiler cannot tell beginnings apart, they
            stand nowhere in it.
        tags: what it does not have in it.
    """

    begins: tuple[str, ...]
    tags: tuple[str, ...] = ()


class TextBefore(_Part, frozen=True):
    """A part that consists of text up to its first end tag.

    Attributes:
        gap: text that stands between the two.
    """

    tag: str
    body: Regex
    gap: str = ""


class Json(_Part, frozen=True):
    """A part that is a JSON value with no more white space than a blank after a colon or a comma.

    Attributes:
        schema: JSON text of its schema.
    """

    schema: str

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Json:
        """Takes a schema without the options of llguidance that it may bring: the renderers know
        which they need."""
        return cls(json.dumps({key: schema[key] for key in schema if key != "x-guidance"}))


class OtherTag(_Part, frozen=True):
    """A part that is a name between two texts, other than some names.

    Attributes:
        before: the text in front of the name; special tokens are not looked for in it.
        patterns: expressions that the name matches as a whole.
        names: what the name is not. Where a compiler cannot tell, it may be.
    """

    before: str
    patterns: tuple[str, ...]
    after: str
    names: tuple[str, ...]


class Answer(_Part, frozen=True):
    """A part whose text the rest of the `params.Grammar` that the tree belongs to constrains."""


class InOrder(_Part, frozen=True):
    """A part that is its parts, one after the other."""

    items: tuple[Node, ...]


class OneOf(_Part, frozen=True):
    """A part that is one of its parts."""

    items: tuple[Node, ...]


class Repeat(_Part, frozen=True):
    """A part that is nothing, or the item, once or often."""

    item: Node


class Several(_Part, frozen=True):
    """A part that is the item, once or often, with the separator between one and the next."""

    item: Node
    separator: Node


class Separated(_Part, frozen=True):
    """A part that is items in their order, with the separator between one and the next.

    Attributes:
        items: each with whether it has to be there.
        more: what may follow them, any number of times; None = nothing.
    """

    items: tuple[tuple[Node, bool], ...]
    separator: str
    more: Node | None = None


Node = (
    Literal | Tag | Until | TriggeredTag | FirstTag | Regex | OtherText | TextBefore | Json
    | OtherTag | Answer | InOrder | OneOf | Repeat | Several | Separated
)  # fmt: skip

EMPTY = InOrder(())
ANY_TEXT = Regex(r"(.|\n)*")
MAYBE_LINE_BREAK = Regex(r"\n?")


def in_order(*parts: Node | str) -> Node:
    """Returns the parts, texts among them as literals, in their order."""
    items: list[Node] = []
    for part in map(_node, parts):
        items += part.items if isinstance(part, InOrder) else [part]
    return items[0] if len(items) == 1 else InOrder(tuple(items))


def one_of(*parts: Node | str) -> Node:
    """Returns a choice of the parts, texts among them as literals."""
    return _node(parts[0]) if len(parts) == 1 else OneOf(tuple(map(_node, parts)))


def optional(part: Node) -> Node:
    """Returns a choice of the part or nothing."""
    return OneOf((part, EMPTY))


def several(item: Node, separator: Node | str) -> Node:
    """Returns the item, once or often, with the separator between one and the next."""
    return Several(item, _node(separator))


def after_first_tag(tree: Node) -> tuple[str, Node] | None:
    """Returns the tag that a tree begins with, or that it waits for, and what follows it; None if
    there is no such tag."""
    match tree:
        case Tag(tag):
            return tag, EMPTY
        case TriggeredTag(tag, rest, once):
            return tag, rest if once else in_order(rest, tree)
        case InOrder((first, *others)):
            found = after_first_tag(first)
            return found and (found[0], in_order(found[1], *others))
        case Several(item, separator):
            found = after_first_tag(item)
            more = Repeat(in_order(separator, item))
            return found and (found[0], in_order(found[1], more))
        case _:
            return None


def _node(part: Node | str) -> Node:
    if isinstance(part, str):
        return Literal(part) if part else EMPTY
    return part


def num_characters(tree: Node | None) -> int:
    """Counts the characters of texts, expressions and schemas in a tree; an item that occurs twice
    counts once."""
    seen: set[object] = set()
    pending: list[object] = [tree]
    total = 0
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, tuple):
            pending += part
        elif isinstance(part, Struct) and part not in seen:
            seen.add(part)
            pending += astuple(part)
    return total
