"""Tests of malicious bodies: the answer is always JSON in the dialect's format, and never a server
error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.api.tokenize import DetokenizeRequest, OvmsTokenizeRequest, TokenizeRequest
from fastovms.parts.responses.request import ConversationRequest, ItemsRequest, ResponsesRequest
from tests.api.chat_models import chat_model
from tests.fakes import FakeStream

SCHEMAS = {
    "/completions": CompletionRequest,
    "/chat/completions": ChatRequest,
    "/responses": ResponsesRequest,
    "/responses/input_tokens": ResponsesRequest,
    "/responses/compact": ResponsesRequest,
    "/conversations": ConversationRequest,
    "/conversations/conv_1/items": ItemsRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
PATHS = sorted(f"{prefix}{path}" for path in SCHEMAS for prefix in ("/v1", "/v3"))

LITERALS = (
    "NaN", "-Infinity", "1e999", "-0", "1" * 5000, "-9223372036854775809", "18446744073709551616",
    "1e-400", "0.1e1", "5", "null", "true", "[]", "{}", '""', r'"\ud800"', r'"\udc00\ud800"',
    r'"\u0000"', '"\u2028\u2029\x85"', r'"\r\n\u001b[2J"', '"\u202e"', '"user"', '"text"', '"fake"',
    '"\\u00e9' + "x" * 100 + '"', "[" * 50 + "]" * 50, '{"a":' * 99 + "1" + "}" * 99, "'a'", "",
)  # fmt: skip
WEIRD_KEYS = (
    '""', r'"\ud800"', r'"\ud800\ud800"', r'"a.b[0]"', r'"[...]"', r'"\n"', '"\u2028"', '"$"',
    '"`"', '"role"', '"content"', '"type"', '"id"', '"arguments"', '"url"',
)  # fmt: skip

ALL_KEYS = [f'"{name}"' for schema in SCHEMAS.values() for name in schema.__struct_fields__]


def members(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Returns the text of objects whose keys may repeat."""
    member = st.tuples(keys, values).map(":".join)
    return st.lists(member, max_size=5).map(lambda parts: f"{{{','.join(parts)}}}")


VALUES = st.recursive(
    st.sampled_from(LITERALS),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
        | members(st.sampled_from(WEIRD_KEYS), inner)
    ),
    max_leaves=4,
)


def body_of(path: str) -> st.SearchStrategy[str]:
    schema = SCHEMAS[path[3:]] if path[3:] != "/tokenize" else OvmsTokenizeRequest
    keys = [f'"{name}"' for name in schema.__struct_fields__]
    any_key = st.sampled_from(keys) | st.sampled_from(ALL_KEYS) | st.sampled_from(WEIRD_KEYS)
    return members(any_key, VALUES) | members(st.sampled_from(keys), st.sampled_from(LITERALS))


@pytest.fixture
def answer(make_api, make_state) -> Callable[..., object]:
    """Runs all examples on one event loop."""
    api = make_api("hello", chat=chat_model(), state=make_state())

    async def ask(path: str, body: bytes) -> None:
        stream = FakeStream()
        response = await api.call("POST", path, body, stream)
        if response is None:
            assert stream.closed
            return
        assert response.status in (200, 400, 404, 412), response.body
        told = orjson.loads(response.body)
        if response.status != 200:
            error = told["error"]
            assert isinstance(error, str if path.startswith("/v3") else dict), told

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
async def test_no_json_is_the_servers_fault(answer, path):
    loop = asyncio.get_running_loop()

    @settings(database=None)
    @given(body_of(path))
    def ask(body: str) -> None:
        asyncio.run_coroutine_threadsafe(answer(path, body.encode()), loop).result(60)

    await asyncio.to_thread(ask)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        '{"input": [5], "input": {}}',
        '{"prompt": [[]], "prompt": "a"}',
        '{"messages": [5], "messages": {}}',
        r'{"prompt": "a", "\ud800": NaN}',
        r'{"input": {"\ud800": [Infinity]}}',
        r'{"messages": [{"\ud800": -Infinity}]}',
        *[
            f'{{"{member}": [{{"type": "{kind}", "call_id": "a", "{inner}": {{"a": {number}}}}}]}}'
            for number in ("1" * 30, "1" * 4000)
            for kind, inner in (("shell_call", "action"), ("shell_call_output", "output"))
            for member in ("input", "items")
        ],
    ],
)
async def test_bodies_that_once_were(answer, path, body):
    await answer(path, body.encode())
