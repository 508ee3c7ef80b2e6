"""Tests of the script that computes affinity keys, in the real Envoy."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.envoy.render import LISTENERS, render
from tests.deploy.envoy.process import DEADLINE, Envoy, needs_envoy, running_envoy
from tests.deploy.envoy.reference import affinity_key, crc

pytestmark = needs_envoy

CHATS = "/v1/chat/completions"
VIEW = 262144
ID = "resp_0a1b2c3d" + "e" * 24


class Script:
    """Sends requests to the script's listener, which has the clients' listener's filter."""

    def __init__(self, envoy: Envoy) -> None:
        self._envoy = envoy
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", envoy.port("affinity"), timeout=DEADLINE
        )

    def key(
        self, body: bytes | None, path: str = CHATS, method: str = "POST", **headers: str
    ) -> str | None:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, fields)
        answer = self._connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        return answer.getheader("x-fastovms-affinity")

    def close(self) -> None:
        self._connection.close()

    @property
    def num_errors(self) -> int:
        return self._envoy.stat("http.affinity.lua.errors")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """The script's listener on a port instead of within Envoy."""
    folder = tmp_path_factory.mktemp("affinity")
    bootstrap = render(folder, listen="127.0.0.1:0", admin="127.0.0.1:0", plain=True)
    listeners = yaml.safe_load((folder / LISTENERS).read_text())
    address = listeners["resources"][0]["address"]
    [listener] = [found for found in listeners["resources"] if found["name"] == "affinity"]
    del listener["internal_listener"]
    (folder / LISTENERS).write_text(
        yaml.safe_dump({"resources": [{**listener, "address": address}]})
    )
    with running_envoy(bootstrap) as envoy:
        script = Script(envoy)
        yield script
        assert script.num_errors == 0
        script.close()


# The first message, and what later turns have in common

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
]
CHAT = {"model": "m", "messages": MESSAGES, "user": "u", "prompt_cache_key": "k"}


@pytest.mark.parametrize(
    ("path", "body", "session_id", "expected"),
    [
        ("/v1/responses", {"conversation": "conv_" + "F" * 32, **CHAT}, "s", "f" * 8),
        ("/v1/responses", {"conversation": {"id": "conv_" + "f" * 32}}, "s", "f" * 8),
        ("/v1/responses", {"previous_response_id": ID, "input": "x"}, "s", "0a1b2c3d"),
        ("/v3/responses", {"previous_response_id": ID.replace("_", "-")}, "", "0a1b2c3d"),
        ("/v1/responses", {"previous_response_id": "resp_mine"}, "", crc("resp_mine")),
        ("/v1/responses", {"previous_response_id": None, "user": "u"}, "", crc("u")),
        (f"/v1/responses/{ID}/cancel", {}, "s", "0a1b2c3d"),
        (f"/v3/v1/responses/{ID}?stream=true", None, "s", "0a1b2c3d"),
        (f"/v1/conversations/conv_{'f' * 32}/items", None, "s", "f" * 8),
        ("/v1/responses/input_tokens", {"input": "x", "user": "u"}, "", crc("u")),
        (CHATS, CHAT, "s", crc("k")),
        (CHATS, {"user": "u"}, "s", crc("s")),
        (CHATS, {"user": "u"}, "", crc("u")),
        (CHATS, {"user": "", "model": "m"}, "", None),
        (CHATS, {"user": 5}, "", None),
        (CHATS, {"messages": []}, "", None),
        (CHATS, {"messages": None}, "", None),
        ("/v1/models", None, "", None),
    ],
)  # fmt: skip
def test_affinity_key_is_of_the_first_source_that_is_there(
    script, path, body, session_id, expected
):
    data = None if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    assert script.key(data, path, method, x_session_id=session_id) == expected


def key_of(script: Script, **members: object) -> str:
    key = script.key(json.dumps({"model": "m", **members}).encode())
    assert key is not None
    return key


def test_the_turns_of_a_chat_have_one_key(script):
    long = "You are an assistant. " * 5000
    system = {"role": "system", "content": long}
    turns = [system, {"role": "user", "content": "First"}]
    first = key_of(script, messages=turns)
    for number in range(3):
        turns += [{"role": "assistant", "content": "An answer"}]
        turns += [{"role": "user", "content": f"Question {number}"}]
        assert key_of(script, messages=turns) == first
    assert key_of(script, messages=[system, {"role": "user", "content": "Other"}]) != first
    assert key_of(script, messages=turns, model="other") != first


def test_the_turns_of_responses_that_are_not_stored_have_one_key(script):
    first = key_of(script, input="Hi", instructions="Be kind.")
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    assert key_of(script, instructions="Be kind.", input=items) == first
    assert key_of(script, instructions="Be rude.", input=items) != first


