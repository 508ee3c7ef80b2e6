"""Messages of blocks become those that a chat template gets."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.conversation.sealed_text import seal
from fastovms.api.messages.blocks_to_messages import to_messages
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages

HI = {"role": "user", "content": "Hi"}
PIXEL = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {"a": 1}}


def result(content: Any = "18", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **members}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


CALL = {"type": "function", "id": "toolu_1", "function": {"name": "f", "arguments": {"a": 1}}}
ANSWERED = {"role": "tool", "tool_call_id": "toolu_1", "content": "18"}


@pytest.mark.parametrize(
    ("system", "messages"),
    [
        (None, [HI]),
        ("", [HI]),
        ([], [HI]),
        ("Be brief.", [{"role": "system", "content": "Be brief."}, HI]),
        (
            [
                text("x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"),
                {**text("Be"), "cache_control": {"type": "ephemeral"}},
                text("brief."),
            ],
            [{"role": "system", "content": "Be\nbrief."}, HI],
        ),
    ],
)
def test_system(system: Any, messages: list[Any]) -> None:
    assert to_messages(system, [HI]).messages == messages


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([user(text("a"), text("b"))], [{"role": "user", "content": "a\nb"}]),
        ([user()], [{"role": "user", "content": ""}]),
        ([HI, user(text("b"))], [{"role": "user", "content": "Hi\nb"}]),
        ([HI, assistant(text("b"))], [HI, {"role": "assistant", "content": "b"}]),
        (
            [HI, assistant(text("a")), assistant(text("b"))],
            [HI, {"role": "assistant", "content": "a\nb"}],
        ),
        (
            [assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("b"))],
            [{"role": "assistant", "content": "b", "reasoning_content": "hm"}],
        ),
        (
            [assistant({"type": "thinking", "thinking": "", "signature": seal("hm")})],
            [{"role": "assistant", "content": "", "reasoning_content": "hm"}],
        ),
        (
            [assistant({"type": "redacted_thinking", "data": "xyz"}, text("b"))],
            [{"role": "assistant", "content": "b"}],
        ),
        (
            [assistant(use()), user(result())],
            [{"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWERED],
        ),
        (
            [assistant(text("a"), use()), user(text("b"), result(), text("c"))],
            [
                {"role": "assistant", "content": "a", "tool_calls": [CALL]},
                ANSWERED,
                {"role": "user", "content": "b\nc"},
            ],
        ),
        ([user(result([text("18")]))], [ANSWERED]),
        ([user(result(None))], [{**ANSWERED, "content": ""}]),
        ([user(result(is_error=True))], [{**ANSWERED, "content": "Error: 18"}]),
        ([user(result(is_error=False))], [ANSWERED]),
        (
            [user(PIXEL, result([PIXEL, text("b")]))],
            [
                {**ANSWERED, "content": f"{image_tag(0)}b"},
                {"role": "user", "content": image_tag(1)},
            ],
        ),
        (
            [HI, {"role": "system", "content": "Now in French."}],
            [HI, {"role": "system", "content": "Now in French."}],
        ),
    ],
)
def test_messages(given: list[Any], messages: list[Any]) -> None:
    assert to_messages(None, given, GivenImages(16)).messages == messages


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{"role": "system", "content": ""}], "messages"),
        ([{"content": "a"}], "messages[0].role"),
        ([HI, {"role": "tool", "content": "a"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(use())], "messages[0].content[0]"),
        ([HI, assistant(result())], "messages[1].content[0]"),
        ([HI, assistant(PIXEL)], "messages[1].content[0]"),
        ([{"role": "system", "content": [PIXEL]}], "messages[0].content[0]"),
        ([assistant({**use(), "id": None})], "messages[0].content[0].id"),
        ([assistant({**use(), "name": ""})], "messages[0].content[0].name"),
        ([assistant({"type": "thinking"})], "messages[0].content[0].thinking"),
        (
            [assistant({"type": "thinking", "thinking": "", "signature": 5})],
            "messages[0].content[0].signature",
        ),
        ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
        ([user(result(5))], "messages[0].content[0].content"),
        ([user(result([result()]))], "messages[0].content[0].content[0]"),
        ([user(result(is_error="yes"))], "messages[0].content[0].is_error"),
    ],
)
def test_faults(given: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        to_messages(None, given, GivenImages(16))
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("system", [[PIXEL], [5]])
def test_faults_of_the_system(system: Any) -> None:
    with pytest.raises(InvalidField, match=r"system\[0\]"):
        to_messages(system, [HI], GivenImages(16))
