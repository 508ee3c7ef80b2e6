"""Property-based tests: chats with any combination of fields, and with random values, get an answer
or a clear error."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.chat_models import MESSAGES, PARAMETERS, chat_model, custom, grammar_format, tool
from tests.api.test_all_fields import FLAG, VALID, check_answer_or_named_fault
from tests.api.test_chat_bad_input import (
    BODY,
    OF_COMPLETIONS,
    V1,
    V3,
    answer,
    fault,
    parts,
)
from tests.fakes import FakeStream, model_info

CHAT_VALID: dict[str, list[object]] = {
    **{name: values for name, values in VALID.items() if name not in OF_COMPLETIONS},
    "messages": [
        MESSAGES,
        parts({"type": "text", "text": "a"}),
        [{"role": "developer", "content": "D"}, *MESSAGES],
        answer(content="A", reasoning="why", tool_calls=[]),
        answer(tool_calls=[{"id": "1", "type": "function",
                            "function": {"name": "f", "arguments": "{}"}}]),
        [*MESSAGES, {"role": "tool", "tool_call_id": "1", "content": "18"}],
    ],
    "stream_options": [None],
    "max_tokens": [1, 50],
    "max_completion_tokens": [1, 50, None],
    "logprobs": FLAG,
    "top_logprobs": [0, 3, 20, None],
    "tools": [[], [tool()], [custom()], [tool(), tool("b", strict=True)], [tool(parameters=None)],
              [tool(), custom(format=grammar_format('start: "a"+'))], None],
    "tool_choice": ["none", "auto", "required", None,
                    {"type": "function", "function": {"name": "get_weather"}}],
    "parallel_tool_calls": FLAG,
    "add_generation_prompt": FLAG,
    "continue_final_message": FLAG,
    "documents": [[], [{"title": "a", "text": "b"}], None],
    "chat_template_kwargs": [{}, {"enable_thinking": True}, {"opened": True}, None],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", "max", None],
    "enable_thinking": FLAG,
    "include_reasoning": FLAG,
    "echo": FLAG,
    "return_prompt_text": FLAG,
    "modalities": [["text"], [], None],
    "response_format": [{"type": "text"}, {"type": "json_object"}, None,
                        {"type": "json_schema", "json_schema":
                            {"name": "x", "strict": True, "schema": PARAMETERS}}],
    "metadata": [{"a": "b"}, None],
    "store": FLAG,
    "service_tier": ["auto", None],
    "verbosity": ["low", None],
    "prediction": [{"type": "content", "content": "a"}, None],
    "functions": [[{"name": "f"}], None],
    "function_call": ["auto", "none", {"name": "f"}, None],
    "web_search_options": [{}],
}  # fmt: skip
SCRIPTS = [
    "zyx!",
    "<think>hm</think>z",
    '<tool_call>{"name": "get_weather", "arguments": {"city":"é"}}</tool_call>',
    '<tool_call>{"name": "broken',
]


@pytest.mark.slow
@given(
    fields=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in CHAT_VALID.items()}
    ),
    path=st.sampled_from([V1, V3]),
    streamed=st.booleans(),
    script=st.sampled_from(SCRIPTS),
)
async def test_fields_together_are_taken_or_named(make_api, fields, path, streamed, script):
    """Some valid values contradict each other: the message then names one of the fields."""
    api = make_api(script, model=model_info(max_model_len=500), chat=chat_model())
    body = {**BODY, **fields, "stream": streamed}
    await check_answer_or_named_fault(api, path, body, (*fields, "messages"))


MEMBERS = st.sampled_from(
    ["role", "content", "name", "tool_calls", "function", "type", "arguments", "reasoning", "text",
     "tool_call_id", "refusal", "function_call", "id", "image_url"]
)  # fmt: skip
TREES = st.recursive(
    st.sampled_from(["user", "assistant", "tool", "text", "function", None, 5, "", "{}", True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    field=st.sampled_from(["messages", "tools", "tool_choice"]),
    tree=TREES,
    path=st.sampled_from([V1, V3]),
)
async def test_random_trees_answer_or_name_the_field(make_api, field, tree, path):
    api = make_api("x", model=model_info(max_model_len=500), chat=chat_model())
    body = {**BODY, **({"tools": [tool()]} if field == "tool_choice" else {}), field: tree}
    response = await api.call("POST", path, json.dumps(body).encode(), FakeStream())
    assert response is not None
    if response.status != 200:
        assert response.status == 400, response.body
        assert field in fault(orjson.loads(response.body), path)
