"""Makes formats in which calls in JSON stand between tags: a table of the tags is all they need."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import EMPTY, MAYBE_LINE_BREAK, Node, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, json_calls, read_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls


def tagged_json(
    name: str,
    begin: str,
    end: str,
    *,
    also: tuple[str, ...] = (),
    is_list: bool = True,
    keys: tuple[str, str] = ("name", "arguments"),
    kind: str = "",
    first: Node = EMPTY,
    line: Node | str = "",
    aliases: tuple[str, ...] = (),
    marks: tuple[tuple[str, ...], ...] = (),
) -> ToolFormat:
    """Returns a format. Its reader takes one call or a list of them behind each tag.

    Args:
        end: the tag behind calls; empty = there is none.
        also: further tags that may begin calls.
        is_list: whether the calls stand in a list behind one tag; else each has tags of its own.
        keys: those of a function's name and of its arguments.
        kind: a tag behind the first, which says that calls follow.
        first: the grammar of what stands before the name in a call.
        line: what stands between tags and JSON.
    """

    def read(
        scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
    ) -> Incremental[None]:
        if kind:
            if not (yield from scan.take(kind)):
                out.broken(opening)
                return
            opening += kind
        if (yield from read_calls(scan, out, opening)) and end:
            yield from read_end(scan, out, end)

    def grammar(choice: CallChoice) -> Node:
        call = json_call(choice.tools, keys[1], keys[0], first)
        calls = json_calls(call, parallel=choice.parallel) if is_list else call
        begun = in_order(Tag(kind), line) if kind else line
        rest = in_order(begun, calls, *([line, Tag(end)] if end else []))
        return tagged_calls(choice, begin, rest, between=None if is_list else MAYBE_LINE_BREAK)

    return ToolFormat(
        name,
        tags=tuple(filter(None, (begin, *also, kind, end))),
        parse=TaggedCalls((begin, *also), read),
        grammar=grammar,
        aliases=aliases,
        marks=marks,
    )
