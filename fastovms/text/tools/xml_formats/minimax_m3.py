"""Reads and constrains MiniMax M3's calls, in which each tag stands behind a token, left out here:

<tool_call>
<invoke name="add"><a>1</a><more><item>2</item></more></invoke>
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.nested_elements import nested_elements, read_elements
from fastovms.text.tools.calls.xml_call import read_name
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_next,
    tagged_calls,
)

TOKEN = "]<]minimax[>["
BEGIN, END = f"{TOKEN}<tool_call>", f"{TOKEN}</tool_call>"
INVOKE, INVOKE_END = f"{TOKEN}<invoke name=", "</invoke>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening == BEGIN:
        opening = yield from read_begin(scan, out, BEGIN, INVOKE)
    while opening and (yield from _read_call(scan, out, tools, opening)):
        opening = yield from read_next(scan, out, INVOKE, END)


def _read_call(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[bool]:
    scan.record()
    name = yield from read_name(scan, ">")
    read = scan.recorded()
    if not name:
        out.broken(opening + read)
        return False
    out.begin(name)
    tool = next((tool for tool in tools if tool.name == name), None)
    is_whole = yield from read_elements(scan, out, TOKEN, tool, INVOKE_END)
    out.end(complete=is_whole)
    return is_whole


def grammar(choice: CallChoice) -> Node:
    calls = [
        in_order(
            Tag(f'{INVOKE}"{tool.name}">'),
            nested_elements(tool, TOKEN),
            Tag(f"{TOKEN}{INVOKE_END}"),
        )
        for tool in choice.tools
    ]
    call = several(one_of(*calls), "\n") if choice.parallel else one_of(*calls)
    return tagged_calls(choice, BEGIN, in_order("\n", call, "\n", Tag(END)), between=None)


MINIMAX_M3 = ToolFormat(
    "minimax_m3",
    tags=(TOKEN,),
    parse=TaggedCalls((BEGIN, INVOKE), read),
    grammar=grammar,
    marks=((TOKEN,),),
)
