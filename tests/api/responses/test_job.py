"""Tests of the job of a response: its prompt, its format, and what is stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fastovms.api.answer import Envelope
from fastovms.api.chat_messages import seal_summary
from fastovms.api.dialect import OPENAI
from fastovms.api.prompt import Prompt
from fastovms.config import ModelLimits
from fastovms.http.messages import Caller
from fastovms.params import SamplingDefaults
from fastovms.parts.responses.compaction import newest, transcript
from fastovms.parts.responses.forms import echoed_choice, echoed_tools
from fastovms.parts.responses.history import History
from fastovms.parts.responses.ids import numbered_ids
from fastovms.parts.responses.input import ItemRules, read_items
from fastovms.parts.responses.kept_request import (
    StoredJob,
    prompt_resumption,
    read_job,
    resumption_of,
    with_seed,
)
from fastovms.parts.responses.request import ResponsesRequest, read_fields
from fastovms.parts.responses.run import ResponsePlan
from tests.api.chat_models import prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask
from tests.fakes import model_info

# Conversations are truncated to the context.


PIXEL = "data:image/png;base64,AAAA"
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"a":1}'},
    {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    {"type": "custom_tool_call", "call_id": "2", "name": "write", "input": "sun"},
    {"type": "custom_tool_call_output", "call_id": "2", "output": "done"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": [{"type": "input_text", "text": "And here?"},
                                 {"type": "input_image", "image_url": PIXEL}]},
]  # fmt: skip
WHOLE = """developer: Be brief.

user: What is the weather?

assistant calls look: {"a":1}

result: sunny

assistant calls write: sun

result: done

assistant: Sunny.

