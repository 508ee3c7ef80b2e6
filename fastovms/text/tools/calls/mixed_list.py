"""Reads lists of calls that a model may write as in Python or in JSON."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.tools.calls import call_list, json_call, pythonic_call


def read_mixed_list(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads a list of calls, or one in JSON, and says whether they were whole. What breaks before
    the first, `opening` included, becomes content.

    Args:
        known: names of functions, where a call to another one is no call; None = any name counts.
    """
    opening += yield from scan.space()
    if (yield from scan.peek()) == "{":
        return (yield from json_call.read_call(scan, out, opening, known))
    if not (yield from scan.take("[")):
        out.broken(opening)
        return False
    opening += "["
    opening += yield from scan.space()
    is_json = (yield from scan.peek()) == "{"
    read_call = json_call.read_call if is_json else pythonic_call.read_call
    return (yield from call_list.read_list(scan, out, opening, partial(read_call, known=known)))
