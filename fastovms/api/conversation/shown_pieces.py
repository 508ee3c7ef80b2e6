"""Decides which pieces of an answer a chat's client gets."""

from __future__ import annotations

from typing import NamedTuple

from fastovms.text.scanning.output import Content, Piece, Reasoning


class ShownPieces(NamedTuple):
    """Which pieces a client gets: all, but for those that are left out.

    Attributes:
        hides_reasoning: whether pieces of reasoning are left out.
        hides_content: whether content is left out; in an answer that must be calls, only broken
            calls are content.
        one_call: whether calls after the first are left out.
    """

    hides_reasoning: bool = False
    hides_content: bool = False
    one_call: bool = False

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client gets a piece."""
        match piece:
            case Content():
                return not self.hides_content
            case Reasoning():
                return not self.hides_reasoning
            case _:
                return not (self.one_call and piece.call_index)
