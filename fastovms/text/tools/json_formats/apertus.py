"""Reads and constrains Apertus's calls: `<|tools_prefix|>[{"add": {"a": 1}}, ...]<|tools_suffix|>`,
each an object with the function's name for a key."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastovms.grammar_tree import Node, Tag, in_order, one_of
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import read_string
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.call_list import read_list
from fastovms.text.tools.calls.json_call import json_calls
from fastovms.text.tools.calls.named_call import read_arguments
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

BEGIN = "<|tools_prefix|>"
END = "<|tools_suffix|>"


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    opening += yield from scan.space()
    if not (yield from scan.take("[")):
        out.broken(opening)
    elif (yield from read_list(scan, out, opening + "[", _read_call)):
        yield from read_end(scan, out, END)


def _read_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    scan.record()
    is_call = yield from scan.take("{")
    yield from scan.space()
    name = (yield from read_string(scan)) if is_call else None
    yield from scan.space()
    is_call = bool(name) and (yield from scan.take(":"))
    opening += scan.recorded()
    if not is_call:
        out.broken(opening)
        return False
    if not (yield from read_arguments(scan, out, name or "", opening)):
        return False
    yield from scan.space()
    return (yield from scan.take("}"))


def grammar(choice: CallChoice) -> Node:
    names = [json.dumps(tool.name, ensure_ascii=False) for tool in choice.tools]
    calls = [
        in_order(f"{{{name}: ", tool.arguments, "}")
        for name, tool in zip(names, choice.tools, strict=True)
    ]
    rest = in_order(json_calls(one_of(*calls), parallel=choice.parallel), Tag(END))
    return tagged_calls(choice, BEGIN, rest, between=None)


APERTUS = ToolFormat(
    "apertus",
    tags=(BEGIN, END),
    parse=TaggedCalls((BEGIN,), read),
    grammar=grammar,
    marks=((BEGIN,),),
)
