"""The values of Ollama's options."""

from __future__ import annotations

import pytest

from fastovms.api.request.ollama_values import OllamaOptions, option_values
from fastovms.errors import InvalidField


def test_values() -> None:
    values = option_values(OllamaOptions(top_k=5.0, temperature=1.0, stop=["a"]))
    assert {name: value for name, value in values.items() if value is not None} == {
        "top_k": 5,
        "temperature": 1.0,
        "stop": ["a"],
    }
    assert type(values["top_k"]) is int


def test_fractions() -> None:
    with pytest.raises(InvalidField, match="num_ctx must be an integer, not"):
        option_values(OllamaOptions(num_ctx=1.5))
