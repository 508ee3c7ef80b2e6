"""Llama 3 and 4. In JSON, at the beginning or behind a tag, several separated by semicolons:

    <|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}

And pythonic: `[add(a=1), now()]`, which Llama 4 may put between tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules, literal
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, read_call
from fastovms.text.tools.calls.pythonic_call import pythonic_calls
from fastovms.text.tools.lfm2 import read_list
from fastovms.text.tools.tool_format import ToolFormat

TAG = "<|python_tag|>"
LIST_BEGIN = "<|python_start|>"
LIST_END = "<|python_end|>"
TAGS = (TAG, LIST_BEGIN, LIST_END)


def parse(scan: Scanner, out: Output, tools: Sequence[Tool]) -> Steps[None]:
    out.content((yield from scan.space()))
    if (yield from scan.peek()) in ("{", "["):
        yield from _read_calls(scan, out, "")
    while tag := (yield from scan.until((TAG, LIST_BEGIN), out.content)):
        yield from _read_calls(scan, out, tag)


def _read_calls(scan: Scanner, out: Output, opening: str) -> Steps[None]:
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


def write_json_rules(rules: Rules, choice: CallChoice) -> str:
    call = rules.rule(json_call(choice.tools, "parameters"))
    more = f" ({literal('; ')} {call})*" if choice.parallel else ""
    calls = rules.rule(f"{call}{more}")
    tag = rules.tag(TAG)
    if choice.required:
        return f"{tag}? {calls}"
    without = rules.terminal(f"{_NO_CALL} & ~/(.|\\n)*{re.escape(TAG)}(.|\\n)*/")
    return f"({tag}? {calls} | {rules.text(tag, _NO_CALL)} {calls} | {without})"


def write_pythonic_rules(rules: Rules, choice: CallChoice) -> str:
    calls = rules.rule(pythonic_calls(rules, choice))
    return calls if choice.required else f"({calls} | {rules.terminal(_NO_LIST)})"


# Text that does not begin as a call does.
_NO_CALL = r'/(.|\n)*/ & ~/\s*\{"name": "(.|\n)*/'
_NO_LIST = r"/(.|\n)*/ & ~/\s*\[[A-Za-z_][A-Za-z0-9_.-]*\((.|\n)*/"

LLAMA3 = ToolFormat("llama3", tags=TAGS, parse=parse, rules=write_json_rules)
PYTHONIC = ToolFormat("pythonic", tags=TAGS, parse=parse, rules=write_pythonic_rules)
