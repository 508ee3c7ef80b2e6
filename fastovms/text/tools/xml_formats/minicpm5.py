"""Reads and constrains MiniCPM 5's calls: `<function name="add"><param
name="a">1</param></function>`.

Values with markup or line breaks in them are wrapped in CDATA.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, tagged_calls

TOKENS = ("<function", "<param")
FORM = XmlForm(
    function=('<function name="', '">'),
    function_end="</function>",
    parameter=('<param name="', '">'),
    parameter_end="</param>",
    has_cdata=True,
    tokens=TOKENS,
)


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    yield from read_call(scan, out, tools, FORM, opening)


def grammar(choice: CallChoice) -> Node:
    begin, _ = TOKENS
    call = xml_calls(choice.tools, FORM, begun=begin)
    return tagged_calls(choice, begin, call, between=MAYBE_LINE_BREAK)


MINICPM5 = ToolFormat(
    "minicpm5",
    tags=(*TOKENS, FORM.function_end, FORM.parameter_end),
    parse=TaggedCalls((FORM.function_begin,), read),
    grammar=grammar,
    marks=(('<param name="',),),
)
