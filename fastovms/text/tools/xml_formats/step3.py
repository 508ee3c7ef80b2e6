"""Reads and constrains Step 3's calls:

<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="add">
<steptml:parameter name="a">1</steptml:parameter></steptml:invoke><｜tool_call_end｜>
<｜tool_calls_end｜>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

ALL_BEGIN, ALL_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
BEGIN, END, SEPARATOR = "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"
_KIND = "function"
FORM = XmlForm(
    function=('<steptml:invoke name="', '">'),
    function_end="</steptml:invoke>",
    parameter=('<steptml:parameter name="', '">'),
    parameter_end="</steptml:parameter>",
    trims_lines=False,
)


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    """Reads a call. What the markup before it says is in it, too."""
    if opening == ALL_BEGIN:
        opening += yield from scan.space()
        if (yield from scan.take(BEGIN)):
            opening += BEGIN
    pieces: list[str] = []
    invoke = FORM.function_begin
    found = yield from scan.until((invoke, END, ALL_END), pieces.append)
    opening += "".join(pieces) + (found or "")
    if found != invoke:
        out.broken(opening)
    elif (yield from read_call(scan, out, tools, FORM, opening)):
        yield from read_end(scan, out, END)
        yield from scan.take(SEPARATOR)
        yield from read_end(scan, out, ALL_END)


def grammar(choice: CallChoice) -> Node:
    call = in_order(Tag(BEGIN), _KIND, Tag(SEPARATOR), xml_calls(choice.tools, FORM), Tag(END))
    calls = several(call, "") if choice.parallel else call
    return tagged_calls(choice, ALL_BEGIN, in_order(calls, Tag(ALL_END)), between=None)


STEP3 = ToolFormat(
    "step3",
    tags=(ALL_BEGIN, ALL_END, BEGIN, END, SEPARATOR),
    parse=TaggedCalls((ALL_BEGIN, BEGIN), read),
    grammar=grammar,
    marks=(("steptml:invoke",),),
)
