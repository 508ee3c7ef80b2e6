"""Conversations are summarized, and go on with the summary."""

from __future__ import annotations

import openai
import pytest

from fastovms.api.conversation.sealed_text import seal_summary, unseal_summary
from fastovms.api.responses.compaction import MAX_SUMMARY
from tests.api.chat_models import prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask
from tests.api.responses.test_client import connect

__all__ = ["connect"]

GIVEN = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]
ASKED = {**BODY, "input": GIVEN, "tools": [TOOL]}


@pytest.mark.parametrize("path", [V1, V3])
async def test_a_compaction(make, path):
    api = make("<think>hm</think>It is sunny in Paris.\n", context=4000)
    status, answer = await ask(api, "POST", f"{path}/compact", ASKED)
    assert status == 200, answer
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


async def test_a_chain_is_compacted(make):
    api = make("It is sunny.", context=4000)
    _, first = await ask(api, "POST", V1, {**BODY, "input": "What is the weather?"})
    given = {"model": "fake", "previous_response_id": first["id"], "instructions": "Rhyme."}
    status, answer = await ask(api, "POST", f"{V1}/compact", given)
    assert status == 200
    assert [item["type"] for item in answer["output"]] == ["message", "compaction"]
    assert prompt_of(api).startswith("s:Rhyme.;u:Below")
    assert "user: What is the weather?\n\nassistant: It is sunny." in prompt_of(api)
    missing, _ = await ask(api, "GET", f"{V1}/{answer['id']}")
    assert missing == 404, "a compaction is not kept"
    # What goes on with it is kept with it, and can be compacted again.
    _, second = await ask(api, "POST", V1, {**BODY, "input": [*answer["output"], *GIVEN[:1]]})
    _, items = await ask(api, "GET", f"{V1}/{second['id']}/input_items?order=asc")
    assert items["data"][1] == answer["output"][1]
    given = {"model": "fake", "previous_response_id": second["id"]}
    assert (await ask(api, "POST", f"{V1}/compact", given))[0] == 200
    assert "summary of what came before: It is sunny.\n" in prompt_of(api)


async def test_what_is_longer_than_the_context_is_compacted(make):
    api = make("Much was said.", context=2000)
    long = [{"role": "user", "content": f"message {number}"} for number in range(3000)]
    status, answer = await ask(api, "POST", f"{V1}/compact", {**BODY, "input": long})
    assert status == 200, answer
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
async def test_there_is_always_a_summary(make, script, summary):
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
async def test_thinking_about_a_summary(make, fields, enable_thinking):
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
async def test_faults(make, fields, status, param):
    api = make()
    found, answer = await ask(api, "POST", f"{V1}/compact", {**BODY, **fields})
    assert (found, answer["error"]["param"]) == (status, param), answer
    assert not api.backend.submitted


@pytest.mark.parametrize("content", [None, 5, "", "gAAAAAB_other", seal_summary("")])
async def test_a_compaction_of_another_server_is_refused(make, content):
    item = {"type": "compaction", "encrypted_content": content}
    status, answer = await ask(make(), "POST", V1, {**BODY, "input": [item]})
    assert (status, answer["error"]["param"]) == (400, "input[0].encrypted_content")


async def test_openais_client(connect):
    client = await connect("It is sunny.")
    compacted = await client.responses.compact(model="fake", input=GIVEN, instructions="Rhyme.")
    assert compacted.output[-1].type == "compaction"
    assert compacted.usage.total_tokens > 0
    given = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    response = await client.responses.create(model="fake", input=given)
    assert response.output_text == "It is sunny."
    with pytest.raises(openai.BadRequestError):
        await client.responses.compact(model="fake")
