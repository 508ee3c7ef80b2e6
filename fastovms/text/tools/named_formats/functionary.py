"""Reads and constrains Functionary's calls. Version 3.1, as Llama 3.1 for functions of one's own:
`<function=add>{"a": 1}</function>`. Version 3.2, where the prompt has written the first sign:

>>>all
text>>>add
{"a": 1}
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, TriggeredTag, in_order, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.calls.xml_call import read_name
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

BEGIN, END = "<function=", "</function>"
SIGN = ">>>"
ALL = "all\n"


def _read_element(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    scan.record()
    name = yield from read_name(scan, ">")
    opening += scan.recorded()
    if (yield from read_arguments(scan, out, name, opening, (END,))):
        yield from read_end(scan, out, END)


def _read_part(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    """Reads a call to a known function, or what says that text follows."""
    if (yield from scan.take(ALL, is_first=not opening)):
        return
    for tool in tools:
        begin = f"{tool.name}\n"
        if (yield from scan.take(begin, is_first=not opening)):
            yield from read_arguments(scan, out, tool.name, opening + begin)
            return
    out.broken(opening)


def element_grammar(choice: CallChoice) -> Node:
    rest = in_order(named_call(choice.tools, ">"), END)
    return tagged_calls(choice, BEGIN, rest, between="")


def sign_grammar(choice: CallChoice) -> Node:
    call = named_call(choice.tools, "\n")
    calls = several(call, SIGN) if choice.parallel else call
    text = in_order(ALL, TriggeredTag(SIGN, calls, once=True))
    return calls if choice.required else one_of(calls, text)


FUNCTIONARY_V31 = ToolFormat(
    "functionary_v31",
    tags=(),
    parse=TaggedCalls((BEGIN,), _read_element),
    grammar=element_grammar,
    aliases=("functionary_v3_llama_31",),
    marks=(("<|start_header_id|>", "<function="),),
)
FUNCTIONARY_V32 = ToolFormat(
    "functionary_v32",
    tags=(),
    parse=TaggedCalls((SIGN,), _read_part, bare=("",), end_thoughts=False),
    grammar=sign_grammar,
    aliases=("functionary_v3",),
    marks=((">>>all",),),
)
