"""Fills in the middle: which tokens, and in which order."""

from __future__ import annotations

from fastovms.text.tokens.fim import FimFinder, FimTokens, find_fim_tokens
from tests.fakes import ByteTokenizer

FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


def test_fim_formats():
    for named, tokens in (
        ({}, None),
        ({"<|fim_prefix|>": 1}, None),
        (FIM, FimTokens(1, 2, 3)),
        ({"[PREFIX]": 1, "[SUFFIX]": 2}, FimTokens(1, 2, None)),
        ({"\u2581<PRE>": 1, "\u2581<SUF>": 2, "\u2581<MID>": 3}, FimTokens(1, 2, 3)),
    ):
        assert find_fim_tokens(ByteTokenizer(**named)) == tokens
    assert FimTokens(1, 2, 3).join([8], [9]) == [1, 8, 2, 9, 3]
    assert FimTokens(1, 2, None).join([8], [9]) == [2, 9, 1, 8]


def test_tokens_are_looked_for_once():
    tokenizer, asked = ByteTokenizer(**FIM), []
    find = tokenizer.find_tokens
    tokenizer.find_tokens = lambda pieces: asked.append(pieces) or find(pieces)
    finder = FimFinder()
    assert [finder(tokenizer) for _ in range(3)] == [FimTokens(1, 2, 3)] * 3
    assert len(asked) == 1
    assert finder(ByteTokenizer()) is None
