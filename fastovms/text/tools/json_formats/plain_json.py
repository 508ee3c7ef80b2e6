"""Reads and constrains calls of models that have no format of their own, as told them by us: JSON
as the whole answer, or in a block of code, one call after the other:

{"name": "add", "arguments": {"a": 1}}
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastovms.grammar_tree import Node, OtherText, one_of, several
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, read_calls
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat

_FENCE = "```"
BLOCKS = ("```json\n", "```tool_call\n", "```tool_code\n")
BEGINS = ("{", "[")


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    """Reads calls to known functions, one after the other, and the end of the block around them."""
    known = [tool.name for tool in tools]
    is_block = bool(opening)
    num_calls = out.num_calls
    opening += yield from scan.space()
    while (yield from scan.peek()) in BEGINS:
        if not (yield from read_calls(scan, out, opening, known)):
            return
        opening = yield from scan.space()
        for separator in (",", ";"):
            if (yield from scan.take(separator)):
                opening += separator + (yield from scan.space())
    if out.num_calls > num_calls and is_block and (yield from scan.take(_FENCE)):
        return
    out.broken(opening)


def grammar(choice: CallChoice) -> Node:
    call = json_call(choice.tools)
    calls = several(call, "\n") if choice.parallel else call
    begins = [f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    return calls if choice.required else one_of(calls, OtherText(tuple(begins)))


PLAIN_JSON = ToolFormat(
    "json",
    tags=(),
    parse=TaggedCalls(BLOCKS, read, bare=BEGINS, end_thoughts=False),
    grammar=grammar,
)
