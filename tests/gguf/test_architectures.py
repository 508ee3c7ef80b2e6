"""Architectures that are built, and why others are not."""

from __future__ import annotations

import pytest

from fastovms.errors import ConfigurationError
from fastovms.gguf.architectures import ARCHITECTURES, find_architecture


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_those_in_the_table_are_found(name: str) -> None:
    assert find_architecture(name) is ARCHITECTURES[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "it names no general.architecture"),
        (5, "it names no general.architecture"),
        ("gemma2", "architecture gemma2 is not taken: its attention has a soft cap"),
        ("mamba", "architecture mamba is not taken; those taken are llama, qwen2"),
    ],
)
def test_others_are_refused_with_the_reason(name: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_architecture(name)
