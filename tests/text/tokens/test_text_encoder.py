from __future__ import annotations

import numpy as np
import openvino_genai
import pytest

from fastovms.config.model_config import DEMO_MODEL
from fastovms.errors import ConfigurationError, RequestError
from fastovms.text.tokens.text_encoder import TextEncoder
from fastovms.text.tokens.text_slices import slices
from tests.encoder_models import encoder_dir

TEXTS = ["the model", "of the river, at night?", "x", "[SEP] is written out"]


@pytest.fixture(scope="module")
def texts() -> TextEncoder:
    return TextEncoder.load(encoder_dir())


def test_texts_are_encoded_as_by_genai(texts):
    reference = openvino_genai.Tokenizer(encoder_dir())
    for text, token_ids in zip(TEXTS, texts.encode(TEXTS), strict=True):
        assert (
            texts.enclosed(token_ids).tolist() == reference.encode(text).input_ids.data[0].tolist()
        )
    assert texts.num_added == 2


def test_pairs_are_encoded_as_by_genai(texts):
    reference = openvino_genai.Tokenizer(encoder_dir(), add_second_input=True)
    first, *others = texts.encode(TEXTS)
    for text, token_ids in zip(TEXTS[1:], others, strict=True):
        joined, types = texts.pair.join(first, token_ids)
        expected = reference.encode([TEXTS[0]], [text]).input_ids.data[0].tolist()
        assert joined.tolist() == expected
        assert types.tolist() == [0] * (len(first) + 2) + [1] * (len(token_ids) + 1)


@pytest.mark.parametrize("load", [encoder_dir, lambda: DEMO_MODEL], ids=["bert", "bytes"])
@pytest.mark.parametrize("from_end", [False, True])
def test_slices_of_a_text_have_its_tokens(load, from_end):
    texts = TextEncoder.load(load())
    text = "The model of  the river,\n at night? It has 12,345 boats (or more). " * 50
    parts = slices(text, 40, 200, from_end=from_end, keeps_spaces=texts.keeps_spaces)
    found = texts.encode(list(parts))
    assert len(found) > 10
    [whole] = texts.encode([text])
    assert np.array_equal(np.concatenate(found[::-1] if from_end else found), whole)


def test_texts_of_tokens():
    texts = TextEncoder.load(DEMO_MODEL)
    assert texts.has_detokenizer
    [token_ids] = texts.encode(["Once upon a time"])
    assert texts.decode(token_ids.tolist(), skip_special_tokens=True) == "Once upon a time"


def test_a_model_without_a_detokenizer(texts):
    assert not texts.has_detokenizer
    with pytest.raises(RuntimeError):
        texts.decode([5], skip_special_tokens=True)


def test_lone_surrogates_are_refused(texts):
    with pytest.raises(RequestError, match=r"U\+D800 at position 1"):
        texts.encode(["a", "a\ud800"])


def test_a_tokenizer_without_pairs():
    texts = TextEncoder.load(DEMO_MODEL)
    assert texts.pair is None
    assert texts.vocabulary()
    [token_ids] = texts.encode(["Once upon a time"])
    reference = openvino_genai.Tokenizer(DEMO_MODEL).encode("Once upon a time").input_ids.data[0]
    assert np.array_equal(texts.enclosed(token_ids), reference)


def test_a_missing_tokenizer(tmp_path):
    with pytest.raises(ConfigurationError, match="the tokenizer cannot be loaded"):
        TextEncoder.load(tmp_path)
