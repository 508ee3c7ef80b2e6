"""The definition of a tool-call format: its tags, parser, grammar and detection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from fastovms.grammar_tree import Node, Tag, TriggeredTag, in_order, several
from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.parameters import CallChoice
from fastovms.text.scanning import Incremental, PieceCollector, Scanner

T = TypeVar("T")

ReadCalls = Callable[[Scanner, PieceCollector, str], Incremental[None]]
"""Reads the calls after the given tag; text that is not a call becomes content, including the
tag."""

WriteGrammar = Callable[[CallChoice], Node]
"""Builds the grammar of an answer after its reasoning. Raises InvalidField if a schema is not
supported in the format."""


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """The tool-call tags of a model family.

    Attributes:
        begins: tags that begin calls anywhere; none is a prefix of another.
        read: parses the text after such a tag.
        bare: the beginnings of answers that start with calls without a tag; `read` then gets "" as
            the tag.
        end_reasoning: whether a call within reasoning ends the reasoning. Otherwise reasoning may
            contain examples of calls.
    """

    begins: tuple[str, ...]
    read: ReadCalls
    bare: tuple[str, ...] = ()
    end_reasoning: bool = True


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The tool-call format of a model family.

    Attributes:
        name: the name for `--tool-parser`.
        tags: the markup. Tags that are special tokens of the vocabulary must be kept in the decoded
            text.
        parse: the tool-call tags; or the message format in which calls are a kind of message.
        grammar: builds the grammar that enforces the schemas of arguments once a call has begun.
    """

    name: str
    tags: tuple[str, ...]
    parse: TaggedCalls | HeadedMessages
    grammar: WriteGrammar


class FormatRow(NamedTuple):
    """A row of a table of formats.

    Attributes:
        name: the name for `--tool-parser` or `--reasoning-parser`.
        where: the format, as "module.CONSTANT" below `fastovms.text.tools`, or the format itself.
        marks: sets of strings. A chat template that contains all strings of one set uses this
            format.
        aliases: other servers' names for it.
    """

    name: str
    where: object
    marks: tuple[tuple[str, ...], ...] = ()
    aliases: tuple[str, ...] = ()


def first_shown_format(rows: Iterable[FormatRow], template: str) -> str | None:
    """Returns the name of the first format whose marks a chat template's source contains; None =
    none."""
    for row in rows:
        if any(all(mark in template for mark in marks) for marks in row.marks):
            return row.name
    return None


class Formats(Mapping[str, T]):
    """Formats by name, in alphabetical order. A format is imported when it is looked up.

    Attributes:
        aliases: names by other servers' names.
    """

    def __init__(self, rows: Iterable[FormatRow]) -> None:
        self._rows = {row.name: row for row in sorted(rows, key=lambda row: row.name)}
        self.aliases = {alias: row.name for row in self._rows.values() for alias in row.aliases}

    def __getitem__(self, name: str) -> T:
        where: Any = self._rows[name].where
        if isinstance(where, str):
            module, _, constant = where.partition(".")
            where = getattr(import_module(f"fastovms.text.tools.{module}"), constant)
        found: T = where
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def tagged_calls(choice: CallChoice, begin: str, rest: Node, between: str | Node | None) -> Node:
    """Returns the grammar of calls that begin with a tag.

    Args:
        begin: the tag.
        rest: the grammar after the tag: of one call or, without `between`, of all calls.
        between: the text between a call and the tag of the next one.
    """
    once = between is None or not choice.parallel
    if not choice.required:
        # Where only one call is allowed the answer ends with it.
        return TriggeredTag(begin, rest, once)
    call = in_order(Tag(begin), rest)
    return call if between is None or once else several(call, between)


def read_begin(
    scan: Scanner, out: PieceCollector, opening: str, begin: str, tag: str
) -> Incremental[str]:
    """Reads the tag of the first call, if the tag of all calls has been read.

    Args:
        opening: the tag that has been read, one of the two.
        begin: the tag of all calls.
        tag: the tag of a call.

    Returns:
        The text read, including `opening`; "" = the call's tag is missing, and the text read
        becomes content.
    """
    if opening != begin:
        return opening
    opening += yield from scan.space()
    if not (yield from scan.take(tag)):
        out.broken(opening)
        return ""
    return opening + tag


def read_next(scan: Scanner, out: PieceCollector, tag: str, end: str) -> Incremental[str]:
    """Reads the text after a call: the next call's tag, or the tag after all calls.

    Returns:
        The text read, including the next call's tag; "" = no further call. Other text becomes
        content.
    """
    space = yield from scan.space()
    if (yield from scan.take(tag)):
        return space + tag
    if not (yield from scan.take(end)):
        out.content(space)
    return ""


def read_end(scan: Scanner, out: PieceCollector, tag: str) -> Incremental[None]:
    """Reads the tag after a call, or its beginning at the end of the text, if it comes next."""
    space = yield from scan.space()
    if not (yield from scan.take(tag)):
        out.content(space)
