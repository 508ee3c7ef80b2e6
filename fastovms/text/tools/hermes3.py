"""Reads and constrains the calls of Hermes and of Qwen 2.5 and 3: `<tool_call>{"name": "add",
"arguments": {"a": 1}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, read_call
from fastovms.text.tools.tool_format import ToolFormat, read_end, tagged_calls

BEGIN = "<tool_call>"
END = "</tool_call>"


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    while (yield from scan.until((BEGIN,), out.content)):
        if (yield from read_call(scan, out, BEGIN)):
            yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    rest = in_order(MAYBE_LINE_BREAK, json_call(choice.tools), MAYBE_LINE_BREAK, Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=MAYBE_LINE_BREAK)


HERMES3 = ToolFormat("hermes3", tags=(BEGIN, END), parse=parse, grammar=grammar)
