"""Grammars of answers as trees. Text formats (tool calls, reasoning) build trees, and each grammar
compiler has its own renderer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace


class _Part(Struct, frozen=True, cache_hash=True):
    """Any part of a tree, usable as a cache key."""


class Literal(_Part, frozen=True):
    """A fixed, non-empty text."""

    text: str


class Tag(_Part, frozen=True):
    """Markup: the special token with this text if the vocabulary has one, otherwise the text."""

    text: str


class Until(_Part, frozen=True):
    """Any text, including special tokens, up to and including the tag."""

    tag: str


class TriggeredTag(_Part, frozen=True):
    """Any text in which each occurrence of the tag is followed by `rest`.

    Attributes:
        once: whether the text ends with the first `rest`; otherwise it continues, perhaps with
            other tags.
    """

    tag: str
    rest: Node
    once: bool


class FirstTag(_Part, frozen=True):
    """Any text up to the first of several tags, the tag, and the part that must follow that tag.

    Attributes:
        cases: the tags, and the part that follows each.
        must_come: whether a tag is required; otherwise text without tags is allowed.
    """

    cases: tuple[tuple[str, Node], ...]
    must_come: bool


class Regex(_Part, frozen=True):
    """Text without special tokens that matches regular expressions (syntax of Rust's `regex`) as a
    whole.

    Attributes:
        pattern: a regular expression that the text matches.
        also: further regular expressions that it must match.
        unlike: regular expressions that it must not match.
    """

    pattern: str
    also: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    def excluding(self, *patterns: str) -> Regex:
        """Returns this part with further regular expressions that it must not match."""
        return replace(self, unlike=(*self.unlike, *patterns))


class OtherText(_Part, frozen=True):
    """Text without special tokens and tags, with restrictions on its beginning.

    Attributes:
        begins: texts with which it must not begin, even after white space. A compiler that cannot
            check beginnings excludes them everywhere.
        tags: tags that must not occur in it.
    """

    begins: tuple[str, ...]
    tags: tuple[str, ...] = ()


class TextBefore(_Part, frozen=True):
    """Text up to and including its first end tag.

    Attributes:
        gap: the text between the text and the tag.
    """

    tag: str
    body: Regex
    gap: str = ""


class Json(_Part, frozen=True):
    """A JSON value without white space, except for optional spaces after colons and commas.

    Attributes:
        schema: the JSON schema, as JSON.
    """

    schema: str

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Json:
        """Returns the part for a schema, without llguidance's options in the schema: the renderers
        set their own."""
        return cls(json.dumps({key: schema[key] for key in schema if key != "x-guidance"}))


class OtherTag(_Part, frozen=True):
    """A name between two fixed texts, other than some names.

    Attributes:
        before: the text before the name; special tokens in it are not recognized.
        patterns: regular expressions that the name matches as a whole.
        names: names that are excluded, if the compiler supports that.
    """

    before: str
    patterns: tuple[str, ...]
    after: str
    names: tuple[str, ...]


class Answer(_Part, frozen=True):
    """The place of the client's own constraint: `source` of the `params.Grammar` with this tree."""


class InOrder(_Part, frozen=True):
    """A sequence of parts."""

    items: tuple[Node, ...]


class OneOf(_Part, frozen=True):
    """A choice between parts."""

    items: tuple[Node, ...]


class Repeat(_Part, frozen=True):
    """Zero or more repetitions of an item."""

    item: Node


class Several(_Part, frozen=True):
    """One or more repetitions of an item, with a separator in between."""

    item: Node
    separator: Node


class Separated(_Part, frozen=True):
    """Items in a fixed order, with a separator in between.

    Attributes:
        items: the items, each with whether it is required.
        more: an item that may follow any number of times; None = none.
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
    """Returns the sequence of the parts; strings become literals."""
    items: list[Node] = []
    for part in map(_node, parts):
        items += part.items if isinstance(part, InOrder) else [part]
    return items[0] if len(items) == 1 else InOrder(tuple(items))


def one_of(*parts: Node | str) -> Node:
    """Returns a choice of the parts; strings become literals."""
    return _node(parts[0]) if len(parts) == 1 else OneOf(tuple(map(_node, parts)))


def optional(part: Node) -> Node:
    """Returns a part that may be absent."""
    return OneOf((part, EMPTY))


def several(item: Node, separator: Node | str) -> Node:
    """Returns one or more repetitions of an item, with a separator in between."""
    return Several(item, _node(separator))


def after_first_tag(tree: Node) -> tuple[str, Node] | None:
    """Returns the first tag of a tree, at its beginning or after any text, and the rest after that
    tag; None = there is no such tag."""
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
    """Returns the total number of characters of texts, regular expressions and schemas in a tree;
    an item that occurs twice counts once."""
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
