"""Reads a call that is written as a name and a JSON object, with markup between them."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, in_order, one_of
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import copy_json
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import Tool


def named_call(tools: Sequence[Tool], between: Node | str) -> Node:
    """Returns the grammar of a call to one of `tools`. `between` is the grammar of the markup."""
    return one_of(*[in_order(tool.name, between, tool.arguments) for tool in tools])


def read_arguments(
    scan: Scanner, out: PieceCollector, name: str, opening: str, ends: Sequence[str] = ()
) -> Incremental[bool]:
    """Reads the arguments of a call and says whether they were all there.

    They are passed on as they are generated. Where something else comes next, `opening`, the
    markup that has been read before it, becomes content.

    Args:
        ends: markup before which no arguments at all are `{}`; so are none where the model has
            ended the text.
    """
    space = yield from scan.space()
    if not name:
        out.broken(opening + space)
        return False
    following = yield from scan.peek()
    if following == "{":
        out.begin(name)
        is_complete = yield from copy_json(scan, out.arguments)
        out.end(complete=is_complete)
        return is_complete
    is_empty = not following and not scan.is_cut
    if not is_empty and not (yield from scan.starts(*ends)):
        out.broken(opening + space)
        return False
    out.begin(name)
    out.arguments("{}")
    out.end(complete=True)
    return True
