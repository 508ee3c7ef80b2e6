"""What a request may ask for, what the answer repeats, and what is refused."""

from __future__ import annotations

import orjson
import pytest

from fastovms.config import ModelLimits
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.params import GrammarKind, SamplingDefaults
from fastovms.text.chat_template import ChatTemplate
from tests.api.chat_models import PARAMETERS, call_text
from tests.api.responses.conftest import ask, prompt_of
from tests.fakes import FakeStream

V1 = "/v1/responses"
V3 = "/v3/responses"
BODY = {"model": "fake", "input": "Hi"}
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
NESTED_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}

TOLD_TOOL = {**TOOL, "description": None, "strict": None}
FORMAT = {"format": {"type": "json_object"}}


def call(**members: object) -> dict[str, object]:
    return {"input": [{"type": "function_call", "arguments": "{}", **members}]}


def parts(*content: object) -> dict[str, object]:
    return {"input": [{"role": "user", "content": list(content)}]}


REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "conversation",
}  # fmt: skip


@pytest.mark.parametrize("path", [V1, V3, "/v3/v1/responses"])
async def test_every_member_is_there(make, path):
    status, body = await ask(make(), "POST", path, BODY)
    assert status == 200
    assert set(body) == REQUIRED
    assert body["object"] == "response"
    assert body["created_at"] == body["completed_at"] == 1_750_000_000
    assert body["usage"] == {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }
    [message] = body["output"]
    assert message["content"] == [
        {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    ]


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


# What the model is asked


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input": "Hi"}, "u:Hi;>"),
        ({"instructions": "Be kind."}, "s:Be kind.;u:Hi;>"),
        ({"input": [{"role": "user", "content": "Hi"}]}, "u:Hi;>"),
        (
            {
                "input": [
                    {"type": "message", "role": "developer", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
                    {"role": "user", "content": "Ah"},
                ]
            },
            "s:Be brief.;u:Hi;a:Yes?;u:Ah;>",
        ),
        ({"reasoning": {"effort": "high"}}, "u:Hi;<effort high><thinking True>>"),
        ({"chat_template_kwargs": {"style": "x"}}, "u:Hi;<style x>>"),
        ({"tools": [TOOL]}, "<tool get_weather>u:Hi;>"),
        ({"tools": [NESTED_TOOL]}, "<tool get_weather>u:Hi;>"),
        ({"tools": [TOOL], "tool_choice": "none"}, "u:Hi;>"),
        (
            {
                "tools": [TOOL, {**TOOL, "name": "other"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "tools": [{"type": "function", "name": "other"}],
                },
            },
            "<tool other>u:Hi;>",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "We", "status": "incomplete"},
                ]
            },
            "u:Hi;a:We",
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_prompts(make, fields, prompt, path):
    api = make()
    status, body = await ask(api, "POST", path, {**BODY, **fields})
    assert status == 200, body
    assert prompt_of(api) == prompt


async def test_a_prompt_may_be_cut(make):
    api = make()
    await ask(api, "POST", V1, {**BODY, "input": "Hello!", "truncate_prompt_tokens": 5})
    assert prompt_of(api) == "lo!;>"


@pytest.mark.parametrize(("path", "kinds"), [(V1, ["reasoning", "message"]), (V3, ["message"])])
async def test_a_text_with_its_special_tokens(make, path, kinds):
    api = make("<think>hm</think>Hello!")
    _, body = await ask(api, "POST", path, {**BODY, "skip_special_tokens": False})
    assert [item["type"] for item in body["output"]] == kinds


async def test_empty_input_is_a_probe(make):
    for given in ("", []):
        api = make()
        body = {**BODY, "input": given, "max_output_tokens": 1}
        status, body = await ask(api, "POST", V1, body)
        assert status == 200
        assert prompt_of(api) == "u:;>"
        assert body["status"] == "incomplete"


async def test_instructions_need_no_input(make):
    api = make()
    status, _ = await ask(api, "POST", V1, {"model": "fake", "instructions": "Be kind."})
    assert status == 200
    assert prompt_of(api) == "s:Be kind.;u:;>"


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"text": {"format": {"type": "json_object"}}}, GrammarKind.JSON_OBJECT, ""),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}}},
            GrammarKind.JSON_SCHEMA,
            orjson.dumps(PARAMETERS).decode(),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}},
            GrammarKind.JSON_SCHEMA,
            orjson.dumps(PARAMETERS).decode(),
        ),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "a+"),
    ],
)
async def test_formats_become_grammars(make, fields, kind, source):
    api = make()
    status, body = await ask(api, "POST", V1, {**BODY, **fields})
    assert status == 200, body
    grammar = api.backend.submitted[-1].params.grammar
    assert (grammar.kind, grammar.source) == (kind, source)


