"""Pushes texts through output parsers, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.scanning.output import OutputParser, Piece, joined


def parse(parser: OutputParser, texts: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    for text in texts:
        pieces += parser.push(text)
    pieces += parser.finish()
    assert all(getattr(piece, "text", True) for piece in pieces), "an empty piece"
    return joined(pieces)
