from __future__ import annotations

import pytest

from fastovms.text.tokenizer import Tokenizer
from tests.paths import FIXTURES


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """GPT-2 style vocabulary; "größe" is an added token whose bytes are no UTF-8."""
    return Tokenizer.load(FIXTURES / "byte_level")


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """Llama-2 style vocabulary with byte tokens."""
    return Tokenizer.load(FIXTURES / "sentencepiece")


@pytest.fixture(scope="session")
def clean_up() -> Tokenizer:
    """Its detokenizer removes spaces before punctuation, which no table of tokens can do."""
    return Tokenizer.load(FIXTURES / "clean_up")


@pytest.fixture(params=["byte_level", "sentencepiece", "clean_up"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = request.getfixturevalue(request.param)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer
