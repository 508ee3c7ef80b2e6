"""Reads where a request belongs in a trace, by W3C Trace Context
(https://www.w3.org/TR/trace-context-2/)."""

from __future__ import annotations

import re
import secrets
from typing import Final

from fastovms.http.routing.messages import Headers
from fastovms.telemetry.tracing import TraceContext

# 3.2: lower-case hexadecimal digits only. A version behind 00 may have further fields.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})"
    r"-(?!0{32})(?P<trace_id>[0-9a-f]{32})"
    r"-(?!0{16})(?P<parent_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII,
)
_SAMPLED: Final = 0x01
_MAX_STATE: Final = 8 * 1024
"""Characters of `tracestate` that are taken; 3.3.1.5 asks for 512."""


def trace_context(headers: Headers) -> TraceContext | None:
    """Returns what `traceparent` and `tracestate` say, with a new id for the request itself; None
    where there is no `traceparent`, or it is at fault: then both count as missing (3.2.4)."""
    parent = headers.by_name.get("traceparent")
    if parent is None:
        return None
    found = _TRACEPARENT.fullmatch(parent)
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    state = headers.by_name.get("tracestate", "")
    return TraceContext(
        trace_id=found["trace_id"],
        span_id=_new_span_id(),
        parent_id=found["parent_id"],
        is_sampled=bool(int(found["flags"], 16) & _SAMPLED),
        state=state if len(state) <= _MAX_STATE else "",
    )


def _new_span_id() -> str:
    while not int(span_id := secrets.token_hex(8), 16):
        pass  # 3.2.2.4: all zeroes stand for none
    return span_id
