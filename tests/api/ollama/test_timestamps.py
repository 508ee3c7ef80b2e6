"""Times in Ollama's notation."""

from __future__ import annotations

from fastovms.api.ollama.timestamps import nanoseconds, timestamp


def test_times() -> None:
    assert timestamp(1_750_000_000.5) == "2025-06-15T15:06:40.500000Z"
    assert nanoseconds(0.25) == 250_000_000