user: And here?
[image]"""
SUMMARY = {"type": "compaction", "encrypted_content": seal_summary("It rained.")}
RULES = ItemRules(OPENAI, lambda prefix: f"{prefix}_new")


def read(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return read_items(items, "input", RULES)


def words(text: str) -> int:
    return len(text.split())


def test_transcript_has_messages_calls_and_results():
    assert transcript(read(ITEMS), 1000, words) == WHOLE


def test_transcript_begins_with_the_earlier_summary():
    told = transcript(read([SUMMARY, *ITEMS]), 1000, words)
    assert told == f"summary of what came before: It rained.\n\n{WHOLE}"
    told = transcript(read([SUMMARY, *ITEMS * 10]), 200, len)
    assert told.startswith("summary of what")
    assert told.endswith("[image]")


@pytest.mark.parametrize("room", [0, 8, 32, 64, 200])
def test_transcript_keeps_the_newest_items(room):
    items = read(ITEMS * 50)
    told = transcript(items, room, words)
    assert words(told) <= room
    assert bool(told) == (room > 8)
    assert told.endswith("image]" if told else "")
    assert room < 64 or "assistant: Sunny.\n\nuser: And here?" in told


@pytest.mark.parametrize("count", [len, words])
@pytest.mark.parametrize("room", [100, 1000])
def test_transcript_cuts_a_long_item(count, room):
    long = [{"type": "function_call_output", "call_id": "1", "output": "x " * 100_000}]
    counted: list[int] = []

    def count_tokens(text: str) -> int:
        counted.append(len(text))
        return count(text)

    told = transcript(read([*ITEMS[:2], *long]), room, count_tokens)
    assert told.startswith("developer: Be")
    assert "[...]" in told
    assert count(told) <= room
    assert max(counted) <= room * 3, "a long text is cut before it is counted"


@pytest.mark.parametrize(
    ("room", "places"),
    [(1000, [0, 1, 8]), (7, [0, 8]), (2, [0]), (0, [])],
)
def test_newest_messages_of_the_user_are_kept(room, places):
    items = read(ITEMS)
    assert newest(items, room, words) == [items[place] for place in places]


# Tools and choices are repeated as OpenAI has them.


FUNCTION = {"type": "function", "name": "f"}
TOLD = {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
CUSTOM = {"type": "custom", "name": "c", "format": {"type": "text"}}
NAMESPACE = {"type": "namespace", "name": "n", "description": "N", "tools": [FUNCTION, CUSTOM]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (FUNCTION, [TOLD]),
        ({"type": "function", "function": {"name": "f"}}, [TOLD]),
        (CUSTOM, [CUSTOM]),
        ({"type": "custom", "custom": {"name": "c"}}, [{"type": "custom", "name": "c"}]),
        (NAMESPACE, [{**NAMESPACE, "tools": [TOLD, CUSTOM]}]),
        ({**NAMESPACE, "tools": [NAMESPACE]}, [{**NAMESPACE, "tools": []}]),
        ({"type": "web_search"}, []),
    ],
)
def test_echoed_tools_are_flat_and_of_supported_types(given, told):
    assert echoed_tools([given]) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "auto"),
        ("required", "required"),
        (FUNCTION, FUNCTION),
        ({"type": "function", "function": {"name": "f"}}, FUNCTION),
        ({"type": "custom", "name": "c"}, {"type": "custom", "name": "c"}),
        (
            {"type": "allowed_tools", "tools": [FUNCTION, {"type": "web_search"}, CUSTOM]},
            {"type": "allowed_tools", "mode": "auto",
             "tools": [FUNCTION, {"type": "custom", "name": "c"}]},
        ),
    ],
)  # fmt: skip
def test_echoed_tool_choice_is_flat_and_defaults_to_auto(given, told):
    assert echoed_choice(given) == told


# The content of an answer, and the fields of the request that it repeats.


SCHEMA = {"type": "object", "properties": {}}
SCHEMA_FORMAT = {"type": "json_schema", "name": "x", "description": None, "schema": SCHEMA}
NO_FORMAT = {"type": "text"}


@pytest.mark.slow
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
        ({"text": {"verbosity": "low"}}, {"text": {"format": NO_FORMAT, "verbosity": "low"}}),
        ({"text": {"format": {"type": "json_object"}}}, {}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
            {"text": {"format": {**SCHEMA_FORMAT, "strict": False}}},
        ),
        ({"tools": [FUNCTION]}, {"tools": [TOLD], "tool_choice": "auto"}),
        ({"tools": [FUNCTION], "tool_choice": "none"}, {"tools": [TOLD]}),
        (
            {"tools": [{**TOLD, "strict": True}], "tool_choice": "required"},
            {"tools": [{**TOLD, "strict": True}]},
        ),
    ],
)
@pytest.mark.parametrize("path", [V1, V3])
async def test_response_has_the_fields_of_its_request(make, fields, expected, path):
    body = await make().answer(path, {**BODY, **fields})
    for name, value in {**fields, **expected}.items():
        assert body[name] == value, name


async def test_min_p_is_returned_by_ovms_alone(make):
    api = make()
    for path, told in ((V1, None), (V3, 0.25)):
        _, body = await ask(api, "POST", path, {**BODY, "min_p": 0.25})
        assert body.get("min_p") == told


async def test_defaults_in_use_are_reported_in_the_response(make):
    api = make(defaults=SamplingDefaults(temperature=0.25, top_p=0.5))
    _, body = await ask(api, "POST", V1, BODY)
    assert (body["temperature"], body["top_p"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("response_format", "told"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            {**SCHEMA_FORMAT, "strict": True},
        ),
        ({"type": "regex", "pattern": "a+"}, {"type": "regex", "pattern": "a+"}),
    ],
)
async def test_response_format_of_chats_is_returned_as_a_text_format(make, response_format, told):
    api = make()
    for path, format in ((V1, told), (V3, NO_FORMAT)):  # OVMS returns this value for every request.
        status, body = await ask(api, "POST", path, {**BODY, "response_format": response_format})
        assert (status, body["text"]["format"]) == (200, format)


# How much input fits into the context, and how its tokens are counted.


def turns(number: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role[0]}{turn:04}"}
        for turn in range(number)
        for role in ("user", "assistant")
    ]


LONG = [{"role": "system", "content": "rules"}, *turns(100), {"role": "user", "content": "last"}]


async def test_long_context_is_refused_or_loses_its_oldest_messages(make):
    api = make(context=200)
    status, body = await ask(api, "POST", V1, {**BODY, "input": LONG})
    error = body["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "200 tokens" in error["message"]
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": 20}
    body = await api.answer(V1, body)
    prompt = prompt_of(api)
    assert prompt.startswith("s:rules;u:u0")
    assert prompt.endswith("a:a0099;u:last;>")
    assert 180 - 16 < len(prompt) <= 180


@pytest.mark.parametrize(
    ("path", "max_output_tokens", "limit", "num_kept"),
    [
        (V1, 190, None, 100),  # an answer that may be cut leaves half of the context
        (V1, None, 80, 175),
        (V3, 80, None, 120),
        (V3, 150, None, 50),
        (V3, None, 80, 120),
    ],
)
async def test_truncation_leaves_room_for_the_answer(
    make, path, max_output_tokens, limit, num_kept
):
    api = make(context=200, limits=ModelLimits(max_tokens_limit=limit))
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": max_output_tokens}
    answer = await api.answer(path, body)
    assert num_kept - 16 < answer["usage"]["input_tokens"] <= num_kept


async def test_last_message_beyond_the_context_is_refused(make):
    body = {**BODY, "input": [*turns(3), {"role": "user", "content": "x" * 300}]}
    status, body = await ask(make(context=200), "POST", V1, {**body, "truncation": "auto"})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


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
async def test_input_tokens_agree_with_usage(make, fields):
    api = make(context=4000)
    _, body = await ask(api, "POST", V1, {**BODY, **fields})
    counted = await api.answer(f"{V1}/input_tokens", {**BODY, **fields})
    expected = body["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": expected}


# A job is stored without the data that the store already has, and restored from it.


CALLER = Caller(tenant="key", priority=3)


def kept_job(**fields) -> StoredJob:
    return StoredJob(
        model="f m",
        dialect="openai",
        body=msgspec.convert({"model": "m", "input": "Hi", **fields}, ResponsesRequest),
        created=7,
        id_key="k",
        prompt_token_ids=[1, 2],
        prompt_text=None,
        priority=3,
    )


def asked(*, client: str = "key", **fields) -> ResponsePlan:
    body = kept_job(**fields).body
    return ResponsePlan(
        body=body,
        fields=read_fields(body, OPENAI, keeps=True),
        history=History((), (), 0),
        envelope=Envelope("resp_1", 7, "m", "", OPENAI),
        caller=CALLER,
        client=client,
        id_key="k",
    )


def written(*, client: str = "key", **fields) -> bytes | None:
    resumption = resumption_of(asked(client=client, **fields), "f m", prompt=Prompt([1, 2]))
    return None if resumption is None else resumption.job


def test_stored_job_is_read_without_its_input():
    fields = {"temperature": 0.5, "metadata": {"a": "\u20ac"}, "stop": ["x"], "tools": []}
    read = read_job(written(**fields))
    body = msgspec.structs.replace(kept_job(**fields).body, input=None)
    assert read == msgspec.structs.replace(kept_job(), body=body)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "another version"),
        (lambda data: data[:-1], "another version"),
        (lambda data: data.replace(b'"id_key"', b'"other"'), "another version"),
        (
            lambda data: data.replace(b'"form":1', b'"form":2'),
            "stored request has the format 2, not 1",
        ),
    ],
)
def test_job_of_another_version_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        read_job(change(written()))


def test_stored_job_has_the_address_of_a_client_without_a_key():
    assert [read_job(written(client=client)).client for client in ("key", "::1")] == ["", "::1"]


def test_job_with_lone_surrogates_is_not_stored():
    assert written(metadata={"a": "\ud800"}) is None


def test_seed_is_kept_or_drawn():
    body = kept_job(seed=5).body
    assert with_seed(body) is body
    assert len({with_seed(kept_job().body).seed for _ in range(20)}) == 20


def test_numbered_ids_follow_from_their_key():
    first = list(islice(iter(numbered_ids("a"), None), 50))
    assert list(islice(iter(numbered_ids("a"), None), 50)) == first
    assert len({*first, *islice(iter(numbered_ids("b"), None), 50)}) == 100
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in first)


def job(*, num_samples: int = 1, images: Sequence[str] = ()) -> Any:
    """Returns the members of the job that determine its result."""
    return SimpleNamespace(
        candidates=SimpleNamespace(num_samples=num_samples),
        chat=SimpleNamespace(images=images),
        prompts=[SimpleNamespace(token_ids=(1, 2), text="Hi")],
        asked=SimpleNamespace(model=SimpleNamespace(info=replace(model_info(), fingerprint="f"))),
    )


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, True), ({"images": ("i",)}, False), ({"num_samples": 2}, False)],
)
def test_resumption_is_stored_for_text_jobs_of_one_sample(fields, is_kept):
    resumption = prompt_resumption(asked(), job(**fields))
    assert (resumption is not None) == is_kept
    if resumption is not None:
        assert resumption.model == "f fake"
        read = read_job(resumption.job)
        assert (read.model, read.dialect, read.created) == ("f fake", OPENAI.name, 7)
        assert (read.prompt_token_ids, read.prompt_text) == ([1, 2], "Hi")


# The generation and the run of a request for a response.


@pytest.mark.parametrize("path", [V1, V3])
async def test_calls_have_ids_of_their_own(make, path):
    script = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    body = {"model": "fake", "input": "Hi", "tools": [TOOL]}
    answer = await make(script * 2).answer(path, body)
    ids = [item["call_id"] for item in answer["output"]]
    assert len(set(ids)) == 2
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)
