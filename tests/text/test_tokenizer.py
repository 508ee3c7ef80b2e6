"""Tests of `fastovms/text/tokenizer.py`."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino_genai
import pytest

from fastovms.errors import ConfigurationError, RequestError
from fastovms.server_config import DEMO_MODEL
from fastovms.text.detokenizer import TableDetokenizer, slices
from fastovms.text.text_encoder import TextEncoder
from fastovms.text.tokenizer import (
    DecodeBatch,
    FimTokens,
    Tokenizer,
    build_token_table,
    find_special_tokens,
)
from tests.encoder_models import encoder_dir
from tests.fakes import ByteTokenizer
from tests.text.conftest import FIXTURES

# Fills in the middle: which tokens, and in which order.


FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


def test_fim_tokens_are_found_by_name_and_join_prefix_and_suffix():
    for named, tokens in (
        ({}, None),
        ({"<|fim_prefix|>": 1}, None),
        (FIM, FimTokens(1, 2, 3)),
        ({"[PREFIX]": 1, "[SUFFIX]": 2}, FimTokens(1, 2, None)),
        ({"\u2581<PRE>": 1, "\u2581<SUF>": 2, "\u2581<MID>": 3}, FimTokens(1, 2, 3)),
    ):
        assert ByteTokenizer(**named).fim_tokens == tokens
    assert FimTokens(1, 2, 3).join([8], [9]) == [1, 8, 2, 9, 3]
    assert FimTokens(1, 2, None).join([8], [9]) == [2, 9, 1, 8]


# A table of tokens gives what the model's own detokenizer gives, or there is none.


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_known_vocabularies_are_decoded_from_the_table(
    name: str, request: pytest.FixtureRequest
) -> None:
    assert isinstance(request.getfixturevalue(name).detokenizer(), TableDetokenizer)


VOCAB = [b"a", b"\xe2\x96\x81b", b"<0x0A>", b"<s>"]


def decoder(*texts: str, special: int | None = None, strip: bool = False) -> DecodeBatch:
    """Joins texts of tokens."""

    def decode(batch: list[list[int]], skips: bool) -> list[str]:
        found = []
        for token_ids in batch:
            kept = [token_id for token_id in token_ids if not (skips and token_id == special)]
            joined = "".join(texts[token_id] for token_id in kept)
            found.append(joined.removeprefix(" ") if strip else joined)
        return found

    return decode


@pytest.mark.parametrize(
    ("decode", "token_bytes", "strips"),
    [
        (decoder("a", "\u2581b", "<0x0A>", "<s>", special=3), VOCAB, False),
        (decoder("a", " b", "\n", "<s>", special=3), [b"a", b" b", b"\n", b"<s>"], False),
        (decoder("a", " b", "\n", "<s>", special=3, strip=True), [b"a", b" b", b"\n", b"<s>"],
         True),
    ],
)  # fmt: skip
def test_token_table_has_the_bytes_of_the_detokenizer(
    decode: DecodeBatch, token_bytes: list[bytes], strips: bool
) -> None:
    vocab = {data: token_id for token_id, data in enumerate(VOCAB)}
    special = find_special_tokens(len(VOCAB), decode)
    assert special == {3}
    table = build_token_table(vocab, special, [[0, 1]], decode)
    assert table is not None
    assert (list(table.token_bytes), table.strip_leading_space) == (token_bytes, strips)
    assert table.skipping_special_tokens().decode([3, 0, 3]) == "a"
    assert table.skipping_special_tokens([b"<s>"]).decode([3, 0]) == "<s>a"


def test_detokenizer_with_its_own_rules_has_no_table() -> None:
    plain = decoder("a", "b")

    def cleans_up(batch: list[list[int]], skips: bool) -> list[str]:
        return [text.replace("ab", "x") for text in plain(batch, skips)]

    vocab = {b"a": 0, b"b": 1}
    assert build_token_table(vocab, frozenset(), [], plain) is not None
    assert build_token_table(vocab, frozenset(), [], cleans_up) is None


def test_token_that_looks_like_a_byte_keeps_its_text() -> None:
    vocab = {b"<s>": 0, b"\xe2\x96\x81b": 1, b"<body>": 2}
    table = build_token_table(vocab, frozenset(), [[1, 2]], decoder("<s>", " b", "\ufffd"))
    assert table is not None
    assert table.decode([1, 2, 1]) == " b<body> b"


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


@pytest.mark.slow
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


def test_model_without_a_detokenizer_cannot_decode(texts):
    assert not texts.has_detokenizer
    with pytest.raises(RuntimeError):
        texts.decode([5], skip_special_tokens=True)


def test_lone_surrogate_in_a_text_is_refused(texts):
    with pytest.raises(RequestError, match=r"U\+D800 at position 1"):
        texts.encode(["a", "a\ud800"])


@pytest.mark.slow
def test_tokenizer_without_pairs_encodes_single_texts():
    texts = TextEncoder.load(DEMO_MODEL)
    assert texts.pair is None
    assert texts.vocabulary()
    [token_ids] = texts.encode(["Once upon a time"])
    reference = openvino_genai.Tokenizer(DEMO_MODEL).encode("Once upon a time").input_ids.data[0]
    assert np.array_equal(texts.enclosed(token_ids), reference)


def test_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="the tokenizer cannot be loaded"):
        TextEncoder.load(tmp_path)


TOKENIZER_TEXTS = ["", "Hello wörld 😀", " leading", "a\x00b", "line\n\n\tline", "東京 " * 50]


@pytest.mark.parametrize("text", TOKENIZER_TEXTS)
@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_decoding_returns_the_encoded_text(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in token_ids)


def test_special_tokens_are_encoded_and_hidden_by_default(
    byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    assert byte_level.special_token_ids == {0, 1, 2}
    text = "<|im_start|>user<|im_end|></think>"
    token_ids = byte_level.encode(text)
    assert token_ids[0] == 1
    assert byte_level.decode(token_ids) == "user</think>"
    assert byte_level.decode(token_ids, skip_special_tokens=False) == text

    assert sentencepiece.special_token_ids == {0, 1, 2}
    assert sentencepiece.encode("hi")[0] == 1
    assert sentencepiece.encode("hi")[1:] == sentencepiece.encode("hi", add_special_tokens=False)


def test_long_text_is_not_cut_at_the_models_length(byte_level: Tokenizer) -> None:
    # tokenizer_config.json says model_max_length 64.
    assert byte_level.decode(byte_level.encode("fox " * 200)) == "fox " * 200


@pytest.mark.parametrize("text", ["\ud800", "tail \udfff", "\ud83d\ude00"])
def test_lone_surrogate_is_refused(byte_level: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D[89AF]\w\w at position \d"):
        byte_level.encode(text)


@pytest.mark.slow
def test_tokenizer_may_be_shared_by_threads(byte_level: Tokenizer) -> None:
    texts = [f"text {number} " * (number % 40 + 1) for number in range(400)]

    def round_trip(text: str) -> bool:
        add_special_tokens = len(text) % 2 == 0
        token_ids = byte_level.encode(text, add_special_tokens=add_special_tokens)
        return byte_level.decode([1, *token_ids], skip_special_tokens=True) == text

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, texts))


@pytest.mark.slow
def test_unknown_detokenizer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Tokenizer.load(FIXTURES / "clean_up")
    assert "detokenizer is unknown" in caplog.text


@pytest.mark.parametrize("name", ["openvino_tokenizer", "openvino_detokenizer"])
@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        pytest.param("xml", None, r"has no {}\.xml$", id="no xml"),
        pytest.param("xml", b"<net", "tokenizer cannot be loaded: .", id="broken xml"),
        pytest.param("bin", None, "tokenizer cannot be loaded: .", id="no bin"),
        pytest.param("bin", b"short", "tokenizer cannot be loaded: .", id="short bin"),
    ],
)
def test_missing_or_broken_tokenizer_file_is_refused_with_one_line(
    tmp_path: Path, name: str, ending: str, content: bytes | None, message: str
) -> None:
    model_dir = Path(shutil.copytree(FIXTURES / "byte_level", tmp_path / "model"))
    path = model_dir / f"{name}.{ending}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message.format(name)) as raised:
        Tokenizer.load(model_dir)
    assert "\n" not in str(raised.value)
