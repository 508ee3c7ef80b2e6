"""What recording traces costs, measured."""

from __future__ import annotations

import pytest

from bench.traces import measure


def test_both_servers_take_turns_and_spans_arrive(capfd: pytest.CaptureFixture[str]) -> None:
    measure(8, 500, 1, demo=False)
    printed = capfd.readouterr().out
    assert "8 streams of 500 tokens, 1 runs" in printed
    assert "tokens per second, with / without: " in printed
