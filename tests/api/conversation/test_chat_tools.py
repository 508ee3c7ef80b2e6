"""Tools in chats over fakes: calls in answers, in streams and in the history."""

from __future__ import annotations

import json

import pytest

from fastovms.params import GrammarKind
from tests.api.chat_models import call_text, prompt_of, tool, tool_choice
from tests.api.chats import BODY, V1, V3, join, make

__all__ = ["make"]

CUT = '{"city":"'
WHOLE = '{"city":"London"}'
LONDON = call_text(arguments=WHOLE)


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7, 1000])
async def test_calls(make, tokens_per_step):
    text = "Let me see." + call_text() + "\n" + call_text("add", r'{"a":{"b":[1,"\"é\n"]}}')
    api = make(text, tokens_per_step=tokens_per_step)
    tools = {"tools": [tool(), tool("add", parameters=None)]}
    _, body = await api.post(V1, {**BODY, **tools})
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [list(call) for call in calls] == [["id", "type", "function"]] * 2
    assert len({call["id"] for call in calls}) == 2
    functions = [call["function"] for call in calls]
    assert functions[0] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert json.loads(functions[1]["arguments"]) == {"a": {"b": [1, '"é\n']}}
    for path in (V1, V3):
        joined = join(await api.stream(path, {**BODY, **tools}))[0]
        assert joined["calls"] == [[f["name"], f["arguments"]] for f in functions]
        assert joined["finish_reason"] == "tool_calls"
        assert joined["content"] == "Let me see."


async def test_a_call_is_told_as_it_is_made(make):
    events = await make(call_text()).stream(V1, {**BODY, "tools": [tool()]})
    deltas = [event["choices"][0]["delta"] for event in events[1:-1]]
    first, *others, last = deltas
    [call] = first["tool_calls"]
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    for delta in others:
        [call] = delta["tool_calls"]
        assert set(call) == {"index", "function"}
    pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in others]
    assert pieces == list('{"city":"Paris"}')
    assert last == {}


@pytest.mark.parametrize(
    ("path", "content"), [(V1, None), (V3, "")], ids=["null", "empty"]
)  # fmt: skip
async def test_content_beside_calls_alone(make, path, content):
    _, body = await make(call_text()).post(path, {**BODY, "tools": [tool()]})
    assert body["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize("choice", [None, "none"])
async def test_without_tools_markup_is_content(make, choice):
    body = {**BODY, "tools": [tool()], "tool_choice": choice} if choice else BODY
    api = make(call_text())
    _, answer = await api.post(V1, body)
    assert answer["choices"][0]["message"]["content"] == call_text()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<tool" not in prompt_of(api)


async def test_of_parallel_calls_only_the_first_is_kept(make):
    api = make(call_text() + call_text("other"))
    body = {**BODY, "tools": [tool()], "parallel_tool_calls": False}
    _, answer = await api.post(V1, body)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert [name for name, _ in join(await api.stream(V1, body))[0]["calls"]] == ["get_weather"]


async def test_tools_beside_their_type_for_ovms(make):
    api = make(call_text())
    flat = {"type": "function", **tool()["function"]}
    choice = {"type": "function", "name": "get_weather"}
    status, body = await api.post(V3, {**BODY, "tools": [flat], "tool_choice": choice})
    assert status == 200, body
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert prompt_of(api) == "<tool get_weather>u:Hi;>"
    status, body = await api.post(V1, {**BODY, "tools": [flat]})
    assert (status, body["error"]["param"]) == (400, "tools[0].function")


async def test_a_choice_that_no_tool_fits_for_ovms(make):
    for fields in (
        {"tool_choice": "required"},
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}},
    ):
        status, body = await make(call_text()).post(V3, {**BODY, **fields})
        assert status == 200
        assert body["choices"][0]["message"]["tool_calls"] == []
        status, body = await make().post(V1, {**BODY, **fields})
        assert (status, body["error"]["param"]) == (400, "tool_choice")


async def test_a_call_that_is_cut(make):
    api = make(call_text())
    body = {**BODY, "tools": [tool()], "max_tokens": 50}
    _, answer = await api.post(V1, body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    joined = join(await api.stream(V1, body))[0]
    assert joined["finish_reason"] == "length"
    assert joined["calls"] == [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in choice["message"]["tool_calls"]
    ]


@pytest.mark.parametrize("choice", ["required", tool_choice("get_weather")])
@pytest.mark.parametrize("max_tokens", [5, 20, 50])
async def test_of_a_required_call_that_is_cut_nothing_is_told(make, choice, max_tokens):
    body = {**BODY, "tools": [tool()], "tool_choice": choice, "max_tokens": max_tokens}
    _, answer = await make(call_text()).post(V1, body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize(
    ("text", "fields", "whole", "streamed", "reason"),
    [
        (call_text(), {}, [CUT], [CUT], "stop"),
        (call_text(), {"tool_choice": "required"}, [], [CUT], "stop"),
        (call_text(), {"tool_choice": tool_choice("get_weather")}, [], [CUT], "stop"),
        (LONDON + call_text(), {}, [WHOLE, CUT], [WHOLE, CUT], "stop"),
        (LONDON + call_text(), {"tool_choice": "required"}, [WHOLE], [WHOLE, CUT], "stop"),
        (LONDON + call_text(), {"parallel_tool_calls": False}, [WHOLE], [WHOLE], "tool_calls"),
        (LONDON + "Paris", {}, [WHOLE], [WHOLE], "tool_calls"),
    ],
)
async def test_a_call_that_a_stop_string_cuts_is_not_to_be_run(
    make, text, fields, whole, streamed, reason
):
    body = {**BODY, "tools": [tool()], "stop": "Paris", "stop_in_reasoning": True, **fields}
    api = make(text)
    _, answer = await api.post(V1, body)
    [found] = answer["choices"]
    calls = [call["function"]["arguments"] for call in found["message"].get("tool_calls", [])]
    assert (calls, found["finish_reason"]) == (whole, reason)
    joined = join(await api.stream(V1, body))[0]
    assert [arguments for _, arguments in joined["calls"]] == streamed
    assert joined["finish_reason"] == reason


@pytest.mark.parametrize(
    ("path", "choice", "content", "reason"),
    [
        (V1, "required", None, "tool_calls"),
        (V1, tool_choice("get_weather"), "", "stop"),
        (V3, "required", "", "tool_calls"),
        (V3, tool_choice("get_weather"), "", "tool_calls"),
    ],
)
async def test_required_calls(make, path, choice, content, reason):
    body = {**BODY, "tools": [tool(), tool("add")], "tool_choice": choice}
    api = make(call_text())
    _, answer = await api.post(path, body)
    [found] = answer["choices"]
    assert (found["message"]["content"], found["finish_reason"]) == (content, reason)
    assert len(found["message"]["tool_calls"]) == 1
    joined = join(await api.stream(path, body))[0]
    assert (joined["finish_reason"], joined["calls"][0][0]) == (reason, "get_weather")
    assert api.backend.submitted[0].params.grammar.kind is GrammarKind.CALLS
