"""Finds JPEG files that take much longer to decode than their pixels say."""

from __future__ import annotations

import re
from typing import Final

MAX_SCANS: Final = 100
"""The most scans that an image may have: each takes time in proportion to all pixels, however few
bytes it has. Encoders write about ten."""

# Of bytes that fill up to a marker, the last 0xFF is found: with all of them in the expression, a
# run that no marker follows would be searched anew from each of its bytes.
_MARKER: Final = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)
_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
"""The markers that no length follows: TEM, RST0 to RST7 and SOI (ITU T.81, B.1.1.3)."""

_EOI: Final = 0xD9
_SOS: Final = 0xDA


def has_too_many_scans(data: bytes) -> bool:
    """Returns whether a decoder would find more than `MAX_SCANS` in a file, damaged or not."""
    num_scans, at = 0, 0
    # A zero byte follows each 0xFF of coded data, so that the next marker can be searched for.
    while (found := _MARKER.search(data, at)) is not None:
        marker, at = data[found.end() - 1], found.end()
        if marker == _EOI:
            return False
        if marker == _SOS:
            num_scans += 1
            if num_scans > MAX_SCANS:
                return True
        if marker not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2])
    return False
