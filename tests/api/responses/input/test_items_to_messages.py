"""Items become the messages of a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.conversation.sealed_text import seal_summary, told_summary
from fastovms.api.responses.input.input_items import ItemRules, read_items
from fastovms.api.responses.input.items_to_messages import to_messages
from fastovms.api.wire.dialect import OPENAI

SUMMARY = {"type": "compaction", "encrypted_content": seal_summary("It rains.")}
TOLD = told_summary(SUMMARY["encrypted_content"])
READING = ItemRules(OPENAI, lambda prefix: f"{prefix}_new")


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"call_{name}",
        "name": name,
        "arguments": arguments,
    }


def answered(name: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": output}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": f"call_{name}", "function": function}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([said("user", "a"), said("user", "b")], [said("user", "a"), said("user", "b")]),
        (
            [
                said("user", "a"),
                SUMMARY,
                said("user", "b"),
                said("assistant", "c"),
                said("user", "d"),
                said("user", "e"),
            ],
            [
                said("user", f"a\n\n{TOLD}\n\nb"),
                said("assistant", "c"),
                said("user", "d"),
                said("user", "e"),
            ],
        ),
        (
            [said("system", "s"), said("user", "a"), said("user", "b"), SUMMARY, called("f")],
            [
                said("system", "s"),
                said("user", f"a\n\nb\n\n{TOLD}"),
                {**said("assistant", ""), "tool_calls": [call("f")]},
            ],
        ),
        (
            [SUMMARY, said("system", "s"), SUMMARY],
            [said("user", TOLD), said("system", "s"), said("user", TOLD)],
        ),
        (
            [said("assistant", "a"), said("assistant", "b")],
            [said("assistant", "a"), said("assistant", "b")],
        ),
        (
            [thought("hm"), said("assistant", "a")],
            [{**said("assistant", "a"), "reasoning_content": "hm"}],
        ),
        (
            [thought("hm"), thought("ah"), called("f"), called("g", "")],
            [
                {
                    **said("assistant", ""),
                    "reasoning_content": "hm\nah",
                    "tool_calls": [call("f"), call("g")],
                }
            ],
        ),
        (
            [called("f"), said("assistant", "a")],
            [{**said("assistant", "a"), "tool_calls": [call("f")]}],
        ),
        (
            [said("assistant", "a"), called("f"), answered("f", "x"), said("assistant", "b")],
            [
                {**said("assistant", "a"), "tool_calls": [call("f")]},
                {"role": "tool", "content": "x", "tool_call_id": "call_f"},
                said("assistant", "b"),
            ],
        ),
        (
            [thought("hm"), said("user", "a")],
            [{**said("assistant", ""), "reasoning_content": "hm"}, said("user", "a")],
        ),
        (
            [called("f"), thought("hm"), called("g")],
            [
                {**said("assistant", ""), "tool_calls": [call("f")]},
                {**said("assistant", ""), "reasoning_content": "hm", "tool_calls": [call("g")]},
            ],
        ),
        (
            [answered("f", [{"type": "input_text", "text": part} for part in "ab"])],
            [{"role": "tool", "content": "a\nb", "tool_call_id": "call_f"}],
        ),
        (
            [said("assistant", [{"type": "refusal", "refusal": "no"}])],  # type: ignore[arg-type]
            [said("assistant", "no")],
        ),
    ],
)
def test_messages(items, expected):
    read = read_items(items, "input", READING)
    assert to_messages(read).messages == expected
    assert to_messages(read, "rules").messages == [said("system", "rules"), *expected]
    again = read_items(read, "input", READING)
    assert again == read
