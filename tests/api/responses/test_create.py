"""Tests of `fastovms/parts/responses/create.py`."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.chat_messages import seal_summary, unseal_summary
from fastovms.http.messages import Headers
from fastovms.params import GrammarKind
from fastovms.parts.responses.compaction import MAX_SUMMARY
from fastovms.parts.responses.ids import AFFINITY_HEADER, with_affinity
from fastovms.state.operations import Operations
from tests.api.chat_models import PARAMETERS, call_text, prompt_of, tool
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask
from tests.fakes import FakeStream
from tests.replicas import replace_operation

# The affinity keys in ids.


NEW = "f" * 32
KEY, OTHER = "0a1b2c3d", "99999999"


@pytest.mark.parametrize(
    ("continued", "header", "expected"),
    [
        (None, None, NEW[:8]),
        (None, KEY, KEY),
        ("resp_" + KEY + "e" * 24, None, KEY),
        ("resp-" + KEY + "e" * 24, OTHER, KEY),
        ("conv_" + KEY + "e" * 24, OTHER, KEY),
        ("resp_mine", KEY, KEY),
        ("resp_mine", None, NEW[:8]),
        (None, "", NEW[:8]),
        (None, KEY.upper(), NEW[:8]),
        (None, KEY + "0", NEW[:8]),
        (None, f"{KEY}, {OTHER}", NEW[:8]),
        (None, "../../..", NEW[:8]),
    ],
)
def test_new_id_has_the_affinity_of_its_chain_or_header(continued, header, expected):
    headers = Headers([] if header is None else [(AFFINITY_HEADER.lower(), header)])
    assert with_affinity(NEW, headers, continued) == expected + NEW[8:]


def digits(id: str) -> tuple[str, str]:
    """Returns the affinity key of an id and the rest."""
    return id[5:13], id[13:]


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
async def test_responses_of_a_chain_have_one_affinity_key(make, prefix):
    api = make()
    body = {"model": "fake", "input": "Hi"}

    async def made(key: str, **fields: object) -> str:
        headers = {AFFINITY_HEADER: key}
        path = f"{prefix}/responses"
        status, response = await ask(api, "POST", path, {**body, **fields}, headers=headers)
        assert status == 200
        return response["id"]

    first = await made(KEY)
    second = await made(OTHER, previous_response_id=first)
    third = await made(OTHER, previous_response_id=second)
    assert {digits(id)[0] for id in (first, second, third)} == {KEY}
    assert len({digits(id)[1] for id in (first, second, third)}) == 3
    own = await made(KEY, request_id="resp_mine")
    assert own == "resp_mine"
    assert digits(await made(OTHER, previous_response_id=own))[0] == OTHER


# Compaction: conversations continue with a summary.


GIVEN = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]
ASKED = {**BODY, "input": GIVEN, "tools": [TOOL]}


@pytest.mark.parametrize("path", [V1, V3])
async def test_compaction_replaces_the_history_by_a_sealed_summary(make, path):
    api = make("<think>hm</think>It is sunny in Paris.\n", context=4000)
    answer = await api.answer(f"{path}/compact", ASKED)
    assert sorted(answer) == ["created_at", "id", "object", "output", "usage"]
    assert answer["object"] == "response.compaction"
    message, compaction = answer["output"]
    assert message["role"] == "user"
    assert message["content"] == [{"type": "input_text", "text": GIVEN[0]["content"]}]
    assert sorted(compaction) == ["encrypted_content", "id", "type"]
    assert unseal_summary(compaction["encrypted_content"]) == "It is sunny in Paris."
    assert answer["usage"]["output_tokens"] == len("<think>hm</think>It is sunny in Paris.\n") + 1
    prompt = prompt_of(api)
    assert "assistant calls get_weather: {}\n\nresult: sunny\n\nassistant: It is sunny." in prompt
    assert "<tool" not in prompt
    assert prompt.endswith("<thinking False>>")
    assert api.backend.submitted[0].params.max_tokens == min(1000, MAX_SUMMARY)

    more = [*answer["output"], {"role": "user", "content": "And tomorrow?"}]
    assert (await ask(api, "POST", path, {**BODY, "input": more}))[0] == 200
    prompt = prompt_of(api)
    assert prompt.startswith("u:What is the weather in Paris?\n\nSummary of")
    assert prompt.endswith(":\nIt is sunny in Paris.\n\nAnd tomorrow?;>")
    assert "get_weather" not in prompt


async def test_stored_chain_is_compacted(make):
    api = make("It is sunny.", context=4000)
    _, first = await ask(api, "POST", V1, {**BODY, "input": "What is the weather?"})
    given = {"model": "fake", "previous_response_id": first["id"], "instructions": "Rhyme."}
    answer = await api.answer(f"{V1}/compact", given)
    assert [item["type"] for item in answer["output"]] == ["message", "compaction"]
    assert prompt_of(api).startswith("s:Rhyme.;u:Below")
    assert "user: What is the weather?\n\nassistant: It is sunny." in prompt_of(api)
    missing, _ = await ask(api, "GET", f"{V1}/{answer['id']}")
    assert missing == 404, "a compaction is not kept"
    # A continuation is stored with the summary and can be compacted again.
    _, second = await ask(api, "POST", V1, {**BODY, "input": [*answer["output"], *GIVEN[:1]]})
    _, items = await ask(api, "GET", f"{V1}/{second['id']}/input_items?order=asc")
    assert items["data"][1] == answer["output"][1]
    given = {"model": "fake", "previous_response_id": second["id"]}
    assert (await ask(api, "POST", f"{V1}/compact", given))[0] == 200
    assert "summary of what came before: It is sunny.\n" in prompt_of(api)


async def test_input_longer_than_the_context_is_compacted(make):
    api = make("Much was said.", context=2000)
    long = [{"role": "user", "content": f"message {number}"} for number in range(3000)]
    answer = await api.answer(f"{V1}/compact", {**BODY, "input": long})
    assert len(api.backend.submitted[0].prompt_token_ids) <= 1500
    assert "user: message 2999" in prompt_of(api)
    kept = [item["content"][0]["text"] for item in answer["output"][:-1]]
    assert kept[-1] == "message 2999"
    assert sum(map(len, kept)) <= 500


@pytest.mark.parametrize(
    ("script", "summary"),
    [
        ("<think>It was sunny.", "It was sunny."),
        ("", "(The model has written none.)"),
    ],
)
async def test_summary_is_the_text_or_the_reasoning_or_a_note(make, script, summary):
    _, answer = await ask(make(script), "POST", f"{V1}/compact", ASKED)
    assert unseal_summary(answer["output"][-1]["encrypted_content"]) == summary


@pytest.mark.parametrize(
    ("fields", "enable_thinking"),
    [
        ({}, False),
        ({"enable_thinking": True}, True),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"effort": "none"}}, False),
    ],
)
async def test_summary_is_written_without_thinking_unless_asked(make, fields, enable_thinking):
    api = make()
    assert (await ask(api, "POST", f"{V1}/compact", {**ASKED, **fields}))[0] == 200
    assert f"<thinking {enable_thinking}>" in prompt_of(api)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": None}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"stream": True}, 400, "stream"),
        ({"instructions": "x" * 1900}, 400, "instructions"),
        ({"previous_response_id": "resp_other"}, 404, "previous_response_id"),
        ({"temperature": 3}, 400, "temperature"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_invalid_compaction_request_is_refused_by_field_name(make, fields, status, param):
    api = make()
    found, answer = await ask(api, "POST", f"{V1}/compact", {**BODY, **fields})
    assert (found, answer["error"]["param"]) == (status, param), answer
    assert not api.backend.submitted


@pytest.mark.parametrize("content", [None, 5, "", "gAAAAAB_other", seal_summary("")])
async def test_compaction_of_another_server_is_refused(make, content):
    item = {"type": "compaction", "encrypted_content": content}
    assert await make().refused(V1, {**BODY, "input": [item]}) == "input[0].encrypted_content"


# The fields of a request and the input of the model.


HI = [{"role": "user", "content": "Hi"}]
OTHER_TOOL = {"type": "function", "name": "other"}


# The input of the model


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input": "Hi"}, "u:Hi;>"),
        ({"instructions": "Be kind."}, "s:Be kind.;u:Hi;>"),
        ({"input": "Hello!", "truncate_prompt_tokens": 5}, "lo!;>"),
        ({"input": HI}, "u:Hi;>"),
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
        ({"tools": [tool()]}, "<tool get_weather>u:Hi;>"),
        ({"tools": [TOOL], "tool_choice": "none"}, "u:Hi;>"),
        (
            {
                "tools": [TOOL, OTHER_TOOL],
                "tool_choice": {"type": "allowed_tools", "tools": [OTHER_TOOL]},
            },
            "<tool other>u:Hi;>",
        ),
        (
            {"input": [*HI, {"role": "assistant", "content": "We", "status": "incomplete"}]},
            "u:Hi;a:We",
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_request_fields_are_rendered_into_the_prompt(make, fields, prompt, path):
    api = make()
    await api.answer(path, {**BODY, **fields})
    assert prompt_of(api) == prompt


@pytest.mark.parametrize(("path", "kinds"), [(V1, ["reasoning", "message"]), (V3, ["message"])])
async def test_special_tokens_are_kept_in_the_text_by_ovms_alone(make, path, kinds):
    api = make("<think>hm</think>Hello!")
    _, body = await ask(api, "POST", path, {**BODY, "skip_special_tokens": False})
    assert [item["type"] for item in body["output"]] == kinds


async def test_empty_input_is_an_empty_message(make):
    for given, before in (("", {}), ([], {}), (None, {"instructions": "Be kind."})):
        api = make()
        body = {**BODY, **before, "input": given, "max_output_tokens": 1}
        status, body = await ask(api, "POST", V1, body)
        assert (status, body["status"]) == (200, "incomplete")
        assert prompt_of(api) == ("s:Be kind.;u:;>" if before else "u:;>")


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
async def test_text_format_becomes_a_grammar(make, fields, kind, source):
    api = make()
    await api.answer(V1, {**BODY, **fields})
    grammar = api.backend.submitted[-1].params.grammar
    assert (grammar.kind, grammar.source) == (kind, source)


async def test_required_call_is_constrained(make):
    api = make(call_text())
    _, body = await ask(api, "POST", V1, {**BODY, "tools": [TOOL], "tool_choice": "required"})
    assert api.backend.submitted[-1].params.grammar.kind is GrammarKind.CALLS
    [call] = body["output"]
    assert call["id"].startswith("fc_")
    assert call["call_id"].startswith("call_")
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city":"Paris"}')


async def test_best_of_returns_the_likeliest_sample_and_n_all(make):
    api = make(lambda request, index: [3 - 2 * (index % 2)] * 3)
    _, body = await ask(api, "POST", V1, {**BODY, "best_of": 2})
    assert body["output"][0]["content"][0]["text"] == "\1\1\1"
    _, body = await ask(api, "POST", V3, {**BODY, "n": 2})
    assert [item["content"][0]["text"] for item in body["output"]] == ["\3\3\3", "\1\1\1"]
    assert len({item["id"] for item in body["output"]}) == 2


async def test_sealed_reasoning_is_read_again(make):
    api = make("<think>hm</think>Hello!")
    body = {**BODY, "store": False, "include": ["reasoning.encrypted_content"]}
    _, body = await ask(api, "POST", V1, body)
    reasoning, message = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    sent_back = {"type": "reasoning", "id": reasoning["id"], "summary": [], "content": None}
    sent_back["encrypted_content"] = reasoning["encrypted_content"]
    again = [*HI, sent_back, message, {"role": "user", "content": "?"}]
    body = await api.answer(V1, {**BODY, "input": again})
    assert prompt_of(api) == "u:Hi;a:Hello!(hm);u:?;>"


# Tools of other servers


ADDED = {"type": "namespace", "name": "n", "description": "", "tools": [{**TOOL, "name": "f"}]}


async def test_configuring_items_add_tools_and_effort(make):
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
async def test_id_of_a_stored_response_is_unique(make, path, request_id, id, background):
    api = make()
    body = {**BODY, "request_id": request_id}
    status, first = await ask(api, "POST", path, {**body, "background": background})
    assert (status, first["id"]) == (200, id)
    for again in (body, {**body, "background": True}, {**body, "stream": True}):
        assert await api.refused(V1, {**again, "request_id": id}) == "request_id"
    await api.answer(path, {**body, "store": False})
    assert (await ask(api, "GET", f"{V1}/{id}"))[1]["id"] == id
    response = await api.call("POST", path, body, FakeStream(), tenant="somebody else")
    assert response.status == 200


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_previous_response_deleted_meanwhile_is_refused(make, make_state, fields):
    """With ids that clients choose, responses could form a circle."""
    state = make_state()
    api = make(state=state)
    await ask(api, "POST", V1, {**BODY, "request_id": "a"})
    await ask(api, "POST", V1, {**BODY, "request_id": "b", "previous_response_id": "resp_a"})

    async def add_late(tenant, response, **options):
        await state.store.run(Operations.delete_response, tenant, "resp_b")
        return await add(tenant, response, **options)

    add = replace_operation(state.store, Operations.add_response, add_late)
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
