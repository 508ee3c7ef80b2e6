"""Reads and constrains LFM 2's calls: `<|tool_call_start|>[add(a=1), now()]<|tool_call_end|>`; also
with calls in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls import call_list, json_call, pythonic_call
from fastovms.text.tools.tool_format import ToolFormat, read_end, tagged_calls

BEGIN = "<|tool_call_start|>"
END = "<|tool_call_end|>"


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    while (yield from scan.until((BEGIN,), out.content)):
        if (yield from read_list(scan, out, BEGIN)):
            yield from read_end(scan, out, END)


def read_list(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    """Reads a list of calls, pythonic or in JSON, and says whether they were whole. What breaks
    before the first, `opening` included, becomes content."""
    opening += yield from scan.space()
    if (yield from scan.peek()) == "{":
        return (yield from json_call.read_call(scan, out, opening))
    if not (yield from scan.take("[")):
        out.content(opening)
        return False
    opening += "["
    opening += yield from scan.space()
    is_json = (yield from scan.peek()) == "{"
    read_call = json_call.read_call if is_json else pythonic_call.read_call
    return (yield from call_list.read_list(scan, out, opening, read_call))


def grammar(choice: CallChoice) -> Node:
    rest = in_order(pythonic_call.pythonic_calls(choice), Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=None)


LFM2 = ToolFormat("lfm2", tags=(BEGIN, END), parse=parse, grammar=grammar)
