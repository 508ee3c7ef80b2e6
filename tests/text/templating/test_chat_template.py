"""Rendering chats."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from fastovms.config.model_config import DEMO_MODEL
from fastovms.errors import InvalidField, RequestError
from fastovms.text.templating.chat_template import ChatTemplate

NOW = datetime(2026, 7, 26, 12, 30)
HELLO = [{"role": "user", "content": "hello"}]


def template(source: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokens, now=lambda: NOW)


def test_the_demo_model_has_one():
    chat_template = ChatTemplate.load(DEMO_MODEL)
    assert chat_template is not None
    assert chat_template.render(HELLO) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_model_without_a_template(tmp_path):
    assert ChatTemplate.load(tmp_path) is None
    override = tmp_path / "other.jinja"
    override.write_text("{{ messages[0].content }}!")
    chat_template = ChatTemplate.load(tmp_path, override)
    assert chat_template is not None
    assert chat_template.render(HELLO) == "hello!"


def test_named_templates_and_tokens(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>"},
                "chat_template": [
                    {"name": "default", "template": "{{ bos_token }}plain"},
                    {"name": "tool_use", "template": "{{ tools | length }} tools"},
                ],
            }
        )
    )
    chat_template = ChatTemplate.load(tmp_path)
    assert chat_template is not None
    assert chat_template.render(HELLO) == "<s>plain"
    assert chat_template.render(HELLO, tools=[{}, {}]) == "2 tools"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_variables_of_our_own(name):
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
def test_the_final_message_is_continued(source, content, text):
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
def test_what_cannot_be_continued(source, content, add_generation_prompt, reason):
    messages = [*HELLO, {"role": "assistant", "content": content}]
    with pytest.raises(RequestError, match=reason) as error:
        template(source).render(
            messages, add_generation_prompt=add_generation_prompt, continue_final_message=True
        )
    assert error.value.param == "continue_final_message"


def test_what_a_template_says_is_repeated_in_part_only():
    source = "{{ raise_exception('unknown role ' + messages[0].content) }}"
    for length in (280, 5000):
        with pytest.raises(RequestError) as error:
            template(source).render([{"role": "user", "content": "r" * length}])
        words, _, reason = error.value.message.partition(": ")
        assert words == "the chat template cannot render messages[0]"
        said = f"unknown role {'r' * length}"
        assert reason == (said if len(said) <= 300 else f"{said[:300]}...")