async def test_a_required_call_is_constrained(make):
    api = make(call_text())
    _, body = await ask(api, "POST", V1, {**BODY, "tools": [TOOL], "tool_choice": "required"})
    assert api.backend.submitted[-1].params.grammar.kind is GrammarKind.TAGGED_RULES
    [call] = body["output"]
    assert call["id"].startswith("fc_")
    assert call["call_id"].startswith("call_")
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city":"Paris"}')


async def test_sampling_extras_reach_the_model(make):
    fields = {"top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["lo"], "repetition_penalty": 1.2}
    api = make()
    _, body = await ask(api, "POST", V1, {**BODY, **fields, "max_output_tokens": 9})
    params = api.backend.submitted[-1].params
    assert (params.top_k, params.min_p, params.seed) == (3, 0.1, 7)
    assert (params.repetition_penalty, params.max_tokens) == (1.2, 9)
    assert body["output"][0]["content"][0]["text"] == "Hel"


async def test_several_samples_follow_each_other(make):
    api = make(lambda request, index: list(f"{index}".encode()))
    _, body = await ask(api, "POST", V3, {**BODY, "n": 3})
    assert [item["content"][0]["text"] for item in body["output"]] == ["0", "1", "2"]
    assert len({item["id"] for item in body["output"]}) == 3


async def test_the_best_of_several_samples(make):
    script = lambda request, index: [3, 3, 3] if index else [1, 1, 1]  # noqa: E731
    api = make(script)
    _, body = await ask(api, "POST", V1, {**BODY, "best_of": 2})
    assert body["output"][0]["content"][0]["text"] == "\1\1\1"


async def test_reasoning_can_be_sealed(make):
    api = make("<think>hm</think>Hello!")
    body = {**BODY, "store": False, "include": ["reasoning.encrypted_content"]}
    _, body = await ask(api, "POST", V1, body)
    reasoning, message = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    sent_back = {"type": "reasoning", "id": reasoning["id"], "summary": [], "content": None}
    sent_back["encrypted_content"] = reasoning["encrypted_content"]
    again = [
        {"role": "user", "content": "Hi"},
        sent_back,
        message,
        {"role": "user", "content": "?"},
    ]
    status, body = await ask(api, "POST", V1, {**BODY, "input": again})
    assert status == 200
    assert prompt_of(api) == "u:Hi;a:Hello!(hm);u:?;>"


# Tools of other servers


HOSTED = [{"type": "web_search"}, {"type": "custom", "name": "x"}, TOOL]


async def test_unknown_tools_are_passed_over(make):
    api = make()
    response = await api.call("POST", V1, {**BODY, "tools": HOSTED}, FakeStream())
    assert response.status == 200
    assert prompt_of(api) == "<tool get_weather>u:Hi;>"
    warning = dict(response.headers)["Warning"]
    assert warning.startswith('299 - "')
    assert "tools[0] of type web_search, tools[1] of type custom" in warning
    assert len(orjson.loads(response.body)["tools"]) == 1


async def test_unknown_items_are_passed_over(make):
    api = make()
    body = {
        **BODY,
        "input": [{"type": "web_search_call", "id": "x"}, {"role": "user", "content": "Hi"}],
    }
    response = await api.call("POST", V1, body, FakeStream())
    assert response.status == 200
    assert prompt_of(api) == "u:Hi;>"
    assert "input[0] of type web_search_call" in dict(response.headers)["Warning"]


# What is refused

MANY = {f"key{number}": "x" for number in range(17)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (parts({"type": "input_image", "image_url": "x"}), "input[0].content[0]"),
        (parts({"type": "input_file"}), "input[0].content[0]"),
        (parts({"type": "input_text"}), "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": "Hi", "status": "odd"}]}, "input[0].status"),
        (call(name="x"), "input[0].call_id"),
        (call(call_id="x"), "input[0].name"),
        (call(call_id="x", name="x", arguments={}), "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2001}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": 10**30}, "max_tool_calls"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 10**30}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "some"}, "truncation"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"metadata": MANY}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "some"}}, "reasoning.summary"),
        ({"text": {"format": 5}}, "text.format"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "bad"}}}},
            "text.format.schema",
        ),
        ({"text": {"verbosity": "some"}}, "text.verbosity"),
        ({"tools": [{**TOOL, "parameters": {"maximum": 10**30}}]}, "tools"),
        ({"response_format": {"type": "regex", "pattern": "a", "more": 10**30}}, "text"),
        ({"text": FORMAT, "response_format": {"type": "json_object"}}, "response_format"),
        ({"text": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x", "parameters": 5}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"conversation": "x", "previous_response_id": "y"}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "n": 2}, "n"),
        ({"stream": True, "n": 2}, "n"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"stop": [""]}, "stop[0]"),
    ],
)  # fmt: skip
async def test_faults_are_named(make, fields, param):
    api = make()
    status, body = await ask(api, "POST", V1, {**BODY, **fields})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == param
    assert not api.backend.submitted


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": ""}, 400),
        ({"input": []}, 400),
        ({"input": [{"role": "user", "content": []}]}, 400),
        ({"input": [{"type": "web_search_call"}]}, 400),
        ({"tools": [{"type": "web_search"}]}, 400),
        ({"stream_options": {"include_usage": True}, "stream": True}, 400),
        ({"logprobs": True, "stream": True}, 400),
        ({"reasoning": {"effort": "minimal"}}, 400),
        ({"max_output_tokens": 1996}, 400),
        ({"max_output_tokens": 101}, 400),
        ({"max_output_tokens": 100}, 200),
        ({"model": None}, 412),
        ({"stream": 1}, 412),
        ({"logprobs": True}, 200),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, 200),
    ],
)
async def test_what_ovms_refuses(make, fields, status):
    api = make(limits=ModelLimits(max_tokens_limit=100))
    found, body = await ask(api, "POST", V3, {**BODY, **fields})
    assert found == status, body
    if status != 200:
        assert isinstance(body["error"], str)


