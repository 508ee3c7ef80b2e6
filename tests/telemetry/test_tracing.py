"""Where a request belongs in a trace."""

from __future__ import annotations

import pytest

from fastovms.telemetry.tracing import TraceContext


@pytest.mark.parametrize(("is_recorded", "flags"), [(False, "00"), (True, "01")])
def test_traceresponse_flag_is_set_if_the_trace_is_recorded(is_recorded: bool, flags: str) -> None:
    context = TraceContext("a" * 32, "b" * 16, "c" * 16, is_sampled=True, is_recorded=is_recorded)
    assert context.response == f"00-{'a' * 32}-{'b' * 16}-{flags}"
