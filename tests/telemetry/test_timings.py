"""How long the phases of a sample took."""

from __future__ import annotations

import pytest

from fastovms.telemetry.timings import SampleTimings


@pytest.mark.parametrize(
    ("timings", "per_token", "tokens_per_second"),
    [
        (SampleTimings(9.0, 1.0, 4.0, 5), 1.0, 1.0),
        (SampleTimings(9.0, 0.5, 0.0, 1), None, 2.0),
        (SampleTimings(9.0, 0.0, 0.0, 1), None, None),
    ],
)
def test_means(
    timings: SampleTimings, per_token: float | None, tokens_per_second: float | None
) -> None:
    assert timings.per_token == per_token
    assert timings.tokens_per_second == tokens_per_second
