"""Pushes texts through output parsers, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    OutputParser,
    Piece,
    Reasoning,
    joined,
)


def parse(parser: OutputParser, texts: Sequence[str]) -> list[Piece]:
    """Returns the pieces, without the positions at which calls end: `parse_all` has these."""
    return without_positions(parse_all(parser, texts))


def without_positions(pieces: Iterable[Piece]) -> list[Piece]:
    return [piece._replace(position=0) if isinstance(piece, CallEnd) else piece for piece in pieces]


def parse_all(parser: OutputParser, texts: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    for text in texts:
        pieces += parser.push(text)
    pieces += parser.finish()
    assert all(getattr(piece, "text", True) for piece in pieces), "an empty piece"
    ends = [piece.position for piece in pieces if isinstance(piece, CallEnd)]
    assert [0, *ends, sum(map(len, texts))] == sorted([0, *ends, sum(map(len, texts))])
    return joined(pieces)


class Said(NamedTuple):
    """The texts of an answer, and its calls as names and texts of arguments."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    completes: list[bool]


def said(pieces: Iterable[Piece]) -> Said:
    """Returns what the pieces of an answer amount to."""
    texts = {Content: "", Reasoning: ""}
    calls: list[tuple[str, str]] = []
    completes: list[bool] = []
    for piece in pieces:
        match piece:
            case CallBegin(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
            case CallEnd(_, complete, _):
                completes.append(complete)
            case Content(text) | Reasoning(text):
                texts[type(piece)] += text
    return Said(texts[Content], texts[Reasoning], calls, completes)
