"""Reads and constrains the calls of Qwen 3 Coder, Qwen 3.5 and later:

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from fastovms.text.tools.tool_format import ToolFormat, read_end, tagged_calls

BEGIN = "<tool_call>"
END = "</tool_call>"
FORM = XmlForm(
    function=("<function=", ">"),
    function_end="</function>",
    parameter=("<parameter=", ">"),
    parameter_end="</parameter>",
    line="\n",
    gap="\n",
)


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    function = FORM.function[0]
    while opening := (yield from scan.until((BEGIN, function), out.content)):
        if opening == BEGIN:
            opening += yield from scan.space()
            if not (yield from scan.take(function)):
                out.content(opening)
                continue
            opening += function
        if (yield from read_call(scan, out, tools, FORM, opening)):
            yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    rest = in_order("\n", xml_calls(choice.tools, FORM), "\n", Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=MAYBE_LINE_BREAK)


QWEN3CODER = ToolFormat("qwen3coder", tags=(BEGIN, END), parse=parse, grammar=grammar)
