"""Property-based tests: any request gets an answer or a client error, never a server error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.parts.responses.request import ResponsesRequest
from tests.api.chat_models import prompt_of
from tests.api.responses.events import check
from tests.fakes import FakeStream

WORDS = st.sampled_from(
    ["", "x", "user", "assistant", "developer", "message", "function_call", "reasoning", "auto",
     "function_call_output", "item_reference", "input_text", "output_text", "summary_text", "low",
     "input_image", "text", "json_object", "json_schema", "function", "allowed_tools", "required",
     "none", "incomplete", "completed", "web_search", "msg_1",
     "custom", "namespace", "custom_tool_call", "custom_tool_call_output", "compaction", "grammar",
     "lark", "regex", "start: x", "disabled", "flex", "\ud7ff\0"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "summary",
     "status", "encrypted_content", "format", "schema", "strict", "verbosity", "effort", "tools",
     "mode", "function", "custom", "namespace", "input",
     "definition", "syntax", "parameters", "refusal", "image_url", "include_usage", "x"]
)  # fmt: skip
NUMBERS = st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from([2**63, -(2**63), 10**40, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
CONTENT = WORDS | st.lists(
    st.fixed_dictionaries({"type": WORDS}, optional={"text": WORDS, "refusal": WORDS}), max_size=2
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": WORDS,
            "role": WORDS,
            "content": CONTENT,
            "id": WORDS,
            "call_id": WORDS,
            "name": WORDS,
            "arguments": WORDS,
            "input": WORDS,
            "namespace": WORDS,
            "output": CONTENT,
            "summary": CONTENT,
            "status": WORDS,
            "encrypted_content": WORDS,
        },
    ),
    max_size=4,
)
NAMES = sorted({*ResponsesRequest.__struct_fields__} - {"model", "stream", "background"})
BODIES = st.builds(
    lambda fields, items, flags: {**fields, **items, **flags},
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    st.fixed_dictionaries({"input": WORDS | ITEMS | VALUES}),
    st.fixed_dictionaries({}, optional={"stream": st.booleans(), "background": st.booleans()}),
)


@pytest.fixture
def answer(make) -> Callable[..., Any]:
    """Runs all examples on one event loop."""
    api = make("<think>hm</think>Hi", context=400)

    async def ask(path: str, body: dict[str, Any]) -> None:
        stream = FakeStream()
        response = await api.call("POST", path, json.dumps(body).encode(), stream)
        if response is None:
            check(stream.events)
            return
        answer = orjson.loads(response.body)
        assert response.status in (200, 400, 404, 412, 429), answer
        if response.status == 200:
            assert answer["object"] == "response"
            assert prompt_of(api)
        else:
            assert answer["error"]

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/responses", "/v3/responses"])
async def test_no_request_is_the_servers_fault(answer, path):
    loop = asyncio.get_running_loop()

    @settings(database=None)
    @given(BODIES)
    def ask(body: dict[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(answer(path, {"model": "fake", **body}), loop).result(60)

    await asyncio.to_thread(ask)
