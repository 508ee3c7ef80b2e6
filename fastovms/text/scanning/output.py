"""Declares the pieces of a model's answer (content, reasoning, calls), and the parser that finds
them.

A parser is pushed the text as it is generated and returns pieces. Joined, they are the same however
the text was cut: pieces of one kind, and of one call, that follow each other are parts of one text.
Markup that turns out to be no well-formed call is content again, down to the last character, unless
the end of the text has cut it: then it is dropped. Where a call breaks after its arguments have
begun to be told, it stands as told: its `CallEnd` says so, and what follows the fault is content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol


class Content(NamedTuple):
    """The next piece of the answer to the user. It is never empty."""

    text: str


class Reasoning(NamedTuple):
    """The next piece of the model's thoughts. It is never empty."""

    text: str


class CallBegin(NamedTuple):
    """The beginning of a call to a function. `call_index` counts the answer's calls from 0. Calls
    never interleave."""

    call_index: int
    name: str


class CallArguments(NamedTuple):
    """The next piece of the call's arguments: JSON text. Joined it is an object; of a custom tool
    it becomes the text that the client gets. It is never empty."""

    call_index: int
    text: str


class CallEnd(NamedTuple):
    """The end of a call. Its arguments are all there or, not `complete`, will never be: the text
    ended or broke within them. `position` is how many characters of the answer's text have been
    read then."""

    call_index: int
    complete: bool
    position: int = 0


Piece = Content | Reasoning | CallBegin | CallArguments | CallEnd

TEXT_PIECES: Final = (Content, Reasoning, CallArguments)
"""The types of pieces that are a part of a text."""


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Returns the same pieces with each text in one piece."""
    found: list[Piece] = []
    for _, run in groupby(pieces, key=lambda piece: (type(piece), piece[:-1])):
        parts = list(run)
        first = parts[0]
        if len(parts) > 1 and isinstance(first, TEXT_PIECES):
            texts = [part.text for part in parts if isinstance(part, TEXT_PIECES)]
            found.append(first._replace(text="".join(texts)))
        else:
            found += parts
    return found


class OutputParser(Protocol):
    """Finds the pieces of one sample's text. Takes time in proportion to the new text only."""

    def push(self, text: str) -> Sequence[Piece]:
        """Adds text and returns what is certain now, often nothing."""

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        """Ends the text and returns the rest.

        Args:
            is_cut: whether a limit ended the text; otherwise the model did, or a stop string.
        """

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends within reasoning. A token is one of `reasoning_tokens` if
        this holds after it has been pushed."""


class PlainParser:
    """Returns every character as content."""

    in_reasoning = False

    def push(self, text: str) -> Sequence[Piece]:
        return [Content(text)] if text else []

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        return []
