"""Declares what a format of calls consists of: its tags, its parser, its grammar, and how it is
known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastovms.grammar_tree import Node, Tag, TriggeredTag, in_order, several
from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.parameters import CallChoice
from fastovms.text.scanning import Incremental, PieceCollector, Scanner

ReadCalls = Callable[[Scanner, PieceCollector, str], Incremental[None]]
"""Reads the calls after a tag, which has been read and is passed in; text that is not a call
becomes content, the tag included."""

WriteGrammar = Callable[[CallChoice], Node]
"""Builds the grammar of an answer, or of what follows the reasoning in it. Raises InvalidField: a
schema is not supported in the format."""


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """The tags of the calls in a family's answers.

    Attributes:
        begins: tags that begin calls at any place; no tag is the beginning of another.
        read: reads what follows such a tag.
        bare: what an answer begins with if it begins with calls that have no tag; `read` gets "" in
            place of one.
        end_thoughts: whether a call ends the reasoning that it is in. Otherwise reasoning may
            contain examples of calls, as with tags that other texts have too.
    """

    begins: tuple[str, ...]
    read: ReadCalls
    bare: tuple[str, ...] = ()
    end_thoughts: bool = True


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form in which models of a family write their calls.

    Attributes:
        name: as `--tool-parser` takes it.
        tags: the markup. Those of them that are special tokens of the vocabulary must be kept in
            the decoded text.
        parse: finds the calls; or the form of messages that calls are a kind of.
        grammar: what constrains them: their arguments follow the schemas once a call has begun.
        aliases: names that other servers have for it.
        marks: sets of texts. A chat template that has all the texts of one of them asks the model
            for this format.
    """

    name: str
    tags: tuple[str, ...]
    parse: TaggedCalls | HeadedMessages
    grammar: WriteGrammar
    aliases: tuple[str, ...] = ()
    marks: tuple[tuple[str, ...], ...] = ()

    def is_taught_by(self, template: str) -> bool:
        """Returns whether a chat template, given as its source, asks for this format."""
        return any(all(mark in template for mark in marks) for marks in self.marks)


def tagged_calls(choice: CallChoice, begin: str, rest: Node, between: str | Node | None) -> Node:
    """Returns the grammar of calls that begin with a tag.

    Args:
        begin: the tag.
        rest: what follows the tag, one call or, without `between`, all of them.
        between: what separates a call from the next one's tag.
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
    """Reads a call's tag after the tag of all calls, if that is what has been read.

    Args:
        opening: the tag that has been read: either of them.
        begin: the tag of all calls.
        tag: the call's.

    Returns:
        What was read, `opening` included; "" = the call's tag is missing, and what was read is
        content.
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
        What was read up to and with the next call's tag; "" = there is none. Text that is neither
        tag is content.
    """
    space = yield from scan.space()
    if (yield from scan.take(tag)):
        return space + tag
    if not (yield from scan.take(end)):
        out.content(space)
    return ""


def read_end(scan: Scanner, out: PieceCollector, tag: str) -> Incremental[None]:
    """Reads the tag after a call, if it is there, or its beginning at the end of the text."""
    space = yield from scan.space()
    if not (yield from scan.take(tag)):
        out.content(space)
