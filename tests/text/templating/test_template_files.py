"""Where models keep their templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.text.templating.chat_template import ChatTemplate
from fastovms.text.templating.template_files import find_templates, special_tokens


def write(directory: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


NAMED = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, 1, {}]


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({}, {}),
        ({"tokenizer_config.json": {}}, {}),
        ({"tokenizer_config.json": {"chat_template": "a"}}, {"default": "a"}),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, {"default": "a", "tool_use": "b"}),
        ({"chat_template.json": {"chat_template": {"x": "a", "y": 1}}}, {"x": "a"}),
        ({"processor_config.json": {"chat_template": "a"}}, {"default": "a"}),
        (
            {
                "chat_template.json": {"chat_template": "c"},
                "tokenizer_config.json": {"chat_template": "a"},
            },
            {"default": "a"},
        ),
        (
            {
                "chat_template.jinja": "j",
                "tokenizer_config.json": {"chat_template": NAMED},
                "additional_chat_templates/tool_use.jinja": "t",
                "additional_chat_templates/rag.jinja": "r",
            },
            {"default": "j", "tool_use": "t", "rag": "r"},
        ),
    ],
)
def test_templates(tmp_path, files, templates):
    write(tmp_path, files)
    assert find_templates(tmp_path) == templates


def test_special_tokens(tmp_path):
    write(
        tmp_path,
        {
            "special_tokens_map.json": {"bos_token": "<old>", "pad_token": {"content": "<pad>"}},
            "tokenizer_config.json": {
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
                "unk_token": None,
                "extra_special_tokens": {"image_token": "<image>", "bad": 1},
                "additional_special_tokens": ["<a>", {"content": "<b>"}, 1],
            },
        },
    )
    assert special_tokens(tmp_path) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "image_token": "<image>",
        "additional_special_tokens": ["<a>", "<b>"],
    }


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json is no JSON"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json must hold an object"),
        ({"chat_template.jinja": "{% if %}"}, "the chat template is malformed"),
    ],
)
def test_broken_files(tmp_path, files, reason):
    write(tmp_path, files)
    with pytest.raises(ConfigurationError, match=reason):
        ChatTemplate.load(tmp_path)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ChatTemplate.load(tmp_path)
