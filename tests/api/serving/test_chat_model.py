"""How a model chats, from its directory and what the operator says."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fastovms.api.serving.chat_model import ChatModel
from fastovms.config.api_config import ChatConfig
from fastovms.config.model_config import DEMO_MODEL
from fastovms.errors import ConfigurationError

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_formats_are_found_out_from_the_template():
    chat = ChatModel.load(DEMO_MODEL, ChatConfig())
    assert chat.template is not None
    assert chat.tool_format is not None
    assert chat.reasoning_format is not None
    assert (chat.tool_format.name, chat.reasoning_format.name) == ("hermes3", "qwen3")
    assert chat.tags == {"<tool_call>", "</tool_call>", "<think>", "</think>"}


def test_the_operator_names_formats():
    chat = ChatModel.load(DEMO_MODEL, ChatConfig(tool_parser="mistral", reasoning_parser="none"))
    assert chat.tool_format is not None
    assert (chat.tool_format.name, chat.reasoning_format) == ("mistral", None)
    chat = ChatModel.load(DEMO_MODEL, ChatConfig(tool_parser="none", reasoning_parser="none"))
    assert chat.tags == frozenset()


@pytest.mark.parametrize("kind", ["tool", "reasoning"])
def test_unknown_formats(kind):
    with pytest.raises(ConfigurationError, match=f"the {kind} parser must be .* not 'morse'"):
        ChatModel.load(DEMO_MODEL, ChatConfig(**{f"{kind}_parser": "morse"}))


def test_a_template_of_the_operator(tmp_path: Path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}<|python_tag|>")
    chat = ChatModel.load(DEMO_MODEL, ChatConfig(chat_template=file))
    assert chat.template is not None
    assert chat.tool_format is not None
    assert chat.template.render(MESSAGES) == "Hi<|python_tag|>"
    assert chat.tool_format.name == "llama3"
    file.write_text("{% if %}")
    with pytest.raises(ConfigurationError, match="malformed"):
        ChatModel.load(DEMO_MODEL, ChatConfig(chat_template=file))
    with pytest.raises(ConfigurationError, match="nowhere"):
        ChatModel.load(DEMO_MODEL, ChatConfig(chat_template=tmp_path / "nowhere"))


def test_a_model_without_a_template(tmp_path: Path):
    chat = ChatModel.load(tmp_path, ChatConfig())
    assert (chat.template, chat.tool_format, chat.reasoning_format) == (None, None, None)
    assert chat.missing == "has no chat template"


def test_a_broken_template_of_the_model_is_told_in_the_log(tmp_path: Path, caplog):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% if %}"}))
    with caplog.at_level(logging.WARNING):
        chat = ChatModel.load(tmp_path, ChatConfig())
    assert chat.template is None
    assert "malformed" in chat.missing
    assert "chats are refused" in caplog.text
