"""Tests of the tools that agents send: namespaces (as of MCP servers) and custom tools."""

from __future__ import annotations

import json

import pytest

from tests.api.chat_models import PARAMETERS, call_text, prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask, stream_of

WEATHER = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "All about the weather.",
    "tools": [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}],
}
WRITE = {"type": "custom", "name": "write", "description": "Writes files."}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "+" /.*/ LF\n'
                                                                  "%import common.LF"},
}  # fmt: skip
TEXT = '+ a "b"\n'
WRITTEN = call_text("write", json.dumps({"input": TEXT}))


@pytest.mark.parametrize("path", [V1, V3])
async def test_call_of_a_namespace_names_it(make, path):
    api = make(call_text("mcp__weather__get_weather") + call_text())
    body = {**BODY, "tools": [WEATHER, TOOL]}
    response = await api.answer(path, body)
    first, second = response["output"]
    assert (first["name"], first["namespace"]) == ("get_weather", "mcp__weather")
    assert first["arguments"] == '{"city":"Paris"}'
    assert "namespace" not in second
    assert prompt_of(api) == "<tool mcp__weather__get_weather><tool get_weather>u:Hi;>"
    assert response["tools"][0]["name"] == "mcp__weather"
    assert response["tools"][0]["tools"][0]["parameters"] == PARAMETERS
    events = await stream_of(api, body, path)
    items = [event["item"] for event in events[:-1] if "item" in event]
    spaces = [item.get("namespace") for item in items]
    assert spaces == ["mcp__weather", "mcp__weather", None, None]


async def test_call_of_a_namespace_is_rendered_with_it(make):
    api = make(call_text("mcp__weather__get_weather"))
    body = {**BODY, "tools": [WEATHER]}
    _, first = await ask(api, "POST", V1, body)
    [call] = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    given = [{"role": "user", "content": "Hi"}, call, output]
    assert (await ask(api, "POST", V1, {**body, "input": given}))[0] == 200
    by_items = prompt_of(api)
    chained = {**body, "previous_response_id": first["id"], "input": [output]}
    assert (await ask(api, "POST", V1, chained))[0] == 200
    assert prompt_of(api) == by_items
    assert "{mcp__weather__get_weather" in by_items
    stored = await ask(api, "GET", f"{V1}/{first['id']}")
    assert stored[1]["output"] == first["output"]


@pytest.mark.parametrize("path", [V1, V3])
async def test_custom_tool_call_has_its_input_as_text(make, path):
    api = make(WRITTEN + call_text())
    body = {**BODY, "tools": [WRITE, TOOL]}
    _, response = await ask(api, "POST", path, body)
    first, second = response["output"]
    separator = "_" if path == V1 else "-"
    assert first == {
        "id": first["id"],
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": first["call_id"],
        "name": "write",
        "input": TEXT,
    }
    assert first["id"].startswith(f"ctc{separator}")
    assert second["type"] == "function_call"
    assert response["tools"][0] == WRITE
    events = await stream_of(api, body, path)
    told = [e for e in events[:-1] if e["type"].startswith("response.custom_tool_call_input")]
    *more, done = told
    assert {event["type"] for event in more} == {"response.custom_tool_call_input.delta"}
    assert "".join(event["delta"] for event in more) == done["input"] == TEXT
    assert done["type"] == "response.custom_tool_call_input.done"
    final = events[-2]["response"]["output"][0]
    assert final == {**first, "id": final["id"], "call_id": final["call_id"]}


async def test_custom_tool_call_is_stored_and_rendered(make):
    api = make("Done.")
    given = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "write", "input": TEXT},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "written"},
    ]
    first = await api.answer(V1, {**BODY, "tools": [WRITE], "input": given})
    prompt = prompt_of(api)
    assert "{write" in prompt
    assert prompt.endswith("t:written;>")
    _, listed = await ask(api, "GET", f"{V1}/{first['id']}/input_items?order=asc")
    assert [item["type"] for item in listed["data"]] == [
        "message", "custom_tool_call", "custom_tool_call_output",
    ]  # fmt: skip
    again = {**BODY, "previous_response_id": first["id"], "input": "More"}
    assert (await ask(api, "POST", V1, again))[0] == 200
    assert "t:written;a:Done.;u:More;>" in prompt_of(api)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "apply_patch"}])
async def test_grammar_of_a_custom_tool_is_enforced(make, choice):
    api = make(call_text("apply_patch", json.dumps({"input": TEXT})))
    body = {**BODY, "tools": [PATCH], "tool_choice": choice}
    response = await api.answer(V1, body)
    assert response["tools"] == [PATCH]
    assert response["tool_choice"] == choice
    assert '"pattern": "^(?:' in repr(api.backend.submitted[0].params.grammar.tree)
    assert "LF" not in prompt_of(api), "this template tells names alone"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "custom_tool_call", "call_id": "1", "name": "f"}, "input[0].input"),
        ({"type": "custom_tool_call", "call_id": "1", "input": ""}, "input[0].name"),
        ({"type": "custom_tool_call", "name": "f", "input": ""}, "input[0].call_id"),
        ({"type": "custom_tool_call_output", "output": ""}, "input[0].call_id"),
        ({"type": "custom_tool_call_output", "call_id": "1"}, "input[0].output"),
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": "", "namespace": 5},
         "input[0].namespace"),
    ],
)  # fmt: skip
async def test_invalid_custom_item_is_refused_by_its_place(make, item, param):
    assert await make().refused(V1, {**BODY, "input": [item]}) == param
