from __future__ import annotations

import pytest

from fastovms.api.embeddings.input_texts import TextLimit, tokenize
from fastovms.errors import InvalidField
from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("limit", "text", "kept"),
    [
        (TextLimit(3), "abc", "abc"),
        (TextLimit(3, truncates=True), "abcd", "abc"),
        (TextLimit(3, truncates=True, keeps_end=True), "abcd", "bcd"),
        (TextLimit(3, truncates=True), "a" * 10**6, "aaa"),
    ],
)
async def test_long_texts(limit, text, kept):
    served = served_encoder()
    try:
        [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
        assert bytes(token_ids.tolist()).decode() == kept
        assert sum(map(len, served.texts.calls[0])) < 1000  # the rest is never tokenized
    finally:
        served.tokenizing.close()


async def test_faults_name_the_text():
    served = served_encoder()
    texts = ["a"] * 100 + ["b" * 4] + ["a"] * 100
    names = [f"t{i}" for i in range(len(texts))]
    with pytest.raises(InvalidField) as caught:
        await tokenize(served, texts, names, TextLimit(3), "me")
    assert caught.value.param == "t100"
    served.tokenizing.close()
