"""What a request may ask for, and what the model is given of it."""

from __future__ import annotations

import orjson
import pytest

from fastovms.params import GrammarKind
from tests.api.chat_models import PARAMETERS, call_text, prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask
from tests.fakes import FakeStream

NESTED_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


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


async def test_a_call_that_must_be_made_is_text_where_nothing_looks_for_calls(make):
    script = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
    body = {**BODY, "tools": [TOOL], "tool_choice": "required", "skip_special_tokens": False}
    _, body = await ask(make(script), "POST", V3, body)
    [message] = body["output"]
    assert message["content"][0]["text"] == script


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
    assert api.backend.submitted[-1].params.grammar.kind is GrammarKind.CALLS
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


HOSTED = [{"type": "web_search"}, {"type": "tool_search"}, TOOL]


async def test_unknown_tools_are_passed_over(make, caplog):
    api = make()
    response = await api.call("POST", V1, {**BODY, "tools": HOSTED}, FakeStream())
    assert response.status == 200
    assert prompt_of(api) == "<tool get_weather>u:Hi;>"
    warning = dict(response.headers)["Warning"]
    assert warning.startswith('299 - "')
    assert "tools[0] of type web_search, tools[1] of type tool_search" in warning
    assert "tools[0] of type web_search, tools[1] of type tool_search" in caplog.text
    assert len(orjson.loads(response.body)["tools"]) == 1


ADDED = {"type": "namespace", "name": "n", "description": "", "tools": [{**TOOL, "name": "f"}]}


async def test_items_add_tools_and_settings(make):
    api = make()
    given = [
        {"type": "additional_tools", "role": "developer", "tools": [ADDED]},
        {"role": "user", "content": "Hi"},
        {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "g"}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{**TOOL, "name": "g"}]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ]
    choice = {"type": "function", "name": "g"}
    for key in ("previous_response_id", "input"):
        _, answer = await ask(api, "POST", V1, {**BODY, "input": given, "tools": [TOOL]})
        assert "<tool get_weather><tool n__f><tool g>" in prompt_of(api)
        assert "u:Hi;a:{tool_search {'query': 'g'}};t:Tools found: g;<effort low>" in prompt_of(api)
        assert [tool["name"] for tool in answer["tools"]] == ["get_weather", "n", "g"]
        assert answer["reasoning"]["effort"] == "low"
        if key == "previous_response_id":
            _, answer = await ask(api, "POST", V1, {**BODY, key: answer["id"], "input": "And?"})
            assert prompt_of(api).startswith("<tool n__f><tool g>")
    _, answer = await ask(api, "POST", V1, {**BODY, "input": given, "tool_choice": choice})
    assert answer["tool_choice"] == choice


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


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_what_is_continued_is_deleted_meanwhile(make, make_state, monkeypatch, fields):
    """With ids of clients' own, responses could continue each other in a circle."""
    state = make_state()
    api = make(state=state)
    await ask(api, "POST", V1, {**BODY, "request_id": "a"})
    await ask(api, "POST", V1, {**BODY, "request_id": "b", "previous_response_id": "resp_a"})
    add = state.store.add_response

    async def add_late(tenant, response, **options):
        await state.store.delete_response(tenant, "resp_b")
        return await add(tenant, response, **options)

    monkeypatch.setattr(state.store, "add_response", add_late)
    body = {**BODY, "request_id": "c", "previous_response_id": "resp_b", **fields}
    stream = FakeStream()
    response = await api.call("POST", V1, body, stream)
    if fields.get("background"):
        error = orjson.loads(response.body)["error"]
        assert (response.status, error["code"]) == (404, "previous_response_not_found")
        assert "'resp_b' not found" in error["message"]
    else:
        answer = stream.events[-2]["response"] if fields else orjson.loads(response.body)
        assert (answer["status"], answer["store"]) == ("completed", False)
    assert (await ask(api, "GET", f"{V1}/resp_c"))[0] == 404
