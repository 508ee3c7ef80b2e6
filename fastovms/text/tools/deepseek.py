"""DeepSeek V3 and R1, each call in a fence of Markdown, and V3.1, without:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
```json
{"a": 1}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜>
<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>
<｜tool▁calls▁end｜>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules, literal
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import ToolFormat, read_end, tagged_calls

ALL_BEGIN = "<｜tool▁calls▁begin｜>"
ALL_END = "<｜tool▁calls▁end｜>"
BEGIN = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_KIND = "function"
_FENCES = ("```json", "```")


def parse(scan: Scanner, out: Output, tools: Sequence[Tool]) -> Steps[None]:
    while opening := (yield from scan.until((ALL_BEGIN, BEGIN), out.content)):
        if opening == ALL_BEGIN:
            opening += yield from scan.space()
            if not (yield from scan.take(BEGIN)):
                out.content(opening)
                continue
            opening += BEGIN
        if (yield from _read_call(scan, out, opening)):
            yield from read_end(scan, out, ALL_END)


def _read_call(scan: Scanner, out: Output, opening: str) -> Steps[bool]:
    scan.record()
    pieces: list[str] = []
    tag = yield from scan.until((SEPARATOR, END, ALL_END, BEGIN), pieces.append)
    if tag != SEPARATOR:
        out.content(opening + scan.recorded())
        return False
    name = "".join(pieces).strip()
    if name == _KIND:
        pieces = []
        end = yield from scan.until(("\n", "{", END), pieces.append)
        if end is None:
            out.content(opening + scan.recorded())
            return False
        if end != "\n":
            scan.put_back(end)
        # In V3.1's form a function may bear that name.
        name = "".join(pieces).strip() or name
    yield from scan.space()
    fence = yield from _take_fence(scan)
    opening += scan.recorded()
    if not (yield from read_arguments(scan, out, name, opening, (END,))):
        return False
    if fence:
        yield from scan.space()
        yield from scan.take("```")
    yield from read_end(scan, out, END)
    return True


def _take_fence(scan: Scanner) -> Steps[bool]:
    for fence in _FENCES:
        if (yield from scan.take(fence)):
            return True
    return False


def write_v3_rules(rules: Rules, choice: CallChoice) -> str:
    fence = literal("\n```json\n")
    calls = named_call(choice.tools, fence)
    begin = f"{rules.tag(BEGIN)} {literal(_KIND)} {rules.tag(SEPARATOR)}"
    fence_end = literal("\n```")
    return _all_calls(rules, choice, f"{begin} {calls} {fence_end} {rules.tag(END)}")


def write_v31_rules(rules: Rules, choice: CallChoice) -> str:
    calls = named_call(choice.tools, rules.tag(SEPARATOR))
    return _all_calls(rules, choice, f"{rules.tag(BEGIN)} {calls} {rules.tag(END)}")


def _all_calls(rules: Rules, choice: CallChoice, call: str) -> str:
    call = rules.rule(call)
    more = f" (/\\n?/ {call})*" if choice.parallel else ""
    block = rules.rule(f"{call}{more} {rules.tag(ALL_END)}")
    return tagged_calls(rules, choice, begin=rules.tag(ALL_BEGIN), block=block, between=None)


TAGS = (ALL_BEGIN, ALL_END, BEGIN, END, SEPARATOR)
DEEPSEEK = ToolFormat("deepseek", tags=TAGS, parse=parse, rules=write_v3_rules)
DEEPSEEK_V31 = ToolFormat("deepseek_v31", tags=TAGS, parse=parse, rules=write_v31_rules)
