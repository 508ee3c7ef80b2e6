"""Tests of `fastovms/api/chat_tools.py`."""

from __future__ import annotations

import json
import re

import pytest

from fastovms.api.chat_tools import (
    ToolTarget,
    flat_name,
    read_custom,
    read_tools,
)
from fastovms.api.dialect import OPENAI, OVMS
from fastovms.errors import InvalidField
from fastovms.params import GrammarKind
from tests.api.chat_models import call_text, custom, grammar_format, prompt_of, tool, tool_choice
from tests.api.chats import BODY, V1, V3, join, make

# Tools of each format become functions for the model.


NESTED = 'start: e\ne: "(" e ")" | "x"'


@pytest.mark.parametrize(
    ("form", "words", "pattern", "is_enforced"),
    [
        (None, "free text", None, True),
        ({"type": "text"}, "free text", None, True),
        (grammar_format("a+", "regex"), "expression:\na+", "^(?:a+)$", True),
        (grammar_format("^(a|b)[|]$", "regex"), "^(a|b)[|]$", "^(?:(a|b)[|])$", True),
        (grammar_format(r"^a\|\$", "regex"), r"^a\|\$", r"^(?:a\|\$)$", True),
        (grammar_format("^a|b$", "regex"), "^a|b$", "^(?:^a|b$)$", True),
        (grammar_format("^a+$", "regex"), "expression:\n^a+$", "^(?:a+)$", True),
        ({"type": "grammar", "syntax": "regex", "definition": "a|b"}, "a|b", "^(?:a|b)$", True),
        (grammar_format('start: "a"'), 'grammar:\nstart: "a"', "^(?:(?:(?:a)))$", True),
        (grammar_format(NESTED), NESTED, None, False),
    ],
)
def test_custom_tool_is_a_function_with_an_input_string(form, words, pattern, is_enforced):
    custom = {"name": "write", "description": "Writes.", **({"format": form} if form else {})}
    read = read_custom(custom, "tools[0].custom")
    assert read.target == ToolTarget("write", None, "custom")
    assert read.function["description"].startswith("Writes.\n\n")
    assert read.function["description"].endswith(words) or words == "free text"
    assert words in read.function["description"]
    assert read.function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert read.tool.parameters["properties"]["input"].get("pattern") == pattern
    assert read.is_strict == (pattern is not None)
    assert ("tools[0].custom.format" in read.warning) == (not is_enforced)


@pytest.mark.parametrize("expression", ["a)|(b", "a)", "[(])", r"(\))|(a))"])
def test_regex_with_an_unopened_group_is_refused(expression):
    form = grammar_format(expression, "regex")
    with pytest.raises(InvalidField, match=r"definition cannot be used: unopened group$") as error:
        read_custom({"name": "write", "format": form}, "tools[0].custom")
    assert error.value.param == "tools[0].custom.format.grammar.definition"
    for balanced in ("(a)|(b)", r"a\)", "[)]", "[])]"):
        custom = {"name": "write", "format": grammar_format(balanced, "regex")}
        assert read_custom(custom, "tools[0].custom").input_grammar.source == balanced


# Tool choices in the formats of chats and of responses.


NAMESPACE = {
    "type": "namespace",
    "name": "sums",
    "description": "All about sums.",
    "tools": [
        {"type": "function", "name": "add", "description": "Adds."},
        {"type": "custom", "name": "explain"},
    ],
}
TOOLS = [tool("look"), custom("write"), NAMESPACE]
ALL = ["look", "write", "sums__add", "sums__explain"]


def named(name: str, kind: str = "function", **members: object) -> dict:
    return {"type": kind, "name": name, **members}


def allowed(*tools: dict, mode: str = "auto") -> dict:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


@pytest.mark.parametrize(
    ("choice", "names", "is_required"),
    [
        (None, ALL, False),
        ("auto", ALL, False),
        ("none", [], False),
        ("required", ALL, True),
        (named("look"), ["look"], True),
        (named("write", "custom"), ["write"], True),
        ({"type": "custom", "custom": {"name": "write"}}, ["write"], True),
        (named("add", namespace="sums"), ["sums__add"], True),
        (named("add"), ["sums__add"], True),
        (named("sums__add"), ["sums__add"], True),
        (named("explain", "custom"), ["sums__explain"], True),
        (allowed(named("look"), named("write", "custom")), ["look", "write"], False),
        (allowed(named("add"), {"type": "web_search"}, mode="required"), ["sums__add"], True),
    ],
)
def test_tool_choice_selects_tools_and_whether_calls_are_required(choice, names, is_required):
    use = read_tools(TOOLS, choice, None, OPENAI, flat=True, skips_others=True)
    assert [tool.name for tool in use.tools] == names
    assert [tool["function"]["name"] for tool in use.shown] == names
    assert sorted(use.targets) == sorted(names)
    assert use.is_required == is_required
    assert use.custom == {"write", "sums__explain"} & {*names}


@pytest.mark.parametrize(
    "choice",
    [
        named("other"),
        named("write"),
        named("look", "custom"),
        named("add", namespace="other"),
        allowed(named("other")),
    ],
)
def test_unknown_tool_choice_is_refused_by_openai_and_empty_in_ovms(choice):
    with pytest.raises(InvalidField, match="not among the tools"):
        read_tools(TOOLS, choice, None, OPENAI, flat=True)
    assert read_tools(TOOLS, choice, None, OVMS, flat=True).tools == []


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (named("add"), 'tool_choice names "add", which more than one namespace has'),
        (allowed(named("add")), 'tool_choice.tools[0] names "add", which more than one namespace'),
        (named("add", namespace=5), "tool_choice.namespace must be a string, not 5"),
        (named("look", namespace={}), "tool_choice.namespace must be a string, not {}"),
        (named(""), 'tool_choice.name must be a string that is not empty, not ""'),
        (
            allowed({"type": "web_search"}, mode="required"),
            "tool_choice.tools lists no tool that the model can call, though one is required",
        ),
    ],
)
def test_ambiguous_or_malformed_tool_choice_is_refused(choice, message):
    tools = [*TOOLS, {**NAMESPACE, "name": "more"}]
    with pytest.raises(InvalidField, match=re.escape(message)):
        read_tools(tools, choice, None, OPENAI, flat=True, skips_others=True)


