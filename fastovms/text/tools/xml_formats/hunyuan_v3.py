"""Reads and constrains the calls of Hunyuan 3, which are GLM's but for two tags:

<tool_calls>
<tool_call>add<tool_sep>
<arg_key>a</arg_key>
<arg_value>1</arg_value>
</tool_call>
</tool_calls>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import read_named_call, xml_arguments
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_end,
    tagged_calls,
)
from fastovms.text.tools.xml_formats import glm45

ALL_BEGIN = "<tool_calls>"
ALL_END = "</tool_calls>"
SEPARATOR = "<tool_sep>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening == ALL_BEGIN:
        opening = yield from read_begin(scan, out, ALL_BEGIN, glm45.BEGIN)
        if not opening:
            return
    name = yield from glm45.read_name(scan)
    yield from scan.take(SEPARATOR)
    if (yield from read_named_call(scan, out, tools, glm45.FORM, name, opening)):
        yield from read_end(scan, out, ALL_END)


def grammar(choice: CallChoice) -> Node:
    calls = [
        in_order(Tag(glm45.BEGIN), tool.name, Tag(SEPARATOR), "\n", xml_arguments(tool, glm45.FORM))
        for tool in choice.tools
    ]
    call = in_order(one_of(*calls), Tag(glm45.END), "\n")
    calls_then_end = in_order(several(call, "") if choice.parallel else call, Tag(ALL_END))
    return tagged_calls(choice, ALL_BEGIN, in_order("\n", calls_then_end), between=None)


HUNYUAN_V3 = ToolFormat(
    "hunyuan_v3",
    tags=(ALL_BEGIN, ALL_END, SEPARATOR, *glm45.TAGS),
    parse=TaggedCalls((ALL_BEGIN, glm45.BEGIN), read),
    grammar=grammar,
    aliases=("hy_v3",),
    marks=(("<tool_sep>", "<arg_key>"),),
)
