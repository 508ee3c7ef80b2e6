"""Whether a model is to think, and how hard."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.chat_prompt import TemplateFields
from fastovms.api.ollama.thinking import thinking_fields
from fastovms.errors import InvalidField


@pytest.mark.parametrize(
    ("think", "fields"),
    [
        (None, TemplateFields()),
        (True, TemplateFields(enable_thinking=True)),
        (False, TemplateFields(enable_thinking=False)),
        ("low", TemplateFields(reasoning_effort="low")),
    ],
)
def test_fields(think: bool | str | None, fields: TemplateFields) -> None:
    assert thinking_fields(think, "m", can_think=True) == fields


@pytest.mark.parametrize(
    ("think", "can_think", "message"),
    [
        ("hard", True, "think must be true, false or one of"),
        (True, False, 'think: "m" does not support thinking'),
        ("low", False, 'think: "m" does not support thinking'),
    ],
)
def test_refusals(think: bool | str, can_think: bool, message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        thinking_fields(think, "m", can_think=can_think)


def test_not_to_think_is_asked_of_any_model() -> None:
    assert thinking_fields(False, "m", can_think=False).enable_thinking is False
