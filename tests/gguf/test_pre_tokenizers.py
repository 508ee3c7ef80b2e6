"""Texts are cut into words as by the models' own tokenizers."""

from __future__ import annotations

import pytest

from tests.gguf.test_tokenizer_json import LLAMA_3, loaded


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("llama-bpe", "12345 67", ["123", "45", " ", "67"]),
        ("qwen2", "12345 67", ["1", "2", "3", "4", "5", " ", "6", "7"]),
        ("gpt-2", "12345 67", ["12345", " 67"]),
        ("smollm", "12345 67", ["1", "2", "3", "4", "5", " ", "6", "7"]),
        ("default", "12345", ["123", "45"]),
        ("llama-bpe", "DON'T we'll", ["DON", "'T", " we", "'ll"]),
        ("gpt-2", "DON'T we'll", ["DON", "'", "T", " we", "'ll"]),
        ("gpt-4o", "DON'T camelCase", ["DON'T", " camel", "Case"]),
        ("tekken", "McDonald's", ["Mc", "Donald", "'s"]),
        ("llama-bpe", "a\n\n  b ;\n", ["a", "\n\n", " ", " b", " ;\n"]),
        ("gpt-2", "a\n\n  b ;\n", ["a", "\n\n ", " b", " ;", "\n"]),
        ("deepseek-v3", "\u65e5\u672c\u306f x1234", ["\u65e5\u672c\u306f", " x", "123", "4"]),
    ],
)
def test_texts_are_cut_as_by_the_models_own_tokenizers(
    pre: str, text: str, expected: list[str]
) -> None:
    tokenizer = loaded({**LLAMA_3, "tokenizer.ggml.pre": pre})
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == expected


def test_unicode_is_composed_where_the_model_expects_it() -> None:
    composed = loaded({**LLAMA_3, "tokenizer.ggml.pre": "qwen2"})
    assert composed.encode("e\u0301").ids == composed.encode("\u00e9").ids
    as_written = loaded({**LLAMA_3, "tokenizer.ggml.pre": "deepseek-r1-qwen"})
    assert as_written.encode("e\u0301").ids != as_written.encode("\u00e9").ids