def test_description_of_a_namespace_is_shown_once():
    spaces = ["", "sums", "mcp__sums__"]
    assert [flat_name("add", space) for space in spaces] == ["add", "sums__add", "mcp__sums__add"]
    assert (flat_name("_add", "sums"), flat_name("add", "add")) == ("sums_add", "add")
    use = read_tools(TOOLS, None, None, OPENAI, flat=True)
    said = [tool["function"].get("description", "") for tool in use.shown]
    assert said[2] == "All about sums.\n\nAdds."
    assert "All about sums" not in said[3]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**NAMESPACE, "name": ""}], "tools[0].name"),
        ([{**NAMESPACE, "tools": {}}], "tools[0].tools"),
        ([{**NAMESPACE, "description": 5}], "tools[0].description"),
        ([{**NAMESPACE, "tools": [5]}], "tools[0].tools[0]"),
        ([{**NAMESPACE, "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{**NAMESPACE, "tools": [NAMESPACE]}], "tools[0].tools[0].type"),
        ([NAMESPACE, tool("sums__add")], "tools[1].function"),
        ([tool("x"), custom("x")], "tools[1].custom"),
        ([{**NAMESPACE, "tools": [named(f"f{i}") for i in range(1000)]},
          *(tool(f"t{i}") for i in range(25))], "tools"),
    ],
)  # fmt: skip
def test_malformed_namespace_is_refused_by_its_place(tools, param):
    with pytest.raises(InvalidField) as raised:
        read_tools(tools, None, None, OPENAI, flat=True)
    assert raised.value.param == param


# Tools in chats with fakes: calls in answers, in streams and in the history.


__all__ = ["make"]

CUT = '{"city":"'
WHOLE = '{"city":"London"}'
LONDON = call_text(arguments=WHOLE)


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7, 1000])
async def test_calls_agree_in_whole_and_streamed_answers(make, tokens_per_step):
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


async def test_call_is_streamed_as_it_is_generated(make):
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
    # A call is sent as soon as its first argument has a value.
    assert pieces == ['{"city":"', *'Paris"}']
    assert last == {}


@pytest.mark.parametrize(
    ("path", "content"), [(V1, None), (V3, "")], ids=["null", "empty"]
)  # fmt: skip
async def test_content_of_a_message_of_calls_is_empty(make, path, content):
    _, body = await make(call_text()).post(path, {**BODY, "tools": [tool()]})
    assert body["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize("choice", [None, "none"])
async def test_markup_is_content_if_no_tool_may_be_called(make, choice):
    body = {**BODY, "tools": [tool()], "tool_choice": choice} if choice else BODY
    api = make(call_text())
    _, answer = await api.post(V1, body)
    assert answer["choices"][0]["message"]["content"] == call_text()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<tool" not in prompt_of(api)


async def test_one_call_is_kept_if_calls_are_not_parallel(make):
    api = make(call_text() + call_text("other"))
    body = {**BODY, "tools": [tool()], "parallel_tool_calls": False}
    _, answer = await api.post(V1, body)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert [name for name, _ in join(await api.stream(V1, body))[0]["calls"]] == ["get_weather"]


async def test_flat_tools_are_accepted_by_ovms_alone(make):
    api = make(call_text())
    flat = {"type": "function", **tool()["function"]}
    choice = {"type": "function", "name": "get_weather"}
    body = await api.answer(V3, {**BODY, "tools": [flat], "tool_choice": choice})
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert prompt_of(api) == "<tool get_weather>u:Hi;>"
    status, body = await api.post(V1, {**BODY, "tools": [flat]})
    assert (status, body["error"]["param"]) == (400, "tools[0].function")


async def test_choice_without_its_tool_is_ignored_by_ovms_alone(make):
    for fields in (
        {"tool_choice": "required"},
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}},
    ):
        body = await make(call_text()).answer(V3, {**BODY, **fields})
        assert body["choices"][0]["message"]["tool_calls"] == []
        status, body = await make().post(V1, {**BODY, **fields})
        assert (status, body["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("choice", ["required", tool_choice("get_weather")])
@pytest.mark.parametrize("max_tokens", [5, 20, 50])
async def test_incomplete_required_call_is_left_out(make, choice, max_tokens):
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
async def test_call_cut_by_a_stop_string_finishes_with_stop(
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
async def test_required_call_sets_content_and_finish_reason_by_dialect(
    make, path, choice, content, reason
):
    body = {**BODY, "tools": [tool(), tool("add")], "tool_choice": choice}
    api = make(call_text())
    _, answer = await api.post(path, body)
    [found] = answer["choices"]
    assert (found["message"]["content"], found["finish_reason"]) == (content, reason)
    assert len(found["message"]["tool_calls"]) == 1
    joined = join(await api.stream(path, body))[0]
    assert (joined["finish_reason"], joined["calls"][0][0]) == (reason, "get_weather")
    assert api.backend.submitted[0].params.grammar.kind is GrammarKind.CALLS
