from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from fastovms.api.wire.bodies.body import decode
from fastovms.api.wire.bodies.long_strings import MAX_WIDE
from fastovms.errors import InvalidField, MalformedBody


class Inner(msgspec.Struct, frozen=True):
    text: str = ""


class Body(msgspec.Struct, frozen=True):
    prompt: str | list[str | int] | None = None
    items: list[dict[str, Any]] | None = None
    inner: Inner | None = None
    table: dict[str, Any] | None = None


PIECES = (
    "a",
    "é",
    "語",
    "😀",
    "\\n",
    "\\/",
    "\\\\",
    '\\"',
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\u2028",
    " ",
)


def random_literal(rng: random.Random) -> str:
    """The JSON text of a string, which may be megabytes long."""
    unit = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
    return '"' + "x" * rng.randint(0, 9) + unit * rng.choice((1, 1000, 60_000)) + '"'


@pytest.mark.parametrize("seed", range(40))
def test_large_bodies_say_what_small_ones_do(seed):
    rng = random.Random(seed)
    literals = [random_literal(rng) for _ in range(7)]
    prompt, other, unknown, item, element, inner, key = literals
    text = (
        f'{{"prompt":[{prompt},5,{other}],"unknown":{unknown},'
        f'"items":[{{"a":{item}}},{{"b":[{element},null,1.5]}}],"inner":{{"text":{inner}}},'
        f'"table":{{{key}:{{"deep":[[{{"er":"short"}}]]}}}},"pad":"{"p" * 1024 * 1024}"}}'
    )
    body = decode(text.encode(), Body)
    expected = msgspec.json.decode(text, type=Body)
    assert body == expected


@pytest.mark.parametrize(
    "tail", ["\\", "\\u", "\\ud8", "\\ud83d", "\\ud83dx", "\\x", "\n", "\\udc00"]
)
@pytest.mark.parametrize("filler", ["x", "\\n"])
def test_a_string_that_is_no_json(tail, filler):
    text = '{"prompt": "' + filler * 1_200_000 + tail + '", "items": []}'
    with pytest.raises((MalformedBody, InvalidField)):
        decode(text.encode(), Body)


def test_bytes_that_are_no_utf8():
    for wrong in (b"\xff", b"\x80" * 9, b"\xc3", b"\xed\xa0\x80"):
        with pytest.raises(MalformedBody, match="not valid UTF-8"):
            decode(b'{"prompt": "' + b"x" * 1_200_000 + wrong + b'"}', Body)


def test_a_wrong_value_is_told_as_it_is():
    with pytest.raises(InvalidField, match=r'^inner must be an object, not "xxx'):
        decode(b'{"inner": "' + b"x" * 2_000_000 + b'"}', Body)


def test_a_wide_string_has_a_limit():
    with pytest.raises(MalformedBody, match="not all of them ASCII"):
        decode('{{"prompt": "é{}"}}'.format("x" * MAX_WIDE).encode(), Body)
    assert len(decode(b'{"prompt": "%b"}' % (b"x" * (MAX_WIDE + 1)), Body).prompt) > MAX_WIDE


def test_the_rest_has_a_limit():
    with pytest.raises(MalformedBody, match="besides strings"):
        decode(b'{"prompt": ["' + b'","'.join([b"x" * 5000] * 2000) + b'"]}', Body)


def test_a_stand_in_cannot_be_guessed():
    text = json.dumps({"prompt": ["0", "x" * 2_000_000, "1", "{secret}0"]})
    assert decode(text.encode(), Body).prompt == json.loads(text)["prompt"]
