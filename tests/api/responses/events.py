"""Checks the order of a stream's events and joins their deltas."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = {"output_text", "reasoning_text", "reasoning_summary_text"}


def check(events: list[Any], *, start: int = 0) -> Event:
    """Returns the response of the stream's last event.

    Args:
        start: the number of the first event; the deltas before it are unknown, so items are not
            compared.
    """
    assert events.pop() == "[DONE]"
    assert [event["sequence_number"] for event in events] == [
        start + place for place in range(len(events))
    ]
    kinds = [event["type"] for event in events]
    if not start:
        assert kinds[0] == "response.created"
        assert kinds.count("response.created") == 1
        assert events[0]["response"]["output"] == []
    assert [kind for kind in kinds if kind in TERMINAL] == kinds[-1:]
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1
    final: Event = events[-1]["response"]
    if not start:
        output = _Output()
        for event in events:
            output.take(event)
        assert output.open is None
        assert output.items == final["output"]
    return final


def kinds(events: list[Any]) -> list[str]:
    """Returns the types of the events in short form, without consecutive repetitions."""
    short = [event["type"].removeprefix("response.") for event in events if event != "[DONE]"]
    return [kind for place, kind in enumerate(short) if place == 0 or kind != short[place - 1]]


_CALLS = {
    "function_call_arguments": ("function_call", "arguments"),
    "custom_tool_call_input": ("custom_tool_call", "input"),
}


class _Output:
    """The items that the deltas form."""

    def __init__(self) -> None:
        self.items: list[Event] = []
        self.open: Event | None = None
        self.part: Event | None = None
        self.text = ""
        self.logprobs: list[Any] = []

    def take(self, event: Event) -> None:
        family, _, step = event["type"].removeprefix("response.").rpartition(".")
        if not family:
            return
        assert event["output_index"] == len(self.items)
        if family == "output_item":
            self._item(step, event)
            return
        assert self.open is not None
        if family == "shell_call_command":
            self._command(step, event)
            return
        assert event["item_id"] == self.open["id"]
        if family in ("content_part", "reasoning_summary_part"):
            self._part(step, event)
        elif family in _TEXTS:
            assert self.part is not None
            self._text(step, event, "text")
        elif family == "apply_patch_call_operation_diff":
            self._text(step, event, "diff")
        else:
            kind, member = _CALLS[family]
            assert self.open["type"] == kind
            self._text(step, event, member)

    def _item(self, step: str, event: Event) -> None:
        item = event["item"]
        if step == "added":
            assert self.open is None
            assert item["status"] == "in_progress"
            assert item.get("content", []) == item.get("summary", []) == []
            assert item.get("arguments") in ("", None) or item["type"] == "tool_search_call"
            assert item.get("input", "") == ""
            self.open = item
            self.text = ""
            self.logprobs = []
        else:
            assert self.open is not None
            assert self.part is None
            assert item["id"] == self.open["id"]
            assert item["status"] in ("completed", "incomplete")
            assert item.get("call_id") == self.open.get("call_id")
            self.items.append(item)
            self.open = None

    def _command(self, step: str, event: Event) -> None:
        assert self.open is not None
        command = self.open["action"]["commands"][event["command_index"]]
        self.text = "" if step == "added" else self.text + event.get("delta", "")
        assert event.get("command", "") == ("" if step != "done" else command)
        assert step != "done" or self.text == command

    def _part(self, step: str, event: Event) -> None:
        if step == "added":
            assert self.part is None
            assert event["part"]["text"] == ""
            self.part = event["part"]
        else:
            assert event["part"]["text"] == self.text
            assert event["part"].get("logprobs", []) == self.logprobs
            self.part = None

    def _text(self, step: str, event: Event, member: str) -> None:
        if step == "delta":
            assert event["delta"]
            self.text += event["delta"]
            self.logprobs += event.get("logprobs", [])
        else:
            assert event[member] == self.text
            assert event.get("logprobs", []) == self.logprobs
