"""Reads and constrains the calls of GLM 4.5 and later, in which the line breaks may be missing:

<tool_call>add
<arg_key>a</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node, Tag, in_order, one_of
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import (
    XmlForm,
    read_named_call,
    unquoted,
    xml_arguments,
)
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, tagged_calls

BEGIN = "<tool_call>"
END = "</tool_call>"
FORM = XmlForm(
    function=("", ""),
    function_end=END,
    parameter=("<arg_key>", "</arg_key>"),
    parameter_end="</arg_value>",
    value="<arg_value>",
    trims_lines=False,
    gap="\n",
    tokens=("<arg_key>", "</arg_key>"),
)
TAGS = (BEGIN, END, *FORM.parameter, FORM.value, FORM.parameter_end)


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    name = yield from read_name(scan)
    yield from read_named_call(scan, out, tools, FORM, name, opening)


def read_name(scan: Scanner) -> Incremental[str]:
    """Reads a function's name, which ends before a line break or a tag. What it reads is
    recorded."""
    scan.record()
    yield from scan.space()
    pieces: list[str] = []
    end = yield from scan.until(("\n", "<"), pieces.append)
    if end:
        scan.put_back(end)
    return unquoted("".join(pieces))


def grammar(choice: CallChoice) -> Node:
    calls = [
        in_order(tool.name, MAYBE_LINE_BREAK, xml_arguments(tool, FORM)) for tool in choice.tools
    ]
    rest = in_order(one_of(*calls), Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=MAYBE_LINE_BREAK)


GLM45 = ToolFormat(
    "glm45",
    tags=TAGS,
    parse=TaggedCalls((BEGIN,), read),
    grammar=grammar,
    aliases=("glm47",),
    marks=(("<arg_key>", "<arg_value>"),),
)