async def test_a_faulty_schema_is_named_as_the_request_has_it(make):
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "bad"}}
    _, body = await ask(make(), "POST", V1, {**BODY, "text": {"format": schema}})
    assert body["error"]["message"].startswith("text.format.schema: bad JSON schema")


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("busy"), 429), (BackendUnavailable("gone"), 503)]
)
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_a_backend_that_takes_nothing(make, error, status, fields):
    api = make()
    api.backend.submit_error = error
    found, _ = await ask(api, "POST", V1, {**BODY, **fields})
    assert found == status


# Contexts that are too long


def turns(number: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role[0]}{turn:04}"}
        for turn in range(number)
        for role in ("user", "assistant")
    ]


LONG = [{"role": "system", "content": "rules"}, *turns(100), {"role": "user", "content": "last"}]


async def test_a_context_that_is_too_long_is_refused(make):
    api = make(context=200)
    status, body = await ask(api, "POST", V1, {**BODY, "input": LONG})
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert body["error"]["param"] == "input"
    assert "200 tokens" in body["error"]["message"]


async def test_a_context_that_is_too_long_loses_its_oldest_messages(make):
    api = make(context=200)
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": 20}
    status, body = await ask(api, "POST", V1, body)
    assert status == 200
    prompt = prompt_of(api)
    assert prompt.startswith("s:rules;u:u0")
    assert prompt.endswith("a:a0099;u:last;>")
    assert 180 - 16 < len(prompt) <= 180


