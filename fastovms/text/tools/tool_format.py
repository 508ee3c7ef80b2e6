"""What a format of calls consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastovms.text.scanning.headed_messages import MessageForm
from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice, Tool

Parse = Callable[[Scanner, Output, Sequence[Tool]], Steps[None]]
"""Reads an answer, or what follows the reasoning in it, to its end."""

WriteRules = Callable[[Rules, CallChoice], str]
"""Writes the rules of an answer, or of what follows the reasoning in it; returns its expression."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How models of a family write their calls.

    Attributes:
        name: as `--tool-parser` takes it.
        tags: the markup. Those of them that are special tokens of the vocabulary must be kept in
            the decoded text.
        parse: finds the calls; or the form of messages that calls are a kind of.
        rules: what constrains them: their arguments follow the schemas once a call has begun.
    """

    name: str
    tags: tuple[str, ...]
    parse: Parse | MessageForm
    rules: WriteRules


def tagged_calls(
    rules: Rules, choice: CallChoice, *, begin: str, block: str, between: str | None
) -> str:
    """The expression of calls that begin with a tag.

    Args:
        begin: expression of the tag.
        block: what follows the tag, one call or, without `between`, all of them.
        between: expression of what separates a call from the next one's tag.
    """
    several = choice.parallel and between is not None
    if choice.required:
        return f"{begin} {block}" + (f" ({between} {begin} {block})*" if several else "")
    if several:
        return f"(until_{begin} {block})* without_{begin}"
    # The answer ends with its only call: what would have been the next one has no place.
    return f"(until_{begin} {block} | without_{begin})"


def read_end(scan: Scanner, out: Output, tag: str) -> Steps[None]:
    """Reads the tag behind a call, if it is there, or what there is of it at the end."""
    space = yield from scan.space()
    if not (yield from scan.take(tag)):
        out.content(space)
        scan.skip_cut(tag)
