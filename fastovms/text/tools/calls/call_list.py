"""Reads calls in a list, however each of them is written."""

from __future__ import annotations

from collections.abc import Callable

from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner

CallReader = Callable[[Scanner, PieceCollector, str], Incremental[bool]]
"""Reads a call after the markup that has been read before it, and returns whether it was whole;
what breaks before the call begins becomes content, that markup included."""


def read_list(
    scan: Scanner, out: PieceCollector, opening: str, read_call: CallReader
) -> Incremental[bool]:
    """Reads calls separated by commas up to the bracket that ends their list, and returns whether
    they were whole. What breaks is treated as by `CallReader`."""
    while True:
        opening += yield from scan.space()
        if not (yield from read_call(scan, out, opening)):
            return False
        opening = yield from scan.space()
        if (yield from scan.take("]")):
            return True
        if not (yield from scan.take(",")):
            out.broken(opening)
            return False
        opening += ","
