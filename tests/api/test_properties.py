"""Property-based tests of all requests: valid ones are answered, invalid ones get an error that
names the field, and none causes a server error."""

from __future__ import annotations

import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.dialect import OPENAI, OVMS, Dialect
from fastovms.api.request_schemas import CompletionRequest
from fastovms.request_fields import ranges_of
from tests.api.test_all_fields import VALID
from tests.api.wrong_values import JSON, WRONG
from tests.fakes import FakeStream

BODY = {"model": "fake", "prompt": "ab"}
PATHS = {"/v1/completions": OPENAI, "/v3/completions": OVMS}

INTEGERS = frozenset(
    ("top_k", "seed", "max_tokens", "n", "best_of", "min_tokens", "num_beam_groups", "priority",
     "num_assistant_tokens", "max_ngram_size", "truncate_prompt_tokens", "stream_interval")
)  # fmt: skip
BEYOND_RANGE = frozenset(
    ("n", "best_of", "min_tokens", "max_tokens", "truncate_prompt_tokens", "num_beam_groups",
     "diversity_penalty", "stream_interval")
)  # fmt: skip
"""Fields with limits besides their range: the context's, each other's, the server's."""

numbers = st.one_of(
    st.integers(-5, 130), st.integers(), st.floats(-3, 3), st.floats(allow_nan=False)
)
known_fields = st.sampled_from(CompletionRequest.__struct_fields__)


def message_of(data: bytes, dialect: Dialect) -> str:
    error = orjson.loads(data)["error"]
    return error["message"] if dialect is OPENAI else error


async def answer(api, path: str, body: dict) -> tuple[int, str]:
    """Returns the status and the error's message; the status of a stream is 200 if it ends
    correctly."""
    stream = FakeStream()
    data = json.dumps(body).encode()
    response = await api.call("POST", path, data, stream)
    assert api.backend.stats().num_running == 0
    if response is None:
        assert stream.events[-1] == "[DONE]"
        assert not any("error" in event for event in stream.events[:-1])
        return 200, ""
    if response.status == 200:
        return 200, ""
    return response.status, message_of(response.body, PATHS.get(path, OPENAI))


@pytest.mark.slow
@given(path=st.sampled_from(sorted(PATHS)), data=st.data(), value=numbers)
async def test_a_number_is_taken_if_and_only_if_it_is_in_its_range(make_api, path, data, value):
    ranges = ranges_of(CompletionRequest, PATHS[path].name)
    name = data.draw(st.sampled_from(sorted(ranges)))
    status, message = await answer(make_api("xyz"), path, {**BODY, name: value})
    is_whole = isinstance(value, int)
    allowed = (is_whole or name not in INTEGERS) and math.isfinite(value) and value in ranges[name]
    if not allowed:
        is_json = math.isfinite(value)
        assert status == (400 if is_json else PATHS[path].malformed_body_status)
        assert name in message
    elif name not in BEYOND_RANGE:
        assert status == 200, message
    elif status != 200:
        assert (status, name in message) == (400, True), message


@pytest.mark.slow
@given(
    path=st.sampled_from(sorted(PATHS)),
    wrong=st.sampled_from([(name, value) for name, values in WRONG.items() for value in values]),
    fields=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in VALID.items()}
    ),
    streamed=st.booleans(),
)
async def test_one_wrong_field_is_never_overlooked(make_api, path, wrong, fields, streamed):
    """With any other fields: the message names it, or another field that contradicts one."""
    name, value = wrong
    fields = {**fields, "stream": streamed, name: value}
    if name == "stream_options" and streamed and value == {"include_usage": True}:
        return  # wrong without a stream only
    if name in ("min_tokens", "n", "best_of") and value == 63:
        return  # wrong for the usual max_tokens only
    status, message = await answer(make_api("xyz"), path, {**BODY, **fields})
    assert status in (400, 412), (fields, message)
    assert any(field in message for field in (*fields, "prompt")), message


@pytest.mark.slow
@given(
    path=st.sampled_from(sorted(PATHS)),
    fields=st.dictionaries(known_fields | st.text(max_size=5), JSON, max_size=6),
)
async def test_any_fields_of_any_value(make_api, path, fields):
    status, message = await answer(make_api("xyz"), path, {**BODY, **fields})
    assert status in (200, 400, 404, 412), message
    if status in (400, 412):
        assert any(field in message for field in (*fields, "prompt", "body")), message
