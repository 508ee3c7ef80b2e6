from __future__ import annotations

import pytest

from fastovms.api.embeddings.input_texts import TextLimit, tokenize
from fastovms.errors import InvalidField, RequestError
from tests.api.encoder_api import CLS, SEP, served_encoder


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


@pytest.mark.parametrize(
    ("limit", "text", "kept"),
    [
        (TextLimit(10**6, truncates=True), "word " * 20_000, "word " * 20_000),
        (TextLimit(10**6, truncates=True, keeps_end=True), "word " * 20_000, "word " * 20_000),
        (TextLimit(50_000, truncates=True), "word " * 20_000, "word " * 10_000),
        (TextLimit(50_000, truncates=True, keeps_end=True), "word " * 20_000, "word " * 10_000),
        (TextLimit(10**6, truncates=True), ("<", "word " * 20_000), "<" + "word " * 20_000),
    ],
)
async def test_long_texts_are_tokenized_in_slices(limit, text, kept):
    """The tokenizer holds the GIL, and so stops every stream."""
    served = served_encoder()
    try:
        [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
        assert bytes(token_ids.tolist()).decode() == kept
        assert max(len(each) for call in served.texts.calls for each in call) <= 16_000
        assert sum(len(each) for call in served.texts.calls for each in call) < len(kept) + 16_000
    finally:
        served.tokenizing.close()


async def test_a_text_of_few_tokens_is_tokenized_in_slices():
    served = served_encoder()
    encode = served.texts.encode
    served.texts.encode = lambda texts: encode([text.replace(" ", "") for text in texts])
    try:
        text = " " * 10**6 + "abcd"
        limit = TextLimit(3, truncates=True)
        [token_ids] = await tokenize(served, [text], ["input"], limit, "me")
        assert bytes(token_ids.tolist()) == b"abc"
        assert len(served.texts.calls) > 10**6 / 16_000
        with pytest.raises(InvalidField, match="4 tokens or more"):
            await tokenize(served, [" " * 16_100 + "abcd"], ["input"], TextLimit(3), "me")
    finally:
        served.tokenizing.close()


async def test_faults_of_slices_name_the_text():
    served = served_encoder()

    def encode(texts):
        raise RequestError("no character")

    served.texts.encode = encode
    with pytest.raises(InvalidField, match="t0 has a lone surrogate") as caught:
        await tokenize(served, ["\ud800" * 20_000], ["t0"], TextLimit(3, truncates=True), "me")
    assert caught.value.param == "t0"
    served.tokenizing.close()


@pytest.mark.parametrize("num_texts", [2, 100])
async def test_texts_are_refused_that_are_too_many_together(num_texts):
    served = served_encoder()
    try:
        names = [f"t{i}" for i in range(num_texts)]
        texts = ["ab"] * num_texts
        limit = TextLimit(3, max_together=2 * num_texts)
        assert len(await tokenize(served, texts, names, limit, "me")) == num_texts
        limit = TextLimit(3, max_together=2 * num_texts - 1)
        with pytest.raises(InvalidField, match=f"at most {2 * num_texts - 1} tokens") as caught:
            await tokenize(served, texts, names, limit, "me")
        assert caught.value.param == names[-1]
    finally:
        served.tokenizing.close()


@pytest.mark.parametrize("text", ["ab", ("a", "b"), "a" * 20_000])
async def test_texts_are_enclosed_and_tokens_are_not(text):
    served = served_encoder()
    limit = TextLimit(10**6, truncates=True)
    found = await tokenize(served, [text, [1, 2]], ["t0", "t1"], limit, "me", encloses=True)
    assert found[0].tolist() == [CLS, *"".join(text).encode(), SEP]
    assert found[1].tolist() == [1, 2]
    served.tokenizing.close()
