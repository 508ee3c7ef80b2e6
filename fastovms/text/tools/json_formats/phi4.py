"""Reads and constrains Phi 4 mini's calls: `functools[{"name": "add", "arguments": {"a": 1}},
...]`, and the same between `<|tool_call|>` and `<|/tool_call|>`."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, json_calls, read_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

BEGIN = "functools["
TAG = "<|tool_call|>"
END = "<|/tool_call|>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening == BEGIN:
        scan.put_back("[")
    if (yield from read_calls(scan, out, opening.removesuffix("["))):
        yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    calls = json_calls(json_call(choice.tools), parallel=choice.parallel, begin="")
    return tagged_calls(choice, BEGIN, calls, between=None)


PHI4 = ToolFormat(
    "phi4",
    tags=(TAG, END),
    parse=TaggedCalls((BEGIN, TAG), read),
    grammar=grammar,
    aliases=("phi4_mini_json",),
    marks=(("functools",), ("<|tool|>", "<|/tool|>")),
)
