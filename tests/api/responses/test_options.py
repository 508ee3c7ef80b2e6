"""Tests of the fields for phases, the prefix cache, the background and the context."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.chat_messages import kept_items, seal, seal_history, unseal_summary
from fastovms.params import LOWEST_PRIORITY
from tests.api.chat_models import call_text, prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask


def types(events: list[Any]) -> list[str]:
    return [event["type"] for event in events if event != "[DONE]"]


# Phases


@pytest.mark.parametrize("path", [V1, V3])
async def test_text_before_a_call_is_commentary(make, path):
    api = make("Let me see." + call_text())
    events = await api.stream(path, {**BODY, "tools": [TOOL]})
    items = [event["item"] for event in events[:-1] if event["type"].endswith("item.done")]
    assert [(item["type"], item.get("phase")) for item in items] == [
        ("message", "commentary"),
        ("function_call", None),
    ]
    _, answer = await ask(make("It is sunny."), "POST", path, BODY)
    assert [item["phase"] for item in answer["output"]] == ["final_answer"]
    _, answer = await ask(make("It is sunny."), "POST", path, {**BODY, "max_output_tokens": 3})
    assert "phase" not in answer["output"][0]


async def test_phases_are_kept(make):
    api = make()
    said = {"role": "assistant", "content": "I look."}
    given = [{**said, "phase": "commentary"}, said, {"role": "user", "content": "Go on"}]
    answer = await api.answer(V1, {**BODY, "input": given})
    _, listed = await ask(api, "GET", f"{V1}/{answer['id']}/input_items?order=asc")
    assert [item.get("phase") for item in listed["data"]] == ["commentary", None, None]
    assert await api.refused(V1, {**BODY, "input": [{**said, "phase": "x"}]}) == "input[0].phase"


# The prefix cache


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", [V1, V3])
async def test_a_prefix_is_only_computed(make, path, streamed):
    api = make("Hello!")
    body = {**BODY, "prompt_cache_options": {"prewarm": True, "ttl": "12h"}}
    if streamed:
        events = await api.stream(path, body)
        assert types(events) == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        answer = events[2]["response"]
    else:
        answer = await api.answer(path, body)
    assert (answer["status"], answer["output"]) == ("completed", [])
    assert answer["prompt_cache_options"] == {"mode": "implicit", "ttl": "12h"}
    usage = answer["usage"]
    assert usage["output_tokens"] == 0
    assert usage["total_tokens"] == usage["input_tokens"] > 0
    assert api.backend.submitted[-1].params.max_tokens == 1
    # The response can be continued.
    body = {**BODY, "previous_response_id": answer["id"], "input": "And?"}
    assert (await ask(api, "POST", path, body))[0] == 200
    assert prompt_of(api) == "u:Hi;u:And?;>"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt_cache_options": {"prewarm": 1}}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"prewarm": True}, "background": True},
         "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"mode": "x"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"background_options": {"completion_window": "4h"}},
         "background_options.completion_window"),
        ({"background_options": {"completion_window": "2h"}},
         "background_options.completion_window"),
        ({"background_options": {"completion_window": "2h"}, "background": True, "stream": True},
         "background_options.completion_window"),
        ({"background_options": {"continuation_id": 5}}, "background_options.continuation_id"),
        ({"context_management": [{"type": "x"}]}, "context_management[0].type"),
        ({"context_management": [{}]}, "context_management[0].type"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 0}]},
         "context_management[0].compact_threshold"),
    ],
)  # fmt: skip
async def test_invalid_response_option_is_refused_by_name(make, fields, name):
    assert await make().refused(V1, {**BODY, **fields}) == name


@pytest.mark.parametrize("window", ["soonest", "2h", "8h", None])
async def test_a_response_that_has_hours_comes_last(make, window):
    api = make()
    options = {"completion_window": window, "continuation_id": "a"}
    body = {**BODY, "background": True, "background_options": options}
    await api.answer(V1, body)
    expected = LOWEST_PRIORITY if window in ("2h", "8h") else 0
    assert api.backend.submitted[-1].priority == expected


# Compaction


LONG = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is the weather in Paris?"},
    {"role": "assistant", "content": "It is sunny. " * 20},
]
COMPACTING = {"context_management": [{"type": "compaction", "compact_threshold": 200}]}


def script(request: Any, index: int) -> list[int]:
    text = bytes(request.prompt_token_ids)
    return list(b"Sunny in Paris." if b"<conversation>" in text else b"Yes.")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", [V1, V3])
async def test_a_long_history_is_compacted(make, path, streamed):
    api = make(script, context=4000)
    body = {**BODY, **COMPACTING, "input": [*LONG, {"role": "user", "content": "Sure?"}]}
    if streamed:
        events = await api.stream(path, body)
        assert types(events)[:6] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert events[4]["output_index"] == 1
        answer = events[-2]["response"]
    else:
        answer = await api.answer(path, body)
    compaction, message = answer["output"]
    assert message["content"][0]["text"] == "Yes."
    assert unseal_summary(compaction["encrypted_content"]) == "Sunny in Paris."
    prompt = prompt_of(api)
    assert "It is sunny" not in prompt
    assert "Sunny in Paris." in prompt
    assert prompt.startswith("s:Be kind.;u:What is")
    assert "Sure?" in prompt
    # The summary replaces the earlier items in later prompts.
    for given in (
        {"previous_response_id": answer["id"], "input": "And?"},
        {"input": [*body["input"], *answer["output"], {"role": "user", "content": "And?"}]},
    ):
        await api.answer(path, {**BODY, **given})
        assert prompt_of(api).startswith(prompt.removesuffix(";>"))
        assert prompt_of(api).endswith("a:Yes.;u:And?;>")
        assert "It is sunny" not in prompt_of(api)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_prefix_of_a_compacted_history_has_its_compaction(make, streamed):
    api = make(script, context=4000)
    options = {**COMPACTING, "prompt_cache_options": {"prewarm": True}}
    body = {**BODY, **options, "input": [*LONG, {"role": "user", "content": "Sure?"}]}
    if streamed:
        answer = (await api.stream(V1, body))[-2]["response"]
    else:
        answer = await api.answer(V1, body)
    [compaction] = answer["output"]
    assert unseal_summary(compaction["encrypted_content"]) == "Sunny in Paris."
    assert answer["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("threshold", "given"),
    [
        (1000, LONG),
        (None, LONG),
        (100, [{"role": "user", "content": "x" * 500}]),  # there is nothing to summarize
    ],
)
async def test_input_below_the_threshold_is_not_compacted(make, threshold, given):
    api = make(script, context=4000)
    options = {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}
    question = {"role": "user", "content": "Sure?"}
    answer = await api.answer(V1, {**BODY, **options, "input": [*given, question]})
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert len(api.backend.submitted) == 1


async def test_input_beyond_the_context_is_compacted(make):
    api = make(script, context=1000)
    said = [{"role": "assistant", "content": "It is sunny. " * 200}, LONG[1]]
    options = {"context_management": [{"type": "compaction"}]}
    answer = await api.answer(V1, {**BODY, **options, "input": said})
    assert [item["type"] for item in answer["output"]] == ["compaction", "message"]


async def test_calls_and_outputs_are_compacted_together(make):
    api = make(script, context=4000)
    given = [
        LONG[1],
        {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny " * 100},
    ]
    body = {**BODY, **COMPACTING, "input": given, "tools": [TOOL]}
    answer = await api.answer(V1, body)
    assert "sunny sunny" not in prompt_of(api)
    kept = kept_items(answer["output"][0]["encrypted_content"])
    assert ([len(part) for part in kept]) == [1, 0]


async def test_items_that_configure_are_kept(make):
    api = make(script, context=4000)
    configuring = {"type": "additional_tools", "tools": [TOOL]}
    body = {**BODY, **COMPACTING, "input": [configuring, *LONG, LONG[1]]}
    answer = await api.answer(V1, body)
    compaction, message = answer["output"]
    kept = kept_items(compaction["encrypted_content"])
    assert kept.before[0]["type"] == "additional_tools"
    # A client may send the compaction item instead of the earlier items.
    given = [compaction, message, LONG[1]]
    answer = await api.answer(V1, {**BODY, "input": given})
    assert '"get_weather"' in prompt_of(api) or "get_weather" in str(answer["tools"])


async def test_items_that_configure_are_not_compacted_again(make):
    api = make(script, context=4000)
    configuring = {"type": "additional_tools", "tools": [TOOL]}
    question = {"role": "user", "content": "x" * 500}
    body = {**BODY, **COMPACTING, "input": [configuring, question]}
    answer = await api.answer(V1, body)
    assert [item["type"] for item in answer["output"]] == ["message"]


@pytest.mark.parametrize(
    "content",
    [
        "fastovms-history-1.",
        "fastovms-history-1." + seal("[1, 2]"),
        "fastovms-history-1." + seal("[1, [], []]"),
        "fastovms-history-1." + seal("[" * 10_000),
        seal_history("a", [{"role": "tool"}], []),
        seal_history("a", [], [5]),  # type: ignore[list-item]
        seal_history("a", [], [{"type": "function_call", "call_id": "1", "name": "f",
                                "arguments": "{}"}]),
        seal_history("", [], []),
        "fastovms-history-1." + seal('["\\ud800", [], []]'),
        "fastovms-history-1." + seal('["a", [{"role": "user", "content": "\\ud800"}], []]'),
        "fastovms-history-1." + seal('["a", [' + "[]," * 200_000 + "[]], []]"),
    ],
)  # fmt: skip
async def test_a_forged_compaction_is_refused(make, content):
    item = {"type": "compaction", "encrypted_content": content}
    status, answer = await ask(make(), "POST", V1, {**BODY, "input": [item]})
    assert status == 400, answer
    assert answer["error"]["param"].startswith("input[0]")
