"""Reads and constrains Granite 3's calls: `<|tool_call|>[{"name": "add", "arguments": {"a": 1}},
...]`.

Granite 3.1 and 4 write `<tool_call>` for the tag, Granite 4 a call at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, json_calls, read_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

BEGIN = "<|tool_call|>"
OTHER_BEGIN = "<tool_call>"
END = "</tool_call>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if (yield from read_calls(scan, out, opening)):
        yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    calls = json_calls(json_call(choice.tools), parallel=choice.parallel)
    return tagged_calls(choice, BEGIN, calls, between=None)


GRANITE = ToolFormat(
    "granite",
    tags=(BEGIN, OTHER_BEGIN, END),
    parse=TaggedCalls((BEGIN, OTHER_BEGIN), read),
    grammar=grammar,
    marks=((BEGIN,),),
)
