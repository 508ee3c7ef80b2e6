"""Conversations are written down as far as there is room."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.conversation.sealed_text import seal_summary
from fastovms.api.responses.input.input_items import ItemRules, read_items
from fastovms.api.responses.transcript import newest, transcript
from fastovms.api.wire.dialect import OPENAI

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


def test_all_of_it():
    assert transcript(read(ITEMS), 1000, words) == WHOLE


def test_an_earlier_summary_is_told_first():
    told = transcript(read([SUMMARY, *ITEMS]), 1000, words)
    assert told == f"summary of what came before: It rained.\n\n{WHOLE}"
    told = transcript(read([SUMMARY, *ITEMS * 10]), 200, len)
    assert told.startswith("summary of what")
    assert told.endswith("[image]")


@pytest.mark.parametrize("room", [0, 8, 32, 64, 200])
def test_the_newest_items_are_told(room):
    items = read(ITEMS * 50)
    told = transcript(items, room, words)
    assert words(told) <= room
    assert bool(told) == (room > 8)
    assert told.endswith("image]" if told else "")
    assert room < 64 or "assistant: Sunny.\n\nuser: And here?" in told


@pytest.mark.parametrize("count", [len, words])
@pytest.mark.parametrize("room", [100, 1000])
def test_no_item_takes_all_the_room(count, room):
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
def test_the_newest_messages(room, places):
    items = read(ITEMS)
    assert newest(items, room, words) == [items[place] for place in places]


def test_a_message_that_is_far_too_long_is_not_counted():
    items = read([{"role": "user", "content": "x" * 1000}])
    assert newest(items, 10, lambda text: pytest.fail("it was counted")) == []
