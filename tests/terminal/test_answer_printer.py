from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest

from fastovms.client.request_failed import RequestFailed
from fastovms.terminal.answer_printer import AnswerPrinter, visible
from fastovms.terminal.dialogue import Message

CALL = {"index": 0, "id": "call_7", "function": {"name": "add", "arguments": ""}}


def printed(
    *deltas: dict[str, Any], is_terminal: bool = True, in_colour: bool = True
) -> tuple[str, Message | None]:
    output = StringIO()
    printer = AnswerPrinter(output, is_terminal=is_terminal, in_colour=in_colour)
    for delta in deltas:
        printer.on_event(json.dumps({"choices": [{"delta": delta}]}).encode(), 0.0)
    printer.on_event(b"[DONE]", 0.0)
    return output.getvalue(), printer.finish()


def output_of(*deltas: dict[str, Any], **how: bool) -> str:
    output = StringIO()
    printer = AnswerPrinter(output, **{"is_terminal": True, "in_colour": True, **how})
    for delta in deltas:
        printer.on_event(json.dumps({"choices": [{"delta": delta}]}).encode(), 0.0)
    printer.finish()
    return output.getvalue()


def test_content() -> None:
    deltas = ({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"})
    assert output_of(*deltas) == "Hello\n"
    assert printed(*deltas)[1] == {"role": "assistant", "content": "Hello"}
    assert output_of({"content": "a line\n"}) == "a line\n"


def test_thoughts_are_dimmed_and_not_kept() -> None:
    deltas = ({"reasoning_content": "hm"}, {"reasoning": "m"}, {"content": "Yes."})
    assert output_of(*deltas) == "\x1b[2mhmm\x1b[0m\n\nYes.\n"
    assert output_of(*deltas, in_colour=False) == "hmm\n\nYes.\n"
    assert output_of(*deltas, is_terminal=False, in_colour=False) == "Yes.\n"
    assert printed(*deltas)[1] == {"role": "assistant", "content": "Yes."}


def test_calls_are_shown_and_kept() -> None:
    deltas = (
        {"content": "Let me see."},
        {"tool_calls": [CALL]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "now", "arguments": "{}"}}]},
    )
    assert output_of(*deltas) == 'Let me see.\n-> add {"a":1}\n-> now {}\n'
    _, message = printed(*deltas)
    assert message is not None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "add", "arguments": '{"a":1}'},
        {"name": "now", "arguments": "{}"},
    ]
    assert message["tool_calls"][0]["id"] == "call_7"


def test_nothing() -> None:
    assert printed() == ("", None)


def test_an_error_in_the_stream() -> None:
    printer = AnswerPrinter(StringIO(), is_terminal=True, in_colour=True)
    with pytest.raises(RequestFailed, match="engine died"):
        printer.on_event(b'{"error": {"message": "engine died"}}', 0.0)


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert visible("a\tb\nc \u00fc \U0001f469\u200d\U0001f4bb") == (
        "a\tb\nc \u00fc \U0001f469\u200d\U0001f4bb"
    )
    assert visible("\x1b]0;x\x07\r\x9b1m\u202e") == "\\x1b]0;x\\x07\\x0d\\x9b1m\\u202e"
    assert "\x1b" not in output_of({"content": "\x1b[2J"})
