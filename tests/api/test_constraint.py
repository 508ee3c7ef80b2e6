"""Tests of `fastovms/api/constraint.py`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fastovms.api.chat import names_of
from fastovms.api.chat_tools import read_tools
from fastovms.api.client_request import ClientRequest
from fastovms.api.constraint import Constraint, constraint, usable
from fastovms.api.dialect import OPENAI
from fastovms.api.prompt import Chat, TemplateOptions
from fastovms.api.request_schemas import ChatRequest
from fastovms.api.served import ServedModel
from fastovms.config import ApiConfig
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.http.messages import ANYBODY
from fastovms.params import Grammar
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.chat_models import (
    PARAMETERS,
    call_text,
    chat_model,
    custom,
    grammar_format,
    prompt_of,
    tool,
    tool_choice,
)
from tests.api.chats import BODY, V1, V3, make
from tests.fakes import ByteTokenizer, FakeBackend
from tests.vocabularies import vocabulary

# The parser that reads a chat's answer.


__all__ = ["make"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_text_with_special_tokens_is_parsed_in_openais_dialect_alone(make, choice):
    body = {**BODY, "tools": [tool()], "tool_choice": choice, "skip_special_tokens": False}
    _, answer = await make(call_text()).post(V1, body)
    assert answer["choices"][0]["message"]["tool_calls"]
    _, answer = await make(call_text()).post(V3, body)
    assert answer["choices"][0]["message"]["content"] == call_text()


async def test_chat_longer_than_the_context_is_refused_or_truncated(make):
    for length in (2001, 100_000):
        body = {**BODY, "messages": [{"role": "user", "content": "x" * length}]}
        status, answer = await make().post(V1, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert answer["error"]["param"] == "messages"
    body = {**BODY, "truncate_prompt_tokens": 3}
    api = make()
    assert (await api.post(V1, body))[0] == 200
    assert prompt_of(api) == "i;>"


# The grammar of a chat's answer.


FORMAT = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
}
JSON = '{"city":"Paris"}'
THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = call_text()
WRONG_CALL = call_text(arguments='{"town":"Paris"}')
UNKNOWN_CALL = call_text("other")
AUTO = {"tools": [tool(), tool("add")]}
ONE = {**AUTO, "parallel_tool_calls": False}
REQUIRED = {**AUTO, "tool_choice": "required"}
NAMED = {**AUTO, "tool_choice": tool_choice("get_weather")}
OFF = {"enable_thinking": False}


def served() -> ServedModel:
    backend = FakeBackend(lambda request, index: ())
    metrics = GenerationMetrics("fake", backend.stats)
    return ServedModel(backend, ByteTokenizer(), metrics, chat=chat_model())


def preparation(
    model: ServedModel, body: ChatRequest, config: ApiConfig | None = None
) -> ClientRequest[ChatRequest]:
    return ClientRequest(
        id="",
        body=body,
        size=0,
        model=model,
        dialect=OPENAI,
        config=config or ApiConfig(),
        names=names_of(body),
        caller=ANYBODY,
        client="",
    )


def constraint_of(
    fields: dict[str, Any],
    kwargs: dict[str, Any] | None = None,
    prompt: str = "",
    config: ApiConfig | None = None,
) -> Constraint | None:
    body = ChatRequest(**fields)
    tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, OPENAI)
    options = TemplateOptions(kwargs=kwargs or {})
    return constraint(preparation(served(), body, config), Chat((), (), (), tools, options), prompt)


@pytest.mark.parametrize(
    ("fields", "allowed", "refused"),
    [
        (AUTO, ["", "Hi", THOUGHT + "Hi", CALL, "Hi" + CALL + "\n" + CALL, THOUGHT + CALL],
         [WRONG_CALL, UNKNOWN_CALL]),
        (ONE, ["Hi", CALL, "Hi" + CALL], [CALL + CALL, CALL + "Hi", WRONG_CALL]),
        (REQUIRED, [CALL, THOUGHT + CALL, CALL + "\n" + call_text("add")],
         ["", "Hi", "Hi" + CALL, WRONG_CALL, UNKNOWN_CALL]),
        (NAMED, [CALL, THOUGHT + CALL], ["Hi", CALL + "\n" + CALL, call_text("add")]),
        (FORMAT, [JSON, THOUGHT + JSON], ["Hi", "{}", THOUGHT + "Hi", CALL]),
        ({**AUTO, **FORMAT}, [JSON, CALL, THOUGHT + JSON, THOUGHT + CALL],
         ["Hi", "{}", WRONG_CALL, JSON + CALL]),
        ({**REQUIRED, **FORMAT}, [CALL], [JSON]),
    ],
    ids=["auto", "one", "required", "named", "format", "auto and format", "required and format"],
)  # fmt: skip
def test_grammar_accepts_only_answers_that_the_request_allows(fields, allowed, refused):
    wanted = constraint_of(fields)
    assert wanted is not None
    accepts = vocabulary().accepts
    assert {text: accepts(wanted.grammar, text) for text in allowed} == dict.fromkeys(allowed, True)
    assert not any(accepts(wanted.grammar, text) for text in refused)


@pytest.mark.parametrize(("strict", "may_have_more"), [(None, True), (False, True), (True, False)])
def test_strict_tool_forbids_additional_properties(strict, may_have_more):
    open_ = tool(parameters={**PARAMETERS, "additionalProperties": True}, strict=strict)
    wanted = constraint_of({"tools": [open_], "tool_choice": "required"})
    assert wanted is not None
    accepts = vocabulary().accepts
    assert accepts(wanted.grammar, CALL) is True
    more = call_text(arguments='{"city":"Paris","more":1}')
    assert (accepts(wanted.grammar, more) is True) == may_have_more


def test_no_reasoning_where_thinking_is_off():
    accepts = vocabulary().accepts
    for fields, answer in ((FORMAT, JSON), (REQUIRED, CALL)):
        wanted = constraint_of(fields, OFF)
        assert wanted is not None
        assert accepts(wanted.grammar, answer)
        assert accepts(wanted.grammar, THOUGHT + answer) is False


def test_reasoning_that_the_prompt_has_opened():
    for kwargs in ({}, OFF):
        wanted = constraint_of(FORMAT, kwargs, prompt="a:<think>\n")
        assert wanted is not None
        accepts = vocabulary().accepts
        assert accepts(wanted.grammar, f"hm\n</think>\n\n{JSON}")
        assert not accepts(wanted.grammar, JSON)


def test_schemas_that_are_too_long_are_refused_where_they_have_to_be_kept_to() -> None:
    config = ApiConfig(max_grammar_length=100)
    long = [tool(parameters={"type": "object", "description": "x" * 100})]
    wanted = constraint_of({**AUTO, "tools": long}, config=config)
    assert wanted is not None
    assert wanted.grammar is None
    assert "tools must be at most 100 characters" in wanted.warnings[0]
    with pytest.raises(InvalidField, match=r"^tools must be at most 100 characters, not \d+") as e:
        constraint_of({**REQUIRED, "tools": long}, config=config)
    assert e.value.param == "tools"
    assert constraint_of({**REQUIRED, "tools": long}) is not None


async def test_optional_constraint_that_cannot_be_compiled_is_dropped(monkeypatch):
    model = served()

    async def fail(grammar: object, client: str) -> None:
        raise BackendUnavailable("grammars cannot be compiled now")

    monkeypatch.setattr(model.backend, "compile_grammar", fail)
    assert await usable(preparation(model, ChatRequest()), constraint_of(AUTO)) is None
    with pytest.raises(BackendUnavailable):
        await usable(preparation(model, ChatRequest()), constraint_of(REQUIRED))


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, FORMAT])
@pytest.mark.parametrize("form", [grammar_format("(bad", "regex"), grammar_format("start: /(bad/")])
async def test_a_format_at_fault_is_named(fields, form):
    fine = custom("fine", format=grammar_format("a+", "regex"))
    wanted = constraint_of({**fields, "tools": [tool(), fine, custom(format=form)]})
    with pytest.raises(InvalidField, match=r"^tools\[2\]\.custom\.format\..*: bad regex") as e:
        await usable(preparation(served(), ChatRequest()), wanted)
    assert e.value.param == "tools[2].custom.format.grammar.definition"


def test_a_tool_at_fault_is_named():
    short = {"type": "object", "properties": {"a": {"type": "string", "minLength": -1}}}
    tools = [tool(), tool("add", parameters=short)]
    reason = r'^tools\[1\]\.function\.parameters\.properties\.a\.minLength .*not -1 .*"add"'
    with pytest.raises(InvalidField, match=reason) as e:
        constraint_of({**REQUIRED, "tools": tools})
    assert e.value.param == "tools"
    for fields in (AUTO, {**AUTO, **FORMAT}):
        wanted = constraint_of({**fields, "tools": tools})
        assert wanted is not None
        assert ['parameters of "add" are not enforced' in one for one in wanted.warnings] == [True]
        assert vocabulary().accepts(wanted.grammar, CALL)
        assert not vocabulary().accepts(wanted.grammar, WRONG_CALL)


def one_parameter(schema: object, **more: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}


@pytest.fixture
def compiling(monkeypatch):
    """Returns a model whose backend compiles grammars, and the grammars that it was given."""
    model = served()
    given: list[Grammar] = []

    async def compile_grammar(grammar: Grammar, client: str) -> Grammar:
        given.append(grammar)
        vocabulary().matcher(grammar)
        return grammar

    monkeypatch.setattr(model.backend, "compile_grammar", compile_grammar)
    return preparation(model, ChatRequest()), given


REFUSED = {
    "type": ({"type": "any"}, '.properties.a.type must be one of .*, not "any"'),
    "reference": ({"$ref": "#/$defs/x"},
                  '.properties.a.$ref "#/$defs/x" is not defined in the schema'),
    "required": ({"type": "object", "required": None},
                 ".properties.a.required must be a list of strings, not null"),
    "bound": ({"type": "integer", "minimum": "1"},
              '.properties.a.minimum must be a number, not "1"'),
    "pattern": ({"type": "string", "pattern": "(x^a"},
                '.properties.a.pattern "(x^a" cannot be used: unclosed group'),
    "name": ({"type": "object", "patternProperties": {"*": {}}},
             '.properties.a.patternProperties "*" cannot be used'),
    "items": ({"type": "array", "items": [{"anyOf": 5}]},
              ".properties.a.items[0].anyOf must be a list of schemas, not 5"),
    "endless": ({"$ref": "#"}, ": nothing satisfies it: a $ref leads back to it"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "fault"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("more", [{}, FORMAT])
async def test_refused_schema_frees_its_tool_alone(compiling, more, schema, fault):
    request, given = compiling
    tools = [tool(f"f{index}") for index in range(30)]
    tools[20] = tool("f20", parameters=one_parameter(schema))
    wanted = constraint_of({**AUTO, **more, "tools": tools})
    grammar = await usable(request, wanted)
    [warning] = wanted.warnings
    begin = 'the parameters of "f20" are not enforced: tools[20].function.parameters'
    assert re.match(re.escape(begin + fault).replace(r"\.\*", ".*"), warning), warning
    accepts = vocabulary().accepts
    assert accepts(grammar, call_text("f19"))
    assert not accepts(grammar, call_text("f19", '{"town":"Paris"}'))
    assert accepts(grammar, call_text("f20", '{"town":"Paris"}'))
    assert len(given) < 16, "the tools are tried by halves"


@pytest.mark.parametrize(("schema", "fault"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("choice", [{"tool_choice": "required"}, {}])
async def test_refused_schema_that_must_be_enforced_is_named(compiling, choice, schema, fault):
    request, _ = compiling
    given = one_parameter(schema, additionalProperties=False)
    tools = [tool(), tool("add", parameters=given, strict=not choice)]
    with pytest.raises(InvalidField) as e:
        await usable(request, constraint_of({**AUTO, **choice, "tools": tools}))
    begin = "tools[1].function.parameters"
    assert re.match(re.escape(begin + fault).replace(r"\.\*", ".*"), e.value.message), e.value
    assert e.value.message.endswith('(the tool "add")')


async def test_schema_that_is_too_long_frees_its_tool_alone():
    long = tool("add", parameters={"type": "object", "description": "x" * 3000})
    config = ApiConfig(max_grammar_length=2000)
    wanted = constraint_of({**AUTO, "tools": [tool(), long]}, config=config)
    [warning] = wanted.warnings
    assert warning.startswith('the parameters of "add" are not enforced: tools must be at most')
    assert not vocabulary().accepts(wanted.grammar, WRONG_CALL)
    assert vocabulary().accepts(wanted.grammar, call_text("add", '{"a":1}'))


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {**AUTO, "tool_choice": "none"}, {"response_format": None}]
)
def test_request_without_usable_tools_or_format_has_no_constraint(fields):
    assert constraint_of(fields) is None


@pytest.mark.parametrize(
    "name", ["prüfen", "a b", 'a"b', "a\\b", "%json", "@answer", "<[5]>", "😀"]
)
def test_any_name_of_a_tool(name):
    wanted = constraint_of({"tools": [tool(name)], "tool_choice": "required"})
    assert wanted is not None
    written = json.dumps(name, ensure_ascii=False)
    text = f'<tool_call>\n{{"name": {written}, "arguments": {JSON}}}\n</tool_call>'
    assert vocabulary().accepts(wanted.grammar, text)
