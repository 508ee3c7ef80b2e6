"""Pushes texts through output parsers, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastovms.text.output import CallArguments, Content, OutputParser, Piece, Reasoning


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces of one text made one."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Content | Reasoning) and type(last) is type(piece):
            result[-1] = type(piece)(last.text + piece.text)  # type: ignore[union-attr]
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            assert last.call_index == piece.call_index
            result[-1] = last._replace(text=last.text + piece.text)
        else:
            result.append(piece)
    return result


def parse(parser: OutputParser, texts: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    for text in texts:
        pieces += parser.push(text)
    pieces += parser.finish()
    assert all(getattr(piece, "text", True) for piece in pieces), "an empty piece"
    return joined(pieces)
