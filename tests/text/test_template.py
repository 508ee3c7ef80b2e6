"""Tests of `fastovms/text/template.py`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError, InvalidField, RequestError
from fastovms.server_config import DEMO_MODEL
from fastovms.text.budget import Limits
from fastovms.text.template import ChatTemplate
from fastovms.text.template_files import (
    find_templates,
    load_template,
    make_template,
    special_tokens,
)

# Where models keep their templates.


def write(directory: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        path.write_bytes(content)


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
def test_templates_are_found_in_model_files(tmp_path, files, templates):
    write(tmp_path, files)
    assert find_templates(tmp_path) == templates


def test_special_tokens_are_merged_from_both_files(tmp_path):
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
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json is not valid JSON"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json must be a JSON object"),
        ({"chat_template.jinja": "{% if %}"}, "the chat template is malformed"),
        ({"chat_template.jinja": b"\xff"}, "cannot be read"),
    ],
)
def test_broken_template_files_are_configuration_errors(tmp_path, files, reason):
    write(tmp_path, files)
    with pytest.raises(ConfigurationError, match=reason):
        load_template(tmp_path)


# Rendering chats.


NOW = datetime(2026, 7, 26, 12, 30)
HELLO = [{"role": "user", "content": "hello"}]


def template(source: str, **tokens: str) -> ChatTemplate:
    return make_template({"default": source}, tokens, now=lambda: NOW)


def test_template_of_the_demo_model_renders_a_chat():
    chat_template = load_template(DEMO_MODEL)
    assert chat_template is not None
    assert chat_template.render(HELLO) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_file_overrides_that_of_the_model(tmp_path):
    assert load_template(tmp_path) is None
    override = tmp_path / "other.jinja"
    override.write_text("{{ messages[0].content }}!")
    chat_template = load_template(tmp_path, override)
    assert chat_template is not None
    assert chat_template.render(HELLO) == "hello!"


def test_tool_use_template_is_chosen_with_tools(tmp_path):
    templates = [
        {"name": "default", "template": "{{ bos_token }}plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    config = {"bos_token": {"content": "<s>"}, "chat_template": templates}
    write(tmp_path, {"tokenizer_config.json": config})
    chat_template = load_template(tmp_path)
    assert chat_template is not None
    assert chat_template.render(HELLO) == "<s>plain"
    assert chat_template.render(HELLO, tools=[{}, {}]) == "2 tools"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_template_variables_of_the_server_are_refused(name):
    with pytest.raises(InvalidField, match=name) as error:
        template("", bos_token="<s>").render(HELLO, kwargs={name: 1})
    assert error.value.param == f"chat_template_kwargs.{name}"


CHATML = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{{ extra }}"
TRIMMED = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (CHATML, "The answer ", "[user]hello\n[assistant]The answer "),
        (TRIMMED, "The answer ", "[user]hello</s>[assistant]The answer"),
        (CHATML, "", "[user]hello\n[assistant]"),
        (PARTS, [{"type": "text", "text": "So "}, {"type": "image"}], "hello</s>So "),
    ],
)
def test_final_message_is_continued(source, content, text):
    messages = [*HELLO, {"role": "assistant", "content": content}]
    if source == PARTS:
        messages[0] = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    chat_template = template(source)
    assert (
        chat_template.render(messages, add_generation_prompt=False, continue_final_message=True)
        == text
    )
    assert messages[-1]["content"] == content


@pytest.mark.parametrize(
    ("source", "content", "add_generation_prompt", "reason"),
    [
        (CHATML, "a", True, "cannot both be true"),
        (CHATML, None, False, "no text to continue"),
        (CHATML, [{"type": "image"}], False, "no text to continue"),
        ("{{ messages[0].content }}", "a", False, "does not appear"),
    ],
)
def test_message_that_cannot_be_continued_is_refused(
    source, content, add_generation_prompt, reason
):
    messages = [*HELLO, {"role": "assistant", "content": content}]
    with pytest.raises(RequestError, match=reason) as error:
        template(source).render(
            messages, add_generation_prompt=add_generation_prompt, continue_final_message=True
        )
    assert error.value.param == "continue_final_message"


def test_message_of_a_template_error_is_cut():
    source = "{{ raise_exception('unknown role ' + messages[0].content) }}"
    for length in (280, 5000):
        with pytest.raises(RequestError) as error:
            template(source).render([{"role": "user", "content": "r" * length}])
        words, _, reason = error.value.message.partition(": ")
        assert words == "the chat template cannot render messages[0]"
        said = f"unknown role {'r' * length}"
        assert reason == (said if len(said) <= 300 else f"{said[:300]}...")


# Templates reach nothing outside, and come to an end.


def test_limit_that_a_models_template_exceeds_is_named():
    with pytest.raises(InvalidField, match="the model's chat template makes a text or list of"):
        template("{{ 'a' * 1000000000 }}").render(HELLO)


def test_renderings_of_a_chat_share_one_budget(monkeypatch):
    source = "{% for i in range(600) %}{% endfor %}{{ raise_exception('no') }}"
    monkeypatch.setattr("fastovms.text.template.FULL", Limits(1000, 1000))
    chat_template = template(source)
    with pytest.raises(InvalidField, match="takes more than"):
        chat_template.render(HELLO)  # a second time with merged turns, and to find the place


# Templates have what Hugging Face's have.


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2026"),
        ("{{ {'b': 'ü<', 'a': 1} | tojson }}", '{"b": "ü<", "a": 1}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahellob"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ missing }}{{ messages[0].name }}", ""),
        ("{{ kind }}{{ add_generation_prompt }}", "fooTrue"),
        ('{{ ("[1]" | from_json)[0] }}', "1"),
    ],
)
def test_hugging_face_extensions_are_available(source, text):
    assert template(source).render(HELLO, kwargs={"kind": "foo"}) == text