def test_affinity_key_depends_on_the_beginning_of_the_prompt(script):
    assert key_of(script, prompt="x" * 600) == key_of(script, prompt="x" * 700)
    assert key_of(script, prompt="y" + "x" * 600) != key_of(script, prompt="x" * 600)


def test_of_what_is_cut_the_beginning_counts(script):
    image = {"type": "image_url", "image_url": {"url": "data:," + "a" * VIEW}}
    body = json.dumps({"messages": [{"role": "user", "content": [image]}]}).encode()
    more = body[:-2] + b', {"role": "user", "content": "More"}]}'
    assert script.key(body[:VIEW]) == script.key(more[:VIEW]) is not None


# Random JSON, against a parser

texts = st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"', "user", "{", "]", "é", "\x00"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"content": values, "role": st.sampled_from(["system", "user", "assistant"])},
        optional={"name": texts, "tool_calls": values},
    ),
    max_size=4,
)
ids = st.from_regex(r"(resp|conv)[_-]([0-9a-f]{32}|[a-z0-9-]{1,9})", fullmatch=True)
members = st.fixed_dictionaries(
    {},
    optional={
        "model": texts,
        "messages": messages,
        "input": messages | texts,
        "prompt": values,
        "instructions": texts,
        "tools": values,
        "user": texts,
        "prompt_cache_key": texts | st.none(),
        "previous_response_id": ids | st.none(),
        "conversation": ids | st.fixed_dictionaries({"x": values, "id": ids}),
        "metadata": st.dictionaries(st.sampled_from(["user", "messages"]), values),
    },
).flatmap(lambda made: st.permutations(list(made.items())).map(dict))


@given(members, st.sampled_from([None, 2]), st.booleans())
def test_key_of_a_random_body_equals_that_of_the_server(script, document, indent, ascii):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii)
    try:
        body = text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return
    assert script.key(body) == affinity_key(CHATS, "", text)


# Hostile bodies

NESTED = b'{"messages": [{"content": "x", "role": "user", "user": "a"}], "n": {"user": "b"}}'
HOSTILE = {
    "an unclosed string": b'{"user": "abc',
    "an unclosed escape": b'{"user": "abc\\',
    "brackets": b"[" * 1_000_000,
    "a value of brackets": b'{"a":' + b"[" * 1_000_000,
    "closing brackets": b'{"a":[' + b"]" * 1_000_000,
    "quotes": b'{"a":' + b'"' * 1_000_000,
    "backslashes": b'{"a": "' + b"\\" * 1_000_000 + b'"}',
    "quoted quotes": b'{"a": "' + b'\\"' * 500_000 + b'"}',
    "commas": b"{" + b"," * 1_000_000,
    "members": b"{" + b'"a":1,' * 200_000 + b'"user":"u"}',
    "space": b" " * 1_000_000,
    "NUL": b'{"user"\x00: "a"}',
    "nothing but NUL": b"\x00" * 1000,
    "no JSON": b"model=m&user=u",
    "an array": b'[{"user": "u"}]',
    "no colon": b'{"user" "u"}',
    "no value": b'{"user": }',
    "no comma": b'{"user": "u" "model": "m"}',
    "two commas": b'{"user": "u",, "model": "m"}',
    "an empty body": b"",
    "an open brace": b"{",
    "UTF-8 that is cut": b'{"user": "\xc3',
}
"""Beginnings of bodies that have no key."""


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bodies_have_no_key(script, body):
    assert script.key(body[:VIEW]) is None
    assert script.num_errors == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"user": "a", "user": "b"}', crc("b")),
        (b'{"' + b"k" * 100_000 + b'": 1, "user": "u"}', crc("u")),
        ((b'{"user": "u", "file": "' + b"x" * VIEW)[:VIEW], crc("u")),
        ((b'{"user": "u", "file": "' + b"\xc3\xa9" * VIEW)[:VIEW], crc("u")),
        (b'{"user": "a\\"b", "x": "\\\\"}', crc('a\\"b')),
        (b'{"x": "\\\\\\"", "user": "u"}', crc("u")),
        (b'  {"user": "u"} behind it', crc("u")),
    ],
)
def test_odd_bodies_have_the_key_of_their_user(script, body, expected):
    assert script.key(body) == expected


def test_nested_user_members_do_not_change_the_key(script):
    other = NESTED.replace(b'"a"', b'"c"').replace(b'"b"', b'"d"')
    assert script.key(NESTED) == script.key(other) is not None


def test_a_compressed_body_is_not_looked_into(script):
    body = gzip.compress(json.dumps({"user": "u"}).encode())
    assert script.key(body, content_encoding="gzip") is None
    assert script.key(body, content_encoding="gzip", x_session_id="s") == crc("s")
