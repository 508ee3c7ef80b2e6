"""Members of formats, and messages that name their places."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastovms.grammar.lark.structural_tag_fields import flag_of, list_of, member, text_of, texts_of

Read = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (lambda v: member(v, "f", "a", int), {"a": 1}, 1),
        (lambda v: member(v, "f", "a", (int, str)), {"a": "x"}, "x"),
        (lambda v: member(v, "f", "a", bool), {"a": True}, True),
        (lambda v: text_of(v, "f", "a"), {"a": "x"}, "x"),
        (lambda v: list_of(v, "f", "a"), {"a": [1]}, [1]),
        (lambda v: texts_of(v, "f", "a"), {"a": ["x", "y", "x"]}, ["x", "y"]),
        (lambda v: texts_of(v, "f", "a", ["d"]), {}, ["d"]),
        (lambda v: texts_of(v, "f", "a", ["d"]), {"a": []}, []),
        (lambda v: flag_of(v, "f", "a"), {}, False),
        (lambda v: flag_of(v, "f", "a"), {"a": True}, True),
    ],
)
def test_what_is_right(read: Read, value: dict[str, object], expected: object) -> None:
    assert read(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (lambda v: member(v, "f.g", "a", str), {}, "f.g.a must be a string"),
        (lambda v: member(v, "", "a", dict), {"a": 1}, "a must be an object"),
        (lambda v: member(v, "f", "a", int), {"a": True}, "f.a must be an integer"),
        (lambda v: member(v, "f", "a", (int, list)), {"a": ""}, "f.a must be an integer or a list"),
        (lambda v: member(5, "f", "a", int), {}, "f.a must be an integer"),  # type: ignore[arg-type]
        (lambda v: text_of(v, "f", "a"), {"a": ""}, "f.a must not be empty"),
        (lambda v: list_of(v, "f", "a"), {"a": []}, "f.a must not be empty"),
        (lambda v: texts_of(v, "f", "a"), {"a": []}, "f.a must be a list of strings that"),
        (lambda v: texts_of(v, "f", "a"), {"a": ["x", ""]}, "f.a must be a list of strings that"),
        (lambda v: texts_of(v, "f", "a", ["d"]), {"a": [1]}, "f.a must be a list of strings that"),
        (lambda v: flag_of(v, "f", "a"), {"a": 1}, "f.a must be true or false"),
    ],
)
def test_what_is_wrong(read: Read, value: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read(value)
