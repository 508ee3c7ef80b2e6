"""What an answer holds, and what it repeats of its request."""

from __future__ import annotations

import pytest

from fastovms.params import SamplingDefaults
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask

TOLD_TOOL = {**TOOL, "description": None, "strict": None}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"instructions": "Be kind."}, {}),
        ({"metadata": {"a": "b"}}, {}),
        ({"max_output_tokens": 50}, {}),
        ({"max_tool_calls": 3}, {}),
        ({"temperature": 0.5, "top_p": 0.9}, {}),
        ({"presence_penalty": 0.5, "frequency_penalty": -0.5}, {}),
        ({"parallel_tool_calls": False}, {}),
        ({"user": "me", "safety_identifier": "us", "prompt_cache_key": "key"}, {}),
        ({"prompt_cache_retention": "24h"}, {}),
        ({"service_tier": "flex"}, {}),
        ({"service_tier": None}, {"service_tier": "default"}),
        ({"truncation": "auto"}, {}),
        ({"truncation": None}, {"truncation": "disabled"}),
        ({"store": False}, {}),
        ({"store": None}, {"store": True}),
        ({"top_logprobs": 3}, {}),
        ({"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "high", "summary": None}}),
        (
            {"reasoning": {"generate_summary": "concise"}},
            {"reasoning": {"effort": None, "summary": "concise"}},
        ),
        ({"text": None}, {"text": {"format": {"type": "text"}}}),
        (
            {"text": {"verbosity": "low"}},
            {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        ),
        ({"text": {"format": {"type": "json_object"}}}, {}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "x",
                        "description": None,
                        "schema": {},
                        "strict": False,
                    }
                }
            },
        ),
        (
            {"tools": [TOOL]},
            {"tools": [TOLD_TOOL], "tool_choice": "auto"},
        ),
        (
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOLD_TOOL]},
        ),
        (
            {"tools": [{**TOOL, "strict": True}], "tool_choice": "required"},
            {"tools": [{**TOOL, "description": None, "strict": True}]},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
            {"tools": [TOLD_TOOL]},
        ),
        (
            {
                "tools": [TOOL, {**TOOL, "name": "other"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "other"}],
                },
            },
            {
                "tools": [
                    {**TOOL, "name": name, "description": None, "strict": None}
                    for name in ("get_weather", "other")
                ]
            },
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_the_request_is_repeated(make, fields, expected, path):
    status, body = await ask(make(), "POST", path, {**BODY, **fields})
    assert status == 200, body
    for name, value in {**fields, **expected}.items():
        assert body[name] == value, name


async def test_ovms_repeats_min_p(make):
    api = make()
    for path, told in ((V1, None), (V3, 0.25)):
        _, body = await ask(api, "POST", path, {**BODY, "min_p": 0.25})
        assert body.get("min_p") == told


async def test_what_is_used_is_told_where_the_request_says_nothing(make):
    api = make(defaults=SamplingDefaults(temperature=0.25, top_p=0.5))
    _, body = await ask(api, "POST", V1, BODY)
    assert (body["temperature"], body["top_p"]) == (0.25, 0.5)


SCHEMA = {"type": "object", "properties": {}}
NO_FORMAT = {"type": "text"}


@pytest.mark.parametrize(
    ("response_format", "told"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            {
                "type": "json_schema",
                "name": "x",
                "description": None,
                "schema": SCHEMA,
                "strict": True,
            },
        ),
        ({"type": "regex", "pattern": "a+"}, {"type": "regex", "pattern": "a+"}),
    ],
)
async def test_the_format_of_chats_is_repeated_as_that_of_responses(make, response_format, told):
    api = make()
    for path, format in ((V1, told), (V3, NO_FORMAT)):  # OVMS says so, whatever it was asked
        status, body = await ask(api, "POST", path, {**BODY, "response_format": response_format})
        assert (status, body["text"]["format"]) == (200, format)
