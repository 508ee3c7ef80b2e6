"""Reads and constrains OLMo 3's calls, as in Python, a line each:

<function_calls>
add(a=1)
now()
</function_calls>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, in_order, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.pythonic_call import pythonic_call, read_call
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, tagged_calls

BEGIN = "<function_calls>"
END = "</function_calls>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    opening += yield from scan.space()
    while (yield from read_call(scan, out, opening)):
        opening = yield from scan.space()
        if (yield from scan.take(END)):
            return
        if (yield from scan.peek()) in ("", "<") or not opening:
            out.content(opening)
            return


def grammar(choice: CallChoice) -> Node:
    call = pythonic_call(choice)
    calls = several(call, "\n") if choice.parallel else call
    return tagged_calls(choice, BEGIN, in_order("\n", calls, "\n", END), between=None)


OLMO3 = ToolFormat(
    "olmo3",
    tags=(BEGIN, END),
    parse=TaggedCalls((BEGIN,), read),
    grammar=grammar,
    marks=((BEGIN,),),
)
