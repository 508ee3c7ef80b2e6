"""Reads and constrains LFM 2's calls: `<|tool_call_start|>[add(a=1), now()]<|tool_call_end|>`; also
with calls in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.mixed_list import read_mixed_list
from fastovms.text.tools.calls.pythonic_call import pythonic_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

BEGIN = "<|tool_call_start|>"
END = "<|tool_call_end|>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if (yield from read_mixed_list(scan, out, opening)):
        yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    rest = in_order(pythonic_calls(choice), Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=None)


LFM2 = ToolFormat(
    "lfm2",
    tags=(BEGIN, END),
    parse=TaggedCalls((BEGIN,), read),
    grammar=grammar,
    marks=(
        (BEGIN,),
        ("<|tool_list_start|>",),
        ("<|assistant_tool_call|>",),
        ("keep_past_thinking",),
    ),
)
