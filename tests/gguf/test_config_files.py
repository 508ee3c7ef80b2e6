"""What stands beside the graphs, as it follows from a file's metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.gguf.config_files import named_ids, text_files
from fastovms.gguf.tokenizer_json import TokenizerFields
from tests.gguf.test_hyperparameters import read
from tests.gguf.tiny_tokenizers import SPECIAL, byte_pairs


def files(**metadata: Any) -> dict[str, str]:
    fields = TokenizerFields(byte_pairs())
    return text_files(metadata, read("llama"), fields, vocab_size=300)


def test_ends_are_found_by_their_names_too() -> None:
    config = json.loads(files()["config.json"])
    fields = TokenizerFields(byte_pairs())
    ends = {fields.tokens.index(name) for name in ("<|end_of_text|>", "<|im_end|>")}
    assert ends <= set(config["eos_token_id"])
    assert config["vocab_size"] == 300
    assert config["sliding_window"] is None


def test_special_tokens_have_names() -> None:
    fields = TokenizerFields(byte_pairs())
    ids = named_ids(fields)
    named = json.loads(files()["tokenizer_config.json"])
    assert named == {f"{name}_token": fields.tokens[ids[name]] for name in ids}
    assert named["bos_token"] in SPECIAL


@pytest.mark.parametrize(
    ("metadata", "name", "content"),
    [
        ({"tokenizer.chat_template": "t"}, "chat_template.jinja", "t"),
        (
            {"tokenizer.chat_template.x": "t"},
            "additional_chat_templates/x.jinja",
            "t",
        ),
    ],
)
def test_files_that_some_have(metadata: dict[str, Any], name: str, content: str) -> None:
    assert files(**metadata)[name] == content
    assert name not in files()


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ({"temp": 0.5}, {"temperature": 0.5, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ({"top_k": 7, "top_p": 1.0, "min_p": 0.1, "penalty_repeat": 1.1}, {
            "temperature": 0.8, "top_k": 7, "top_p": 1.0, "min_p": 0.1, "repetition_penalty": 1.1
        }),
    ],
)  # fmt: skip
def test_sampling_is_as_in_llama_cpp_where_the_file_states_nothing(
    stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = files(**{f"general.sampling.{key}": value for key, value in stated.items()})
    assert json.loads(found["generation_config.json"]) == expected


@pytest.mark.parametrize("key", ["tokenizer.chat_template.../x", "tokenizer.chat_template.a/b"])
def test_no_name_of_a_template_leaves_the_directory(key: str) -> None:
    assert files(**{key: "t"}).keys() == files().keys()
