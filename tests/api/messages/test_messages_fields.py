"""What a request says beside its chat."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.messages.messages_fields import MessageFields, check_filling, read_fields
from fastovms.api.messages.messages_schema import MessagesRequest
from fastovms.errors import InvalidField

FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


def read(**fields: Any) -> MessageFields:
    return read_fields(MessagesRequest(**fields))


@pytest.mark.parametrize(
    ("thinking", "thinks", "omits"),
    [
        (None, None, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, False),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, True, True),
        ({"type": "adaptive", "display": "summarized"}, True, False),
        ({"type": "between_tools"}, True, False),
        ({"type": "disabled"}, False, False),
    ],
)
def test_thinking(thinking: Any, thinks: bool | None, omits: bool) -> None:
    fields = read(thinking=thinking)
    assert (fields.thinks, fields.omits_thinking) == (thinks, omits)


@pytest.mark.parametrize(
    ("given", "effort", "name", "format"),
    [
        ({}, None, "output_config.format", None),
        ({"output_config": {"effort": "max"}}, "max", "output_config.format", None),
        ({"output_config": {"format": FORMAT}}, None, "output_config.format", FORMAT),
        ({"output_format": FORMAT}, None, "output_format", FORMAT),
        (
            {"output_format": FORMAT, "output_config": {"effort": "low"}},
            "low",
            "output_format",
            FORMAT,
        ),
    ],
)
def test_output(given: Any, effort: str | None, name: str, format: Any) -> None:
    fields = read(**given)
    assert (fields.effort, fields.format_name, fields.format) == (effort, name, format)


@pytest.mark.parametrize(
    ("edits", "warnings"),
    [
        (None, []),
        ([], []),
        ([{"type": "clear_thinking_20251015", "keep": "all"}], []),
        (
            [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}],
            [
                "context_management.edits[0] of type clear_tool_uses_20250919",
                "context_management.edits[1] of type clear_thinking_20251015",
            ],
        ),
    ],
)
def test_edits_of_the_context(edits: Any, warnings: list[str]) -> None:
    assert read(context_management={"edits": edits}).warnings == warnings


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "user_1"}, "service_tier": "auto", "speed": "fast"},
        {"metadata": {"user_id": None}, "service_tier": "standard_only", "inference_geo": "eu"},
        {"cache_control": {"type": "ephemeral"}, "diagnostics": {"previous_message_id": None}},
        {"mcp_servers": [], "n": 1, "best_of": 1},
    ],
)
def test_what_changes_nothing(fields: Any) -> None:
    assert read(**fields) == MessageFields(warnings=[])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": "9"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "no"}}, "thinking.display"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"output_config": {"format": 5}}, "output_config.format"),
        ({"output_config": {"format": {}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "output_format"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "slow"}, "speed"),
        ({"context_management": {"edits": 5}}, "context_management.edits"),
        ({"context_management": {"edits": [5]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [{}]}}, "context_management.edits[0].type"),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers"),
        ({"container": "c_1"}, "container"),
        ({"thread": {"id": "t"}}, "thread"),
        ({"compaction": {"type": "c"}}, "compaction"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"stop": "a", "stop_sequences": ["b"]}, "stop"),
    ],
)
def test_faults(fields: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"format": FORMAT}}, "output_config.format"),
        ({"output_format": FORMAT}, "output_format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ],
)
def test_a_cache_is_filled_without_an_answer(fields: Any, name: str) -> None:
    with pytest.raises(InvalidField, match="which only fills the cache") as caught:
        check_filling(MessagesRequest(**fields))
    assert caught.value.param == name


def test_the_rest_may_stand_beside_it() -> None:
    check_filling(
        MessagesRequest(
            stream=False,
            thinking={"type": "adaptive"},
            output_config={"effort": "low"},
            tool_choice={"type": "auto"},
        )
    )
