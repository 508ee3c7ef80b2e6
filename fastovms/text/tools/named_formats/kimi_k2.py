"""Reads and constrains Kimi K2's calls:

<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}
<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastovms.grammar_tree import Node, Regex, Tag, in_order, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_end,
    tagged_calls,
)

ALL_BEGIN, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*(?:functions\.)?(.+?)(?::\d+)?\s*", re.DOTALL)


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening == ALL_BEGIN:
        opening = yield from read_begin(scan, out, ALL_BEGIN, BEGIN)
        if not opening:
            return
    pieces: list[str] = []
    tag = yield from scan.until((ARGUMENTS, BEGIN, END, ALL_END), pieces.append)
    called = "".join(pieces)
    opening += called + (tag or "")
    found = _ID.fullmatch(called)
    if tag != ARGUMENTS or found is None:
        out.broken(opening)
    elif (yield from read_arguments(scan, out, found[1], opening, (END,))):
        yield from read_end(scan, out, END)
        yield from read_end(scan, out, ALL_END)


def grammar(choice: CallChoice) -> Node:
    between = in_order(":", one_of("0", Regex("[0-9]{1,3}")), Tag(ARGUMENTS))
    call = in_order(Tag(BEGIN), "functions.", named_call(choice.tools, between), Tag(END))
    calls = several(call, "") if choice.parallel else call
    return tagged_calls(choice, ALL_BEGIN, in_order(calls, Tag(ALL_END)), between=None)


KIMI_K2 = ToolFormat(
    "kimi_k2",
    tags=(ALL_BEGIN, ALL_END, BEGIN, END, ARGUMENTS),
    parse=TaggedCalls((ALL_BEGIN, BEGIN), read),
    grammar=grammar,
    marks=((ALL_BEGIN,),),
)
