from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError, RequestError
from fastovms.text.tokens.tokenizer import Tokenizer
from tests.text.conftest import FIXTURES

TEXTS = ["", "Hello wörld 😀", " leading", "a\x00b", "line\n\n\tline", "東京 " * 50]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_round_trip(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in token_ids)


def test_special_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
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


def test_padding_never_shows(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("", add_special_tokens=False) == []


@pytest.mark.parametrize("text", ["\ud800", "tail \udfff", "\ud83d\ude00"])
def test_lone_surrogate_is_the_clients_fault(byte_level: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D[89AF]\w\w at position \d"):
        byte_level.encode(text)


def test_threads_may_share_it(byte_level: Tokenizer) -> None:
    texts = [f"text {number} " * (number % 40 + 1) for number in range(400)]

    def round_trip(text: str) -> bool:
        add_special_tokens = len(text) % 2 == 0
        token_ids = byte_level.encode(text, add_special_tokens=add_special_tokens)
        return byte_level.decode([1, *token_ids], skip_special_tokens=True) == text

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, texts))


def test_unknown_detokenizer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Tokenizer.load(FIXTURES / "clean_up")
    assert "unknown kind" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openvino_tokenizer.xml", r"has no openvino_tokenizer\.xml$"),
        ("openvino_detokenizer.xml", r"has no openvino_detokenizer\.xml$"),
    ],
)
def test_missing_file(tmp_path: Path, name: str, message: str) -> None:
    model_dir = Path(shutil.copytree(FIXTURES / "byte_level", tmp_path / "model"))
    (model_dir / name).unlink()
    with pytest.raises(ConfigurationError, match=message):
        Tokenizer.load(model_dir)


@pytest.mark.parametrize("name", ["openvino_tokenizer", "openvino_detokenizer"])
@pytest.mark.parametrize("fault", ["xml", "bin", "no bin"])
def test_broken_file_gives_one_line(tmp_path: Path, name: str, fault: str) -> None:
    model_dir = Path(shutil.copytree(FIXTURES / "byte_level", tmp_path / "model"))
    match fault:
        case "xml":
            (model_dir / f"{name}.xml").write_text("<net")
        case "bin":
            (model_dir / f"{name}.bin").write_bytes(b"short")
        case "no bin":
            (model_dir / f"{name}.bin").unlink()
    with pytest.raises(ConfigurationError, match=r"tokenizer cannot be loaded: .") as raised:
        Tokenizer.load(model_dir)
    assert "\n" not in str(raised.value)
