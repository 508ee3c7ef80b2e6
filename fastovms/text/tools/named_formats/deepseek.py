"""Reads and constrains DeepSeek's calls: V3 and R1 fence each in Markdown, V3.1 does not:

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

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node, Tag, in_order, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_end,
    tagged_calls,
)

ALL_BEGIN = "<｜tool▁calls▁begin｜>"
ALL_END = "<｜tool▁calls▁end｜>"
BEGIN = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_KIND = "function"
_FENCES = ("```json", "```")


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if opening == ALL_BEGIN:
        opening = yield from read_begin(scan, out, ALL_BEGIN, BEGIN)
        if not opening:
            return
    if (yield from _read_call(scan, out, opening)):
        yield from read_end(scan, out, ALL_END)


def _read_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    scan.record()
    pieces: list[str] = []
    tag = yield from scan.until((SEPARATOR, END, ALL_END, BEGIN), pieces.append)
    if tag != SEPARATOR:
        out.broken(opening + scan.recorded())
        return False
    name = "".join(pieces).strip()
    if name == _KIND:
        pieces = []
        end = yield from scan.until(("\n", "{", END), pieces.append)
        if end is None:
            out.broken(opening + scan.recorded())
            return False
        if end != "\n":
            scan.put_back(end)
        # In V3.1's form a function may itself be called `function`.
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


def _take_fence(scan: Scanner) -> Incremental[bool]:
    for fence in _FENCES:
        if (yield from scan.take(fence)):
            return True
    return False


def v3_grammar(choice: CallChoice) -> Node:
    call = in_order(_KIND, Tag(SEPARATOR), named_call(choice.tools, "\n```json\n"), "\n```")
    return _all_calls(choice, call)


def v31_grammar(choice: CallChoice) -> Node:
    return _all_calls(choice, named_call(choice.tools, Tag(SEPARATOR)))


def _all_calls(choice: CallChoice, call: Node) -> Node:
    call = in_order(Tag(BEGIN), call, Tag(END))
    calls = several(call, MAYBE_LINE_BREAK) if choice.parallel else call
    return tagged_calls(choice, ALL_BEGIN, in_order(calls, Tag(ALL_END)), between=None)


TAGS = (ALL_BEGIN, ALL_END, BEGIN, END, SEPARATOR)
CALLS = TaggedCalls((ALL_BEGIN, BEGIN), read)
DEEPSEEK = ToolFormat(
    "deepseek",
    tags=TAGS,
    parse=CALLS,
    grammar=v3_grammar,
    aliases=("deepseek_v3",),
    marks=((ALL_BEGIN, "```json"),),
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31", tags=TAGS, parse=CALLS, grammar=v31_grammar, marks=((ALL_BEGIN,),)
)
