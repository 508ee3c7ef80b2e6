"""Mutates request bodies as values and as JSON text. The generator determines every choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

from bench.endurance.http_attack.mutations import mutate as mutate_bytes

_LITERAL: Final = "\ue000"
"""Surrounds text that is written into JSON without quotes."""

_SAME_KEY: Final = "\ue001"
"""Ends a key that is written without this suffix, so that the key appears twice."""

_MAX_REPEATED: Final = 4_000_000
"""The approximate maximum number of characters of one repetition."""

_NUMBERS: Final = (
    *(0, 1, -1, 2, 127, 255, 256, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, 0.1, -0.0, 0.5, 5e-324),
    *(1.7976931348623157e308, 1e-7, 1e16, -1e300, 1.0, 5.0),
)
_TEXTS: Final = (
    *(
        "",
        " ",
        "\x00",
        "\n\r\t",
        "\x1b[31m",
        "\ud800",
        "\udfff\ud800",
        "a\ud800",
        "\uffff",
        "\ufeff",
    ),
    *(
        "é",
        "e\u0301",
        "😀",
        "👩\u200d👩\u200d👧",
        "\u202eabc",
        "ﷺ",
        "null",
        "true",
        "1",
        "NaN",
        "[]",
        "{}",
    ),
    *("../../etc/passwd", "' OR 1=1 --", "{{ 7 * 7 }}", "<|im_start|>", "</s>", "%s%n", "a" * 300),
    *("<|endoftext|>", "<ov_genai_image_0>", "demo_model", "auto", "required", "x" * 5000),
)
_LITERALS: Final = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1e-999",
        "-0",
        "01",
        "+1",
        ".5",
        "5.",
        "0x10",
    ),
    *(
        "9" * 500,
        "1" + "0" * 400,
        "0." + "0" * 400 + "1",
        "1E400",
        "undefined",
        "'a'",
        "True",
        "None",
    ),
    *(
        "[" * 90 + "]" * 90,
        "[" * 200 + "]" * 200,
        '{"a":' * 95 + "1" + "}" * 95,
        "[" * 5000,
        "{" * 5000,
    ),
)


def any_json(rng: Random, depth: int = 0) -> Any:
    """Returns a JSON value of any kind, often an extreme one."""
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(_NUMBERS)
    if kind < 0.5:
        return rng.choice(_TEXTS)
    if kind < 0.6:
        return rng.choice((None, True, False))
    if kind < 0.7:
        return f"{_LITERAL}{rng.choice(_LITERALS)}{_LITERAL}"
    if depth > 3:
        return []
    if kind < 0.85:
        return [any_json(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 20)))]
    return {rng.choice(_TEXTS): any_json(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 9)))}


Place = tuple[Any, Any]
"""A container, and the key or index of one of its members."""


def _places(value: Any, found: list[Place]) -> list[Place]:
    if len(found) > 300:
        return found
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        found.append((value, key))
        if isinstance(member, (dict, list)):
            _places(member, found)
    return found


def _replace(container: Any, key: Any, rng: Random) -> None:
    container[key] = any_json(rng)


def _remove(container: Any, key: Any, rng: Random) -> None:
    del container[key]


def _wrap(container: Any, key: Any, rng: Random) -> None:
    value = container[key]
    container[key] = rng.choice(
        ([value], {"a": value}, {"type": value}, [[value]], json.dumps(value))
    )


def _repeat(container: Any, key: Any, rng: Random) -> None:
    value = container[key]
    times = rng.choice((2, 3, 17, 100, 1100))
    if isinstance(value, str):
        container[key] = (value or "a") * _bounded(times, len(value))
    elif isinstance(value, list) and len(value) < 50:
        # Copies, since a later repetition within one that stood here a thousand times would be one
        # of all of them: two such bodies in a million took gigabytes.
        times = _bounded(times, len(json.dumps(value)))
        container[key] = [deepcopy(item) for _ in range(times) for item in value]
    elif isinstance(value, int) and not isinstance(value, bool):
        container[key] = value * 10**times if times < 20 else -value


def _bounded(times: int, length: int) -> int:
    return max(1, min(times, _MAX_REPEATED // max(length, 1)))


def _rename(container: Any, key: Any, rng: Random) -> None:
    if isinstance(container, dict):
        container[rng.choice(_TEXTS)] = container.pop(key)


def _double(container: Any, key: Any, rng: Random) -> None:
    """Writes a key twice with two values."""
    if isinstance(container, dict):
        container[f"{key}{_SAME_KEY}"] = any_json(rng)


def _add(container: Any, key: Any, rng: Random) -> None:
    if isinstance(container, dict):
        container[rng.choice(_TEXTS)] = any_json(rng)
    else:
        container.append(any_json(rng))


_CHANGES: Final[Sequence[Callable[[Any, Any, Random], None]]] = (
    *(_replace, _replace, _replace, _replace, _remove, _wrap, _repeat, _rename, _double, _add),
)


def change(body: dict[str, Any], rng: Random) -> None:
    """Mutates a body in one to three places at any depth."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(body, [])
        if not places:
            return
        container, key = rng.choice(places)
        rng.choice(_CHANGES)(container, key, rng)


def encode(body: object) -> bytes:
    """Encodes a body as JSON, including values that JSON does not allow."""
    text = json.dumps(body).replace(json.dumps(_SAME_KEY)[1:-1], "")
    mark = json.dumps(_LITERAL)[1:-1]
    if mark in text:
        text = text.replace(f'"{mark}', "").replace(f'{mark}"', "").replace(mark, "")
    return text.encode()


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _nest(data: bytes, rng: Random) -> bytes:
    depth = rng.choice((50, 99, 100, 101, 500, 20_000))
    return b'{"a":' * depth + data + b"}" * depth


def _invalid_utf8(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data))
    return (
        data[:place]
        + rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5", b"\x80"))
        + data[place:]
    )


def _other_encoding(data: bytes, rng: Random) -> bytes:
    return data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-le")))


def _pad(data: bytes, rng: Random) -> bytes:
    return (
        rng.choice((b" ", b"\n", b"\x00", b"\x0b", b"{}", b"[", b"//\n")) * rng.choice((1, 100))
        + data
    )


def _trail(data: bytes, rng: Random) -> bytes:
    return data + rng.choice((b",", b"}", b"{}", b"\x00", b" " * 1000, b"null"))


def _inflate(data: bytes, rng: Random) -> bytes:
    """Adds values, usually few, at most some megabytes."""
    size = int(10 ** rng.uniform(3, 6.9 if rng.random() < 0.03 else 5))
    unit = rng.choice(
        (b"0,", b"[],", b'"a",', b"{},", b'{"a":1},', b"null,", b'"\\u0000",', b"1e5,")
    )
    name = rng.choice(
        (b"a", b"prompt", b"input", b"messages", b"stop", b"tools", b"metadata", b"tokens")
    )
    return b'{"%b":[%b0],%b' % (
        name,
        unit * (size // len(unit)),
        data[1:] if len(data) > 2 else b'"b":0}',
    )


_TEXT_CHANGES: Final[Sequence[Callable[[bytes, Random], bytes]]] = (
    *(_cut, _nest, _invalid_utf8, _other_encoding, _pad, _trail, mutate_bytes, mutate_bytes),
)
_INFLATED: Final = 0.004


def change_text(data: bytes, rng: Random) -> bytes:
    """Mutates the bytes of a body."""
    if rng.random() < _INFLATED:
        return _inflate(data, rng)
    return rng.choice(_TEXT_CHANGES)(data, rng)
