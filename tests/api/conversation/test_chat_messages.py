"""Messages as templates take them."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.chat_messages import ContentReader, read_messages
from fastovms.api.wire.dialect import OPENAI, OVMS
from fastovms.errors import InvalidField
from tests.api.chat_models import MESSAGES, prompt_of
from tests.api.chats import BODY, V1, make

__all__ = ["make"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": {"a": 1}}, "{f {'a': 1}}"),
        ({"name": "f", "arguments": ""}, "{f {}}"),
        ({"name": "f", "arguments": None}, "{f {}}"),
        ({"name": "f"}, "{f {}}"),
    ],
)
async def test_calls_in_the_history(make, given, shown):
    for answer in (
        {"tool_calls": [{"id": "1", "type": "function", "function": given}]},
        {"tool_calls": [{"function": given}]},
        {"function_call": given},
    ):
        api = make()
        messages = [*MESSAGES, {"role": "assistant", **answer}]
        status, body = await api.post(V1, {**BODY, "messages": messages})
        assert status == 200, body
        assert prompt_of(api).replace('"', "'") == f"u:Hi;a:{shown};>"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
def test_contents(content, text):
    assert ContentReader(OPENAI)(content, "c") == text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": 5}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role"),
        ([{"role": "r" * 65, "content": "a"}], "messages[0].role"),
    ],
)
def test_faults_are_named_by_their_place(given, param):
    with pytest.raises(InvalidField) as caught:
        read_messages(given, OPENAI)
    assert caught.value.param == param


def test_roles_are_left_to_the_template():
    [message] = read_messages([{"role": "r" * 64, "content": "a"}], OPENAI).messages
    assert message["role"] == "r" * 64


def test_a_text_in_place_of_messages_is_taken_by_one_dialect():
    assert read_messages("a", OPENAI).messages == [{"role": "user", "content": "a"}]
    with pytest.raises(InvalidField, match="messages must be an array"):
        read_messages("a", OVMS)
