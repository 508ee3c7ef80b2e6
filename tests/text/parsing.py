"""Pushes texts through output parsers, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastovms.text.scanning import CallEnd, OutputParser, Piece, joined


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
