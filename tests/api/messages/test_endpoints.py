"""Tests of `fastovms/parts/messages/endpoints.py`."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest

from fastovms.api.answer import Envelope, ShownPieces
from fastovms.api.chat_messages import seal, unseal
from fastovms.api.dialect import ANTHROPIC
from fastovms.api.generate import SampleDelta, TextGeneration, Usage
from fastovms.config import ModelLimits
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.params import FinishReason, GrammarKind
from fastovms.parts.messages.endpoints import (
    AnswerForm,
    MessageEnding,
    MessageFrames,
    message_body,
)
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece, Reasoning
from tests.api.chat_models import BROKEN, call_text, chat_model, prompt_of
from tests.api.messages.asking import BODY, PATH, THINKS, THOUGHT, TOOL, USER, ask, make

# Why an answer has ended, and what it has cost.


@pytest.mark.parametrize(
    ("reason", "stop", "are_whole", "told"),
    [
        (FinishReason.STOP, None, [], ("end_turn", None)),
        (FinishReason.STOP, 7, [], ("end_turn", None)),
        (FinishReason.STOP, "\n", [], ("stop_sequence", "\n")),
        (FinishReason.STOP, "\n", [True], ("stop_sequence", "\n")),
        (FinishReason.STOP, None, [True, True], ("tool_use", None)),
        (FinishReason.STOP, None, [True, False], ("end_turn", None)),
        (FinishReason.LENGTH, None, [True], ("max_tokens", None)),
        (FinishReason.LENGTH, None, [], ("max_tokens", None)),
    ],
)
def test_stop_reason_follows_from_finish_stop_string_and_calls(
    reason: FinishReason, stop: str | int | None, are_whole: list[bool], told: tuple[str, str]
) -> None:
    form = AnswerForm(ShownPieces(), str, 9)
    assert form.ending(reason, stop, are_whole, 9) == MessageEnding(*told)


def test_context_end_before_max_tokens_has_its_own_stop_reason() -> None:
    ending = AnswerForm(ShownPieces(), str, 9).ending(FinishReason.LENGTH, None, [], 8)
    assert ending.stop_reason == "model_context_window_exceeded"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("text", BROKEN)
async def test_markup_that_is_no_call_is_text(make, text, streamed):
    answer = await ask(make(text), streamed, tools=[TOOL])
    assert [(block["type"], block["text"]) for block in answer["content"]] == [("text", text)]
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(("reasoning", "details"), [(None, None), (3, {"thinking_tokens": 3})])
def test_cached_tokens_are_counted_apart(
    reasoning: int | None, details: dict[str, int] | None
) -> None:
    form, sample = AnswerForm(ShownPieces(), str, 9), SampleDelta(0, "")
    message = message_body(ENVELOPE, sample, form, Usage(20, 5, 16, reasoning))
    assert msgspec.to_builtins(message.usage) == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": 5,
        "output_tokens_details": details,
        "server_tool_use": None,
        "cache_creation": None,
        "inference_geo": None,
        "service_tier": "standard",
    }


def test_thoughts_are_shown_or_sealed() -> None:
    form = AnswerForm(ShownPieces(), str, 9)
    assert form.thinking("hm") == "hm"
    assert form.signature("hm") not in ("", form.signature("ah"))
    form = AnswerForm(ShownPieces(), str, 9, omits_thinking=True)
    assert form.thinking("hm") == ""
    assert unseal(form.signature("hm")) == "hm"


# Pieces of an answer as the blocks of a message.


ENVELOPE = Envelope("msg_1", 0, "fake", "fp", ANTHROPIC)


def body(pieces: list[Piece], **shown: bool) -> dict[str, Any]:
    ids = count(1)
    form = AnswerForm(ShownPieces(**shown), lambda: f"toolu_{next(ids)}", 9)
    sample = SampleDelta(0, "", FinishReason.STOP, pieces=pieces)
    told: dict[str, Any] = orjson.loads(
        msgspec.json.encode(message_body(ENVELOPE, sample, form, Usage(5, 2, 0)))
    )
    return told


def use(number: int, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": arguments}
    return {**block, "caller": {"type": "direct"}}


@pytest.mark.parametrize(
    ("pieces", "shown", "content", "reason"),
    [
        ([], {}, [], "end_turn"),
        ([Content("a")], {}, [{"type": "text", "text": "a", "citations": None}], "end_turn"),
        ([Content("a")], {"hides_content": True}, [], "end_turn"),
        (
            [
                CallBegin(0, "f"),
                CallArguments(0, '{"a":'),
                CallArguments(0, "1}"),
                CallEnd(0, True),
            ],
            {},
            [use(1, a=1)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
            {},
            [use(1), use(2)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallEnd(0, True), CallBegin(1, "f"), CallEnd(1, True)],
            {"one_call": True},
            [use(1)],
            "tool_use",
        ),
        (
            [CallBegin(0, "f"), CallArguments(0, '{"a":'), CallEnd(0, False), Content("b")],
            {},
            [use(1), {"type": "text", "text": "b", "citations": None}],
            "end_turn",
        ),
    ],
)
def test_message_body_has_a_block_for_each_shown_piece(
    pieces: list[Piece], shown: dict[str, bool], content: list[Any], reason: str
) -> None:
    told = body(pieces, **shown)
    assert (told["content"], told["stop_reason"]) == (content, reason)


def test_reasoning_becomes_a_thinking_block_unless_hidden() -> None:
    [block] = body([Reasoning("hm")])["content"]
    assert (block["type"], block["thinking"]) == ("thinking", "hm")
    assert body([Reasoning("hm")], hides_reasoning=True)["content"] == []


# The events of a stream, one block after the other.


def frames(*, omits_thinking: bool = False, **shown: bool) -> MessageFrames:
    ids = count(1)
    form = AnswerForm(
        ShownPieces(**shown), lambda: f"toolu_{next(ids)}", 2, omits_thinking=omits_thinking
    )
    generation = cast(TextGeneration, SimpleNamespace(usage=Usage(5, 2, 4)))
    return MessageFrames(ENVELOPE, generation, form, "r-1")


def told(data: bytes) -> list[Any]:
    """Each event, in short."""
    events = []
    for frame in data.split(b"\n\n")[:-1]:
        name, _, text = frame.partition(b"\ndata: ")
        event = orjson.loads(text)
        assert name == b"event: " + event["type"].encode()
        match event.pop("type"):
            case "content_block_start":
                events.append((event["index"], event["content_block"]["type"]))
            case "content_block_delta":
                delta = event["delta"]
                kind = delta.pop("type")
                events.append((event["index"], kind, *delta.values()))
            case "content_block_stop":
                events.append((event["index"], None))
            case kind:
                events.append(kind)
    return events


def delta(*pieces: Piece, reason: FinishReason | None = None) -> SampleDelta:
    return SampleDelta(0, "", reason, pieces=pieces)


def test_blocks_follow_each_other() -> None:
    sent = frames()
    assert told(sent.delta(delta())) == ["message_start", "ping"]
    assert told(sent.delta(delta(Reasoning("a"), Reasoning("b")))) == [
        (0, "thinking"),
        (0, "thinking_delta", "a"),
        (0, "thinking_delta", "b"),
    ]
    first, signature, *rest = told(sent.delta(delta(Reasoning("c"), Content("d"))))
    assert first == (0, "thinking_delta", "c")
    assert signature[:2] == (0, "signature_delta")
    assert rest == [(0, None), (1, "text"), (1, "text_delta", "d")]
    calls = delta(
        *(CallBegin(0, "f"), CallArguments(0, "{}"), CallEnd(0, True)),
        *(CallBegin(1, "g"), CallEnd(1, True), Content("e")),
    )
    assert told(sent.delta(calls)) == [
        (1, None),
        (2, "tool_use"),
        (2, "input_json_delta", "{}"),
        (2, None),
        (3, "tool_use"),
        (3, None),
        (4, "text"),
        (4, "text_delta", "e"),
    ]
    assert told(sent.delta(delta(reason=FinishReason.STOP))) == [(4, None)]
    end = sent.end()
    assert told(end) == ["message_delta", "message_stop"]
    assert b'"stop_reason":"tool_use"' in end
    assert b'"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":4' in end


def test_hidden_pieces_have_no_block() -> None:
    sent = frames(hides_content=True, hides_reasoning=True, one_call=True)
    pieces = (Reasoning("a"), Content("b"), CallBegin(1, "g"), CallEnd(1, True))
    last = delta(*pieces, reason=FinishReason.STOP)
    assert told(sent.delta(last)) == ["message_start", "ping"]
    assert b'"stop_reason":"end_turn"' in sent.end()


def test_thoughts_that_are_not_shown_are_sealed() -> None:
    sent = frames(omits_thinking=True)
    sent.delta(delta())
    assert told(sent.delta(delta(Reasoning("a"), Reasoning("b"), Content("c")))) == [
        (0, "thinking"),
        (0, "signature_delta", seal("ab")),
        (0, None),
        (1, "text"),
        (1, "text_delta", "c"),
    ]


def test_failure_becomes_an_error_event_with_the_request_id() -> None:
    [name, data, *_] = frames().failure(BackendUnavailable("draining")).split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "draining"},
        "request_id": "r-1",
    }


# What a request for a message becomes: the prompt, and how it is continued.


__all__ = ["make"]

SAID = {"role": "assistant", "content": "Well, "}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "u:Hi;<thinking False>>"),
        ({"system": "S"}, "s:S;u:Hi;<thinking False>>"),
        (THINKS, "u:Hi;<thinking True>>"),
        ({"thinking": {"type": "disabled"}}, "u:Hi;<thinking False>>"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "u:Hi;<thinking True>>"),
        (
            {"output_config": {"effort": "high"}, "chat_template_kwargs": {"style": "s"}},
            "u:Hi;<effort high><thinking False><style s>>",
        ),
        ({"messages": [USER, SAID]}, "u:Hi;a:Well, "),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "u:Hi;<thinking False>>"),
        ({"tools": [TOOL]}, "<tool get_weather>u:Hi;<thinking False>>"),
    ],
)
async def test_request_fields_are_rendered_into_the_prompt(make, fields, prompt):
    api = make()
    await ask(api, False, **fields)
    assert prompt_of(api) == prompt


async def test_the_operator_may_have_the_model_think(make):
    api = make(chat=chat_model(default_chat_template_kwargs={"enable_thinking": True}))
    await ask(api, False)
    assert prompt_of(api) == "u:Hi;<thinking True>>"


async def test_uses_of_tools_need_their_results(make):
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    body = {**BODY, "messages": [USER, {"role": "assistant", "content": [use]}]}
    status, error = await make().post(PATH, body)
    assert status == 400
    assert "must follow the last message" in error["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 7}, (0.5, 0.9, 7)),
        ({"top_k": -1, "temperature": 1}, (1, 1, 0)),
    ],
)
async def test_sampling_fields_reach_the_backend(make, fields, expected):
    api = make()
    await ask(api, False, **fields)
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == expected


@pytest.mark.parametrize(("asked", "given"), [(7, 7), (32_000, 1978)])
async def test_max_tokens_is_cut_to_what_the_context_leaves(make, asked, given):
    api = make()
    await ask(api, False, max_tokens=asked)
    assert api.backend.submitted[0].params.max_tokens == given


@pytest.mark.parametrize("name", ["output_config", "output_format"])
async def test_json_schema_format_becomes_a_grammar(make, name):
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    api = make('{"a":1}')
    await ask(api, False, **{name: {"format": schema} if name == "output_config" else schema})
    grammar = api.backend.submitted[0].params.grammar
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert grammar.param.startswith(name)


# The endpoints of messages, over fakes: whole and streamed.


both = pytest.mark.parametrize("streamed", [False, True])


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None}


@both
async def test_text_answer_is_a_message_with_usage(make, streamed):
    message = await ask(make(), streamed)
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [text("Hello!")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 22,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": None,
            "cache_creation": None,
            "inference_geo": None,
            "service_tier": "standard",
        },
    }


@both
@pytest.mark.parametrize(
    ("fields", "content"),
    [
        (THINKS, ["hm, hm", "Hello!"]),
        ({"thinking": {"type": "adaptive"}}, ["hm, hm", "Hello!"]),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ["hm, hm", "Hello!"]),
        ({"thinking": {"type": "disabled"}}, ["Hello!"]),
        ({}, ["Hello!"]),
    ],
)
async def test_message_endpoints_thoughts(make, streamed, fields, content):
    message = await ask(make(THOUGHT), streamed, **fields)
    blocks = message["content"]
    assert [block.get("thinking") or block["text"].strip() for block in blocks] == content
    if len(blocks) == 2:
        assert blocks[0]["signature"]


@both
async def test_thoughts_that_are_not_shown(make, streamed):
    omitted = {"thinking": {**THINKS["thinking"], "display": "omitted"}}
    api = make(THOUGHT)
    first, _ = (await ask(api, streamed, **omitted))["content"]
    assert first["thinking"] == ""
    assert unseal(first["signature"]).strip() == "hm, hm"
    history = [USER, {"role": "assistant", "content": [first]}, USER]
    await ask(api, streamed, messages=history)
    assert "(hm, hm)" in prompt_of(api).replace("\n", "")


@both
async def test_tool_calls_follow_the_text_as_tool_use_blocks(make, streamed):
    script = f"Wait.{call_text()}{call_text(arguments='{}')}"
    message = await ask(make(script), streamed, tools=[TOOL])
    first, *calls = message["content"]
    assert first == text("Wait.")
    assert [call["input"] for call in calls] == [{"city": "Paris"}, {}]
    assert len({call.pop("id") for call in calls}) == 2
    assert {(call["type"], call["name"]) for call in calls} == {("tool_use", "get_weather")}
    assert message["stop_reason"] == "tool_use"


@both
async def test_one_call_at_a_time(make, streamed):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    script = f"Wait.{call_text()}{call_text()}"
    message = await ask(make(script), streamed, tools=[TOOL], tool_choice=choice)
    assert [block["type"] for block in message["content"]] == ["tool_use"]


@both
async def test_a_call_that_is_cut(make, streamed):
    message = await ask(make(call_text()), streamed, tools=[TOOL], max_tokens=55)
    assert message["stop_reason"] == "max_tokens"
    assert [block["input"] for block in message["content"]] == ['{"city' if streamed else {}]


@both
async def test_stop_sequence_ends_the_message_and_is_reported(make, streamed):
    message = await ask(make("one, two"), streamed, stop_sequences=["three", ", "])
    assert message["content"] == [text("one")]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", ", ")


@both
async def test_max_tokens_cuts_the_message(make, streamed):
    message = await ask(make("one, two"), streamed, max_tokens=3)
    assert (message["content"], message["stop_reason"]) == ([text("one")], "max_tokens")


@both
async def test_the_context_is_full(make, streamed):
    message = await ask(make("a" * 3000), streamed, max_tokens=32_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["output_tokens"] == 1978


@both
async def test_the_operators_limit_is_no_full_context(make, streamed):
    api = make("a" * 30, limits=ModelLimits(max_tokens_limit=10))
    message = await ask(api, streamed, max_tokens=32_000)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 10)


async def test_no_tokens_fill_the_cache(make):
    api = make("Hello!")
    message = await ask(api, False, max_tokens=0, tools=[TOOL])
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    [submitted] = api.backend.submitted
    assert submitted.params.max_tokens == 1
    prompt = prompt_of(api)
    await ask(api, False, tools=[TOOL])
    assert prompt_of(api) == prompt


@both
async def test_empty_answer_has_no_content_and_ends_the_turn(make, streamed):
    message = await ask(make(""), streamed)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


async def test_count_tokens_agrees_with_the_usage_of_a_message(make):
    api = make()
    status, counted = await api.post(f"{PATH}/count_tokens", {"messages": [USER], "tools": [TOOL]})
    assert (status, api.backend.submitted) == (200, [])
    message = await ask(api, False, tools=[TOOL])
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}


async def test_ignored_tools_and_edits_are_named_in_a_warning_header(make):
    api = make()
    fields = {
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    }
    response = await api.call("POST", PATH, {**BODY, **fields})
    [(name, warning)] = response.headers
    assert name == "Warning"
    assert "tools[0] of type web_search_20250305, context_management.edits[0]" in warning


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required"),
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0, "stream": True}, 400, "invalid_request_error", "stream cannot be used"),
        ({"messages": None}, 400, "invalid_request_error", "messages is required"),
        ({"messages": 5}, 400, "invalid_request_error", "messages must be an array"),
        ({"model": "other"}, 404, "not_found_error", "`other`"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences[0]"),
        ({"stop_sequences": "a"}, 400, "invalid_request_error", "stop_sequences"),
        ({"temperature": 3}, 400, "invalid_request_error", "temperature"),
        ({"top_k": 1.5}, 400, "invalid_request_error", "top_k"),
        ({"messages": [{"role": "user", "content": "a" * 3000}]}, 400, "invalid_request_error",
         "prompt is too long: This model's maximum context length is 2000 tokens, but the prompt "
         "has"),
    ],
)  # fmt: skip
async def test_invalid_request_is_refused_with_an_anthropic_error(
    make, fields, status, kind, words
):
    api = make()
    found, error = await api.post(PATH, {**BODY, **fields})
    assert (found, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert words in error["error"]["message"]
    assert set(error) == {"type", "error", "request_id"}
    assert api.backend.submitted == []


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Overloaded("too many"), 429, "rate_limit_error"),
        (BackendUnavailable("draining"), 503, "overloaded_error"),
        (RuntimeError("a secret"), 500, "api_error"),
    ],
)
async def test_message_endpoints_failures(make, failure, status, kind):
    api = make()

    def refuse(*_: object) -> None:
        raise failure

    api.backend.submit = refuse
    response = await api.call("POST", PATH, BODY)
    assert response.status == status
    error = orjson.loads(response.body)["error"]
    assert error["type"] == kind
    assert "secret" not in error["message"]
    if status in (429, 503):
        assert ("Retry-After", "1") in response.headers
