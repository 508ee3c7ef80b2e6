"""Makes formats in which calls are elements between tags: a table of the markup is all they
need."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_next,
    tagged_calls,
)


def tagged_xml(
    name: str,
    begin: str,
    end: str,
    form: XmlForm,
    *,
    is_list: bool = False,
    between: str | Node = "\n",
    aliases: tuple[str, ...] = (),
    marks: tuple[tuple[str, ...], ...] = (),
) -> ToolFormat:
    """Returns a format. Its reader takes any number of elements behind the tag, and elements
    without it.

    Args:
        end: the tag behind the elements.
        is_list: whether all calls stand behind one tag; else each has tags of its own.
        between: what stands between a call and the next.
    """
    function = form.function_begin

    def read(
        scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
    ) -> Incremental[None]:
        if opening == begin:
            opening = yield from read_begin(scan, out, begin, function)
        while opening and (yield from read_call(scan, out, tools, form, opening)):
            opening = yield from read_next(scan, out, function, end)

    def grammar(choice: CallChoice) -> Node:
        call = xml_calls(choice.tools, form)
        if is_list and choice.parallel:
            call = several(call, "\n")
        rest = in_order("\n", call, "\n", Tag(end))
        return tagged_calls(choice, begin, rest, between=None if is_list else between)

    return ToolFormat(
        name,
        tags=(begin, end),
        parse=TaggedCalls((begin, function), read),
        grammar=grammar,
        aliases=aliases,
        marks=marks,
    )
