"""Tests of streamed chats with fakes: events, equality with the whole answer, failures, slow
clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.config import ApiConfig
from tests.api.chat_models import BROKEN, call_text, chat_model, tool
from tests.api.chats import BODY, THOUGHT, V1, content_logprobs, join, make
from tests.fakes import FakeStream, model_info

__all__ = ["make"]


async def test_the_first_chunk_of_a_stream_with_calls_has_no_empty_text(make):
    call = call_text()
    for text, tools, expected in (
        (call, [tool()], [None]),
        ("Hi", [tool()], [None, "H", "i"]),
        ("Hi", None, ["", "H", "i"]),
    ):
        events = await make(text).stream(V1, {**BODY, "tools": tools})
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        assert [delta["content"] for delta in deltas if "content" in delta] == expected


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Hello!", "Hello!"),
        (THOUGHT, "Hello!"),
        (f"x{call_text()}{call_text()}", "x"),
        (call_text(), ""),
        ("<tool_", "<tool_"),
        ("Let me see <tool_ca", "Let me see <tool_ca"),
        ("Let me see <tool_call>", "Let me see <tool_call>"),
        (call_text("get_weather", '"{a: 1"'), call_text("get_weather", '"{a: 1"')),
        ("4 <", "4 <"),
        (f"<think>Hello</think>Hello{call_text()}", "Hello"),
    ],
)
async def test_stream_has_the_tokens_of_the_whole_answer(make, tokens_per_step, text, content):
    api = make(text, tokens_per_step=tokens_per_step)
    body = {**BODY, "logprobs": True, "return_token_ids": True, "tools": [tool()]}
    _, answer = await api.post(V1, body)
    choice = answer["choices"][0]
    assert bytes(choice["token_ids"]).decode() == text
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == content
    assert bytes(answer["prompt_token_ids"]).decode() == "<tool get_weather>u:Hi;>"
    events = await api.stream(V1, body)
    assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in events[1:-1])
    choices = [event["choices"][0] for event in events[:-1]]
    assert content_logprobs(choices) == choice["logprobs"]["content"]
    assert [i for c in choices for i in c.get("token_ids", ())] == choice["token_ids"]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("end", [{}, {"stop": ["STOP"]}, {"stop": ["<never>"]}])
async def test_markup_that_is_no_call_is_content(make, text, end):
    # A stop string within reasoning does not end the text.
    has_stop = end.get("stop") == ["STOP"] and text != "<think>"
    script = text + ("STOP" if has_stop else "")
    body = {**BODY, **end, "tools": [tool()]}
    _, answer = await make(script).post(V1, body)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["message"].get("tool_calls")) == (text, None)
    assert choice["finish_reason"] == "stop"
    assert join(await make(script).stream(V1, body))[0]["content"] == text


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
async def test_streamed_samples_agree_with_the_whole_answer(make, tokens_per_step):
    texts = ["first", call_text(), THOUGHT]
    api = make(lambda request, index: texts[index].encode(), tokens_per_step=tokens_per_step)
    body = {**BODY, "n": 3, "tools": [tool()], "stream_options": {"include_usage": True}}
    events = await api.stream(V1, body)
    assert [event["choices"][0]["delta"].get("role") for event in events[:3]] == ["assistant"] * 3
    assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
    joined = join(events)
    assert [joined[index]["finish_reason"] for index in range(3)] == ["stop", "tool_calls", "stop"]
    assert joined[2]["reasoning"] == "hm, hm"
    _, answer = await api.post(V1, {**body, "stream_options": None})
    assert [choice["finish_reason"] for choice in answer["choices"]] == [
        "stop", "tool_calls", "stop",
    ]  # fmt: skip
    assert events[-2]["usage"] == answer["usage"]


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "text", " ", "\n", "é", '"', "}",
    '{"name": "get_weather", "arguments": {"city":"Paris"}}', '{"name": "add", "arguments": {"a":',
]  # fmt: skip


@pytest.mark.slow
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 100),
            "stop": st.sampled_from(["text", "}"]),
            "include_reasoning": st.just(False),
            "parallel_tool_calls": st.just(False),
            "chat_template_kwargs": st.just({"opened": True}),
        },
    ),
    tokens_per_step=st.sampled_from([1, 2, 5, 1000]),
    reads=st.booleans(),
)
async def test_a_stream_is_the_whole_answer(make_api, text, fields, tokens_per_step, reads):
    """For any text of the model, in steps of any size, and for slow and fast clients."""
    api = make_api(
        text or "x",
        model=model_info(max_model_len=2000),
        chat=chat_model(),
        tokens_per_step=tokens_per_step,
    )
    body = {**BODY, **fields, "tools": [tool(), tool("add")]}
    _, answer = await api.post(V1, body)
    message = answer["choices"][0]["message"]
    stream = FakeStream()
    stream.writable = reads
    options = {"stream": True, "stream_options": {"include_usage": True}}
    await api.call("POST", V1, {**body, **options}, stream)
    joined = join(stream.events)[0]
    assert joined.get("content", "") == (message["content"] or "")
    assert joined.get("reasoning") == message.get("reasoning")
    assert joined["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert joined["calls"] == [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls", ())
    ]
    assert stream.events[-2]["usage"] == answer["usage"]


async def test_deltas_merge_while_the_client_does_not_read(make):
    text = THOUGHT + call_text() + call_text("add", '{"a":1}')
    api = make(text)
    stream = FakeStream()
    stream.writable = False
    body = {**BODY, "stream": True, "n": 2, "tools": [tool()]}
    assert await api.call("POST", V1, body, stream) is None
    assert len(stream.writes) == 1
    joined = join(stream.events)
    assert joined[0] == joined[1]
    assert joined[0]["calls"] == [["get_weather", '{"city":"Paris"}'], ["add", '{"a":1}']]
    deltas = [event["choices"][0]["delta"] for event in stream.events[:-1]]
    assert len(deltas) == 2 * (1 + 1 + 1 + 2 * 2 + 1), "each text is one delta"


async def test_a_client_that_never_reads_is_cut_off(make):
    config = ApiConfig(max_pending_chars=300)
    for text in ("x" * 500, THOUGHT * 50, call_text(arguments='{"a":"' + "x" * 500 + '"}')):
        api = make(text, config=config)
        stream = FakeStream()
        stream.writable = False
        body = {**BODY, "stream": True, "tools": [tool()]}
        assert await api.call("POST", V1, body, stream) is None
        assert stream.aborted
        assert api.backend.stats().num_running == 0
