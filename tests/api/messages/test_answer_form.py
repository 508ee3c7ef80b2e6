"""Why an answer has ended, and what it has cost."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.sealed_text import unseal
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import Usage
from fastovms.api.messages.answer_form import AnswerForm, usage_body
from fastovms.params import FinishReason


@pytest.mark.parametrize(
    ("reason", "stop", "are_whole", "told"),
    [
        (FinishReason.STOP, None, [], ("end_turn", None)),
        (FinishReason.STOP, 7, [], ("end_turn", None)),
        (FinishReason.STOP, "\n", [], ("stop_sequence", "\n")),
        (FinishReason.STOP, "\n", [True], ("stop_sequence", "\n")),
        (FinishReason.STOP, None, [True, True], ("tool_use", None)),
        (FinishReason.STOP, None, [True, False], ("end_turn", None)),
        (FinishReason.LENGTH, None, [True], ("max_tokens", None)),
        (FinishReason.LENGTH, None, [], ("max_tokens", None)),
    ],
)
def test_endings(
    reason: FinishReason, stop: str | int | None, are_whole: list[bool], told: tuple[str, str]
) -> None:
    form = AnswerForm(ShownPieces(), str, 9)
    assert tuple(form.ending(reason, stop, are_whole, 9).values()) == (*told, None, None)


def test_the_context_may_end_sooner_than_the_request_says() -> None:
    ending = AnswerForm(ShownPieces(), str, 9).ending(FinishReason.LENGTH, None, [], 8)
    assert ending["stop_reason"] == "model_context_window_exceeded"


def test_cached_tokens_are_counted_apart() -> None:
    counted = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": 5,
        "output_tokens_details": None,
        "server_tool_use": None,
    }
    assert usage_body(Usage(20, 5, 16)) == counted
    assert usage_body(Usage(20, 5, 16, 3)) == {
        **counted,
        "output_tokens_details": {"thinking_tokens": 3},
    }


def test_thoughts_are_shown_or_sealed() -> None:
    form = AnswerForm(ShownPieces(), str, 9)
    assert form.thinking("hm") == "hm"
    assert form.signature("hm") not in ("", form.signature("ah"))
    form = AnswerForm(ShownPieces(), str, 9, omits_thinking=True)
    assert form.thinking("hm") == ""
    assert unseal(form.signature("hm")) == "hm"
