"""How long a model is to stay."""

from __future__ import annotations

import pytest

from fastovms.api.ollama.keep_alive import unloads
from fastovms.errors import InvalidField


@pytest.mark.parametrize(
    ("given", "leaves"),
    [
        (None, False),
        (0, True),
        (0.0, True),
        (-1, False),
        (300, False),
        ("0", True),
        ("0s", True),
        ("0m0s", True),
        ("5m", False),
        ("1h30m", False),
        ("1.5h", False),
        ("-1m", False),
        ("-1", False),
        ("500\u00b5s", False),
    ],
)
def test_durations(given: str | float | None, leaves: bool) -> None:
    assert unloads(given) is leaves


@pytest.mark.parametrize("given", ["", "m", "5 minutes", "five", "1d", "1" * 100])
def test_no_durations(given: str) -> None:
    with pytest.raises(InvalidField, match="keep_alive must be"):
        unloads(given)
