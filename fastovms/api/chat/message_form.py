"""Decides what a chat's client is shown of an answer, streamed or whole: its reasoning or not, one
call or all, and which `finish_reason`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastovms.api.chat.call_forms import CallForms
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.alignment import ContentTokens
from fastovms.api.wire.dialect import Dialect
from fastovms.params import FinishReason
from fastovms.text.scanning.output import Piece


@dataclass(frozen=True, slots=True)
class ChatMessageForm:
    """How the pieces of an answer are told.

    Attributes:
        role: the message's.
        prefix: what its content begins with: the end of the prompt, where it is echoed.
        shown: which pieces the client gets.
        is_named: whether the request names the function to call.
        drops_cut_call: whether, in an answer that is whole, a call that is not complete is left
            out.
        may_call: whether the answer may be calls.
        calls: how they are told.
        new_content_tokens: makes what finds the tokens of one sample's content.
    """

    role: str
    prefix: str
    shown: ShownPieces
    is_named: bool
    drops_cut_call: bool
    may_call: bool
    calls: CallForms
    new_content_tokens: Callable[[], ContentTokens]

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client gets a piece."""
        return self.shown.shows(piece)

    def finish_reason(
        self, reason: FinishReason, are_whole: Sequence[bool], dialect: Dialect
    ) -> str:
        """Returns the `finish_reason` of a choice.

        Args:
            are_whole: whether each call is. Where a stop string has cut one, agents must not be
                asked to run it, and a stream cannot take back what it has told of it.
        """
        is_plain_stop = self.is_named and dialect.ends_named_call_with_stop
        has_called = bool(are_whole) and all(are_whole)
        if reason is FinishReason.STOP and has_called and not is_plain_stop:
            return self.calls.finish_reason
        return reason.value