async def test_more_messages_than_the_context_has_tokens_are_not_rendered(make, monkeypatch):
    rendered = []
    render = ChatTemplate.render

    def note(self, messages, **options):
        rendered.append(len(messages))
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", note)
    api = make(context=200)
    body = {**BODY, "input": [{"role": "user", "content": "x"}] * 5000}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == "input"
    assert "5000 turns" in answer["error"]["message"]
    assert not rendered
    status, _ = await ask(api, "POST", V1, {**body, "truncation": "auto"})
    assert status == 200
    assert max(rendered) <= 200


@pytest.mark.parametrize(
    ("path", "max_output_tokens", "num_kept"),
    [
        (V1, 190, 100),  # an answer that may be cut leaves half of the context
        (V3, 80, 120),
        (V3, 150, 50),
    ],
)
async def test_messages_make_room_for_the_answer(make, path, max_output_tokens, num_kept):
    api = make(context=200)
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": max_output_tokens}
    status, answer = await ask(api, "POST", path, body)
    assert status == 200, answer
    assert num_kept - 16 < answer["usage"]["input_tokens"] <= num_kept


async def test_a_last_message_that_is_too_long_is_refused(make):
    body = {**BODY, "input": [*turns(3), {"role": "user", "content": "x" * 300}]}
    status, body = await ask(make(context=200), "POST", V1, {**body, "truncation": "auto"})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_large_max_output_tokens_is_cut_to_what_fits(make):
    api = make("x" * 300, context=200)
    _, body = await ask(api, "POST", V1, {**BODY, "max_output_tokens": 200})
    assert body["status"] == "incomplete"
    assert body["usage"]["total_tokens"] == 200


# Counting


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be kind."},
        {"tools": [TOOL]},
        {"input": LONG},
        {"reasoning": {"effort": "low"}},
    ],
)
async def test_tokens_are_counted_as_usage_does(make, fields):
    api = make(context=4000)
    _, body = await ask(api, "POST", V1, {**BODY, **fields})
    status, counted = await ask(api, "POST", f"{V1}/input_tokens", {**BODY, **fields})
    assert status == 200
    expected = body["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": expected}


async def test_a_body_that_is_no_object(make):
    for path, expected in ((V1, 400), (V3, 412)):
        status, _ = await ask(make(), "POST", path, b"[]")
        assert status == expected


async def test_a_conflict_names_the_field_that_was_sent(make):
    body = {**BODY, "text": FORMAT, "structured_outputs": {"regex": "a"}}
    _, answer = await ask(make(), "POST", V1, body)
    assert answer["error"]["message"].startswith("text.format and structured_outputs.regex")


# Ids that clients give


@pytest.mark.parametrize(
    ("path", "request_id", "id"),
    [
        (V1, "mine", "resp_mine"),
        (V1, "resp_mine", "resp_mine"),
        (V3, "mine", "resp-mine"),
        (V3, "resp-mine", "resp-mine"),
        (V3, "resp_mine", "resp_mine"),
    ],
)
@pytest.mark.parametrize("background", [True, False])
async def test_an_id_is_had_once(make, path, request_id, id, background):
    api = make()
    body = {**BODY, "request_id": request_id}
    status, first = await ask(api, "POST", path, {**body, "background": background})
    assert (status, first["id"]) == (200, id)
    for again in (body, {**body, "background": True}, {**body, "stream": True}):
        status, answer = await ask(api, "POST", V1, {**again, "request_id": id})
        assert (status, answer["error"]["param"]) == (400, "request_id")
    status, _ = await ask(api, "POST", path, {**body, "store": False})
    assert status == 200
    assert (await ask(api, "GET", f"{V1}/{id}"))[1]["id"] == id
    response = await api.call("POST", path, body, FakeStream(), tenant="somebody else")
    assert response.status == 200


async def test_what_came_before_is_not_compacted(make):
    status, body = await ask(make(), "POST", f"{V1}/compact", BODY)
    assert (status, body["error"]["type"]) == (404, "not_found_error")
    assert "truncation" in body["error"]["message"]
