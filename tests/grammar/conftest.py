"""Grammars with a byte-level tokenizer."""

from __future__ import annotations

import pytest
from llguidance import LLTokenizer

from fastovms.grammar.compiler import GrammarCompiler
from tests.grammar.byte_level import EOS, TOKENIZER_JSON


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TOKENIZER_JSON, eos_token=EOS)


@pytest.fixture(scope="module")
def compiler(tokenizer: LLTokenizer) -> GrammarCompiler:
    """Returns a compiler for a model whose vocabulary has three ids more than the tokenizer."""
    return GrammarCompiler(TOKENIZER_JSON, vocab_size=tokenizer.vocab_size + 3, eos_token_ids=[EOS])
