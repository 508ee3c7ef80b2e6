"""Reads and constrains xLAM's calls: `[{"name": "add", "arguments": {"a": 1}}, ...]` as the whole
answer; also in a block of code or behind the tags of others."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastovms.grammar_tree import Node, OtherText, Repeat, in_order, one_of
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, read_calls
from fastovms.text.tools.json_formats import plain_json
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end

TAGS = ("[TOOL_CALLS]", "<tool_call>")
END = "</tool_call>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening not in TAGS:
        yield from plain_json.read(scan, out, tools, opening)
    elif (yield from read_calls(scan, out, opening)):
        yield from read_end(scan, out, END)


def grammar(choice: CallChoice) -> Node:
    more = [Repeat(in_order(", ", json_call(choice.tools)))] if choice.parallel else []
    calls = in_order(json_call(choice.tools, begin="[{"), *more, "]")
    begins = [f'[{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    return calls if choice.required else one_of(calls, OtherText(tuple(begins)))


XLAM = ToolFormat(
    "xlam",
    tags=(*TAGS, END),
    parse=TaggedCalls(
        (*plain_json.BLOCKS, *TAGS), read, bare=plain_json.BEGINS, end_thoughts=False
    ),
    grammar=grammar,
    marks=(("make calls in a single JSON array",),),
)
