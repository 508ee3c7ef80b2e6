"""Reads the calls of Llama 3 and 4, which may write the one's form where the other is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.calls.json_call import read_call
from fastovms.text.tools.calls.mixed_list import read_mixed_list
from fastovms.text.tools.tool_format import TaggedCalls

TAG = "<|python_tag|>"
LIST_BEGIN = "<|python_start|>"
LIST_END = "<|python_end|>"
TAGS = (TAG, LIST_BEGIN, LIST_END)


def _read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    """Reads calls. Without a tag, only a known function's name makes a call of what looks like
    one."""
    num_calls = out.num_calls
    known = None if opening else [tool.name for tool in tools]
    opening += yield from scan.space()
    if (yield from scan.peek()) == "[":
        yield from read_mixed_list(scan, out, opening, known)
    else:
        while (yield from read_call(scan, out, opening, known)):
            opening = yield from scan.space()
            if not (yield from scan.take(";")):
                out.broken(opening)
                break
            opening += ";" + (yield from scan.space())
            if not (yield from scan.peek()):
                break
    if out.num_calls > num_calls:
        out.content((yield from scan.space()))
        yield from scan.take(LIST_END)


CALLS = TaggedCalls((TAG, LIST_BEGIN), _read, bare=("{", "["))
