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
from fastovms.text.tools.calls.json_call import json_calls, read_calls
from fastovms.text.tools.tool_format import ToolFormat, read_end, tagged_calls

BEGIN = "<|tool_call|>"
OTHER_BEGIN = "<tool_call>"
END = "</tool_call>"


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    tags = (BEGIN, OTHER_BEGIN, *([out.answer_end] if out.answer_end else []))
    while opening := (yield from scan.until(tags, out.content)):
        if opening == out.answer_end:
            continue
        if (yield from read_calls(scan, out, opening)):
            yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    calls = json_calls(choice.tools, parallel=choice.parallel)
    return tagged_calls(choice, BEGIN, calls, between=None)


GRANITE = ToolFormat("granite", tags=(BEGIN, OTHER_BEGIN, END), parse=parse, grammar=grammar)
