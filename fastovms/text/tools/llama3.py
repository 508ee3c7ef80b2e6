"""Reads and constrains the calls of Llama 3 and 4.

In JSON, at the beginning or behind a tag, several separated by semicolons:

    <|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}

And pythonic: `[add(a=1), now()]`, which Llama 4 may put between tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastovms.grammar_tree import ANY_TEXT, Node, Tag, TextBefore, in_order, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, read_call
from fastovms.text.tools.calls.pythonic_call import pythonic_calls
from fastovms.text.tools.lfm2 import read_list
from fastovms.text.tools.tool_format import ToolFormat

TAG = "<|python_tag|>"
LIST_BEGIN = "<|python_start|>"
LIST_END = "<|python_end|>"
TAGS = (TAG, LIST_BEGIN, LIST_END)


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    out.content((yield from scan.space()))
    if (yield from scan.peek()) in ("{", "["):
        yield from _read_calls(scan, out, "")
    while tag := (yield from scan.until((TAG, LIST_BEGIN), out.content)):
        yield from _read_calls(scan, out, tag)


def _read_calls(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    num_calls = out.num_calls
    opening += yield from scan.space()
    if (yield from scan.peek()) == "[":
        yield from read_list(scan, out, opening)
    else:
        while (yield from read_call(scan, out, opening)):
            opening = yield from scan.space()
            if not (yield from scan.take(";")):
                out.content(opening)
                break
            opening += ";" + (yield from scan.space())
            if not (yield from scan.peek()):
                break
    if out.num_calls > num_calls:
        out.content((yield from scan.space()))
        yield from scan.take(LIST_END)


def json_grammar(choice: CallChoice) -> Node:
    call = json_call(choice.tools, "parameters")
    calls = several(call, "; ") if choice.parallel else call
    begun = in_order(one_of(Tag(TAG), ""), calls)
    if choice.required:
        return begun
    without = _NO_CALL.excluding(f"(.|\\n)*{re.escape(TAG)}(.|\\n)*")
    return one_of(begun, in_order(TextBefore(TAG, _NO_CALL), calls), without)


def pythonic_grammar(choice: CallChoice) -> Node:
    calls = pythonic_calls(choice)
    return calls if choice.required else one_of(calls, _NO_LIST)


# Text that does not begin as a call does.
_NO_CALL = ANY_TEXT.excluding(r'\s*\{"name": "(.|\n)*')
_NO_LIST = ANY_TEXT.excluding(r"\s*\[[A-Za-z_][A-Za-z0-9_.-]*\((.|\n)*")

LLAMA3 = ToolFormat("llama3", tags=TAGS, parse=parse, grammar=json_grammar)
PYTHONIC = ToolFormat("pythonic", tags=TAGS, parse=parse, grammar=pythonic_grammar)
