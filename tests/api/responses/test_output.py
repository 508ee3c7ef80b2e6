"""Tests of `fastovms/parts/responses/output.py`."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.config import ApiConfig
from fastovms.parts.responses.output import EventEncoder, OutputBuilder, OutputForm
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece, Reasoning
from tests.api.chat_models import BROKEN, call_text
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask, stream_of
from tests.api.responses.events import _Output, check, kinds
from tests.fakes import EOS, ByteTokenizer, FakeStream

# The response object has every member.


REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "conversation",
}  # fmt: skip


@pytest.mark.parametrize("path", [V1, V3, "/v3/v1/responses"])
async def test_response_has_every_member(make, path):
    body = await make().answer(path, BODY)
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


# The events of streams.


CALL = call_text()
LONDON = call_text(arguments='{"city":"London"}')
WHOLE_ARGUMENTS = CALL.index("}") + 1

OPENING = ["created", "in_progress"]


def item_events(part: str, text: str) -> list[str]:
    """Returns the types of the events of an item with a text. The text is in a content part unless
    `part` is empty."""
    events = [f"{text}.delta", f"{text}.done"]
    if part:
        events = [f"{part}.added", *events, f"{part}.done"]
    return ["output_item.added", *events, "output_item.done"]


MESSAGE = item_events("content_part", "output_text")
REASONING = item_events("content_part", "reasoning_text")
SUMMARY = item_events("reasoning_summary_part", "reasoning_summary_text")
FUNCTION_CALL = item_events("", "function_call_arguments")


@pytest.mark.parametrize("text", BROKEN)
async def test_incomplete_markup_is_text(make, text):
    _, answer = await ask(make(text), "POST", V1, {**BODY, "tools": [TOOL]})
    [item] = answer["output"]
    assert [part["text"] for part in item["content"]] == [text]
    events = await stream_of(make(text), {"tools": [TOOL]})
    deltas = [event["delta"] for event in events[:-1] if event["type"].endswith("text.delta")]
    assert "".join(deltas) == text


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("script", "body", "expected"),
    [
        ("Hello!", {}, MESSAGE),
        ("<think>\nhm\n</think>\n\nHello!", {}, REASONING + MESSAGE),
        (CALL, {"tools": [TOOL]}, FUNCTION_CALL),
        (f"Well.\n{CALL}\n{CALL}", {"tools": [TOOL]}, MESSAGE + FUNCTION_CALL * 2),
        (f"<think>hm</think>{CALL}Done.", {"tools": [TOOL]}, REASONING + FUNCTION_CALL + MESSAGE),
        (CALL * 3, {"tools": [TOOL], "parallel_tool_calls": False}, FUNCTION_CALL),
        (CALL * 3, {"tools": [TOOL], "max_tool_calls": 2}, FUNCTION_CALL * 2),
        (CALL * 3, {"tools": [TOOL], "max_tool_calls": 1}, FUNCTION_CALL),
        (CALL, {}, MESSAGE),
    ],
)
async def test_stream_has_the_events_of_its_items_in_order(
    make, script, body, expected, tokens_per_step
):
    api = make(script, tokens_per_step=tokens_per_step)
    events = await stream_of(api, body)
    assert kinds(events) == [*OPENING, *expected, "completed"]
    response = check(events)
    assert response["status"] == "completed"
    assert response["completed_at"] == 1_750_000_000
    unary = await api.answer(V1, {**BODY, **body})
    assert without_ids(unary["output"]) == without_ids(response["output"])
    assert unary["usage"] == response["usage"]
    assert await ask(api, "GET", f"{V1}/{response['id']}") == (200, response)


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in items
    ]


async def test_empty_answer_is_an_empty_message(make):
    events = await stream_of(make(""), {})
    expected = [kind for kind in MESSAGE if kind != "output_text.delta"]
    assert kinds(events) == [*OPENING, *expected, "completed"]
    assert check(events)["output"][0]["content"][0]["text"] == ""


async def test_ovms_stream_has_hyphenated_ids_and_no_event_names(make):
    stream = FakeStream()
    await make("<think>hm</think>Hello!").call("POST", V3, {**BODY, "stream": True}, stream)
    assert b"event:" not in b"".join(stream.writes)
    assert kinds(stream.events) == [*OPENING, *SUMMARY, *MESSAGE, "completed"]
    response = check(stream.events)
    assert response["id"].startswith("resp-")
    reasoning, message = response["output"]
    assert reasoning["id"].startswith("rs-")
    assert reasoning["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert message["id"].startswith("msg-")


@pytest.mark.parametrize(
    ("path", "reason"), [(V1, "max_output_tokens"), (V3, "max_tokens")], ids=["v1", "v3"]
)
@pytest.mark.parametrize(
    ("script", "body", "num_tokens", "kinds_of_items"),
    [
        ("Hello!", {}, 10, ["message"]),
        ("<think>hmmmmmmmmm", {}, 10, ["reasoning"]),
        (CALL, {"tools": [TOOL]}, 62, ["function_call"]),
        (CALL, {"tools": [TOOL]}, WHOLE_ARGUMENTS, ["function_call"]),
        (CALL, {"tools": [TOOL]}, len(CALL), ["function_call"]),
        (f"{CALL}\n", {"tools": [TOOL]}, len(CALL) + 1, ["function_call"]),
        (CALL, {"tools": [TOOL]}, len(CALL) * 2, ["function_call"] * 2),
        (f"{CALL}Done.", {"tools": [TOOL]}, len(CALL) + 3, ["function_call", "message"]),
    ],
)
async def test_last_item_of_a_cut_answer_is_incomplete(
    make, script, body, num_tokens, kinds_of_items, path, reason
):
    body = {**body, "max_output_tokens": num_tokens}
    api = make(script * 4)
    events = await stream_of(api, body, path)
    assert kinds(events)[-1] == "incomplete"
    response = check(events)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert response["completed_at"] is None
    *others, last = response["output"]
    assert [item["type"] for item in response["output"]] == kinds_of_items
    assert {item["status"] for item in others} <= {"completed"}
    assert last["status"] == "incomplete"
    _, unary = await ask(api, "POST", path, {**BODY, **body})
    assert without_ids(unary["output"]) == without_ids(response["output"])
    assert unary["incomplete_details"] == {"reason": reason}


IN_CALLS = {"stop_in_reasoning": True}


@pytest.mark.parametrize(
    ("script", "fields", "statuses", "reason"),
    [
        (CALL, {"stop": "}"}, ["completed"], None),
        (CALL, {"stop": "}", **IN_CALLS}, ["incomplete"], "stop"),
        (CALL, {"stop": "}", "tool_choice": "required", **IN_CALLS}, ["incomplete"], "stop"),
        (f"{CALL}\n{CALL}", {"stop": "]"}, ["completed", "completed"], None),
        (f"{CALL}\n{LONDON}", {"stop": "London", **IN_CALLS},
         ["completed", "incomplete"], "stop"),
        (f"{LONDON}\n{CALL}", {"stop": "</", **IN_CALLS}, ["completed"], None),
        (f"{CALL}\n{LONDON}", {"stop": "London", "max_tool_calls": 1, **IN_CALLS},
         ["completed"], None),
        (f"{CALL}\n{LONDON}", {"stop": "Paris", "n": 2, **IN_CALLS}, ["incomplete"] * 2, "stop"),
    ],
)  # fmt: skip
async def test_call_cut_by_a_stop_string_is_incomplete(make, script, fields, statuses, reason):
    body = {"tools": [TOOL], **fields}
    api = make(script)
    _, unary = await ask(api, "POST", V1, {**BODY, **body})
    responses = [unary]
    if "n" not in fields:
        responses.append(check(await stream_of(api, body)))
        assert without_ids(unary["output"]) == without_ids(responses[1]["output"])
    for response in responses:
        assert [item["status"] for item in response["output"]] == statuses
        assert response["status"] == ("completed" if reason is None else "incomplete")
        assert response["incomplete_details"] == (reason and {"reason": reason})
        assert (response["completed_at"] is None) == (reason is not None)


async def test_malformed_call_makes_the_response_incomplete(make):
    """The text after the call does not matter."""
    broken = CALL.replace('"Paris"', '"Paris"]')
    response = check(await stream_of(make(f"{broken}Done."), {"tools": [TOOL]}))
    call, message = response["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert (message["type"], message["status"]) == ("message", "incomplete")
    assert response["incomplete_details"] == {"reason": "stop"}


@pytest.mark.parametrize("path", [V1, V3])
async def test_cut_required_call_has_an_empty_text(make, path):
    body = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 10}
    api = make(CALL)
    response = check(await stream_of(api, body, path))
    assert [item["content"][0]["text"] for item in response["output"]] == [""]
    assert response["status"] == "incomplete"
    _, unary = await ask(api, "POST", path, {**BODY, **body})
    assert without_ids(unary["output"]) == without_ids(response["output"])


@pytest.mark.parametrize(("path", "error_events"), [(V1, ["error"]), (V3, [])])
async def test_failure_ends_the_open_item_and_the_stream(make, path, error_events):
    api = make("Hello, world!")
    api.backend.fail_after = 4
    events = await stream_of(api, {}, path)
    assert kinds(events) == [*OPENING, *MESSAGE, *error_events, "failed"]
    for event in events[-3 : -2 if error_events else -3]:
        told = {"code": None, "message": "out of order", "param": None}
        assert event == {"type": "error", "sequence_number": event["sequence_number"], **told}
    response = check(events)
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "out of order"}
    assert response["usage"] is None
    [item] = response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "Hell"
    _, kept = await ask(api, "GET", f"{path}/{response['id']}")
    assert kept == response


# Log probabilities

LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize(
    "script",
    ["Hello, wörld!", "<think>\nHello\n</think>\n\nHello", f"He\n\n{CALL}\n\nParis"],
)
async def test_logprobs_cover_the_text_of_messages_alone(make, script, tokens_per_step):
    api = make(script, tokens_per_step=tokens_per_step)
    events = await stream_of(api, {**LOGPROBS, "tools": [TOOL]})
    response = check(events)
    assert response["top_logprobs"] == 2
    messages = [item for item in response["output"] if item["type"] == "message"]
    assert messages
    for message in messages:
        [part] = message["content"]
        data = bytes(byte for entry in part["logprobs"] for byte in entry["bytes"])
        assert data.decode() == part["text"]
        assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    _, unary = await ask(api, "POST", V1, {**BODY, **LOGPROBS, "tools": [TOOL]})
    assert without_ids(unary["output"]) == without_ids(response["output"])


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize("stop", [None, ["zz", "\ufffd\ufffd!"]])
@pytest.mark.parametrize(
    ("markup", "answer"),
    [
        (b"", b"\xffcapital \xc3\xc3\xa9\xf0\x9f"),
        (b"", [*b"19", EOS, *b".\n", EOS, EOS, *b"2\xc3", EOS, *b"2"]),
        ([EOS, *b"<think>\nHello\xff", EOS, *b"\n</think>\n\n"], [*b"Hel", EOS, *b"lo\xff"]),
    ],
)
async def test_tokens_without_a_character_have_logprobs(
    make, markup, answer, stop, tokens_per_step
):
    """So have special tokens that are not shown."""
    script = [*markup, *answer]
    api = make(lambda request, index: script, tokens_per_step=tokens_per_step)
    response = check(await stream_of(api, {**LOGPROBS, "stop": stop}))
    [part] = response["output"][-1]["content"]
    tokens = [entry["bytes"] for entry in part["logprobs"]]
    assert tokens == [list(ByteTokenizer().token_bytes(token)) for token in answer]
    _, unary = await ask(api, "POST", V1, {**BODY, **LOGPROBS, "stop": stop})
    assert without_ids(unary["output"]) == without_ids(response["output"])


@pytest.mark.slow
async def test_final_event_leaves_out_long_logprobs_of_the_stream(make):
    api = make("x" * 800, tokens_per_step=10)
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
    stream = FakeStream()
    await api.call("POST", V1, {**BODY, **body, "stream": True}, stream)
    events = stream.events
    told = [entry for event in events[:-1] for entry in event.get("logprobs", ())]
    assert len(told) == 800
    assert max(map(len, stream.writes)) < 1024 * 1024
    [item] = events[-2]["response"]["output"]
    assert item["content"][0]["logprobs"] == []


# Slow readers


async def test_events_are_merged_while_the_client_does_not_read(make):
    api = make("Hello, world! " * 20)
    stream = FakeStream()
    send = stream.send

    def pause(data: bytes) -> None:
        send(data)
        stream.writable = False

    stream.send = pause
    await api.call("POST", V1, {**BODY, "stream": True}, stream)
    deltas = [event for event in stream.events[:-1] if event["type"].endswith("text.delta")]
    assert len(deltas) == 1
    assert check(stream.events)["output"][0]["content"][0]["text"] == "Hello, world! " * 20


async def test_client_that_does_not_read_is_disconnected_and_nothing_is_stored(make):
    api = make("Hello, world! " * 20, config=ApiConfig(max_pending_chars=100))
    stream = FakeStream()
    stream.writable = False
    await api.call("POST", V1, {**BODY, "stream": True}, stream)
    assert stream.aborted
    assert api.backend.aborted


async def test_last_events_are_one_write(make):
    stream = FakeStream()
    await make().call("POST", V1, {**BODY, "stream": True}, stream)
    assert stream.writes[-1].count(b"event: ") == 4
    assert stream.writes[-1].endswith(b"data: [DONE]\n\n")
    for data in stream.writes:
        assert data.startswith(b"event: ")
        assert data.endswith(b"\n\n")


# The deltas of an answer form its items.


TEXT = st.text(alphabet="ab \n", min_size=1, max_size=5)


CALLS = st.lists(TEXT, max_size=3).flatmap(
    lambda texts: st.booleans().map(
        lambda complete: [
            CallBegin(0, "f"),
            *(CallArguments(0, text) for text in texts),
            CallEnd(0, complete),
        ]
    )
)


PIECES = st.lists(
    st.one_of(TEXT.map(lambda text: [Content(text)]), TEXT.map(lambda t: [Reasoning(t)]), CALLS),
    max_size=8,
).map(lambda groups: [piece for group in groups for piece in group])


@pytest.mark.slow
@given(PIECES, st.sampled_from(["completed", "incomplete"]), st.data())
def test_deltas_add_up_to_the_items(pieces: list[Piece], status, data):
    encoder = EventEncoder(named=True)
    ids = iter(range(1000))
    form = OutputForm(lambda prefix: f"{prefix}_{next(ids)}", lambda: f"call_{next(ids)}")
    builder = OutputBuilder(form, encoder.emit)
    while pieces:
        num_pieces = data.draw(st.integers(1, len(pieces)))
        builder.push(pieces[:num_pieces])
        del pieces[:num_pieces]
    builder.finish(status)
    events = [orjson.loads(frame.partition(b"data: ")[2]) for frame in encoder.take()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = _Output()
    for event in events:
        output.take(event)
    assert output.open is None
    assert output.items == builder.items
    assert builder.items
