"""Runs a parser that is written as one computation over the whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastovms.text.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.scanner import Scanner, Steps


class Output:
    """Collects the pieces that a parser finds.

    White space beside a call or a thought belongs to the markup and is dropped: what content ends
    with is held until it is known what follows.

    Attributes:
        in_reasoning: the parser is within reasoning.
        num_calls: calls begun so far.
    """

    __slots__ = (
        "_keep_space",
        "_kind",
        "_pieces",
        "_space",
        "_texts",
        "in_reasoning",
        "num_calls",
    )

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._kind: Callable[[str], Piece] = Content
        self._texts: list[str] = []
        self._space: list[str] = []
        self._keep_space = True
        self.in_reasoning = False
        self.num_calls = 0

    def take(self) -> list[Piece]:
        """The pieces found since the last time."""
        self._join()
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self, text: str) -> None:
        self._show(Content, text)

    def reasoning(self, text: str) -> None:
        self._show(Reasoning, text)

    def drop_space(self) -> None:
        """Markup stands here: the white space before it and after it is no text."""
        self._space.clear()
        self._keep_space = False

    def begin(self, name: str) -> None:
        self.drop_space()
        self._join()
        self._pieces.append(CallBegin(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that was begun last."""
        if text:
            self._add(self._arguments, text)

    def _arguments(self, text: str) -> Piece:
        return CallArguments(self.num_calls - 1, text)

    def end(self, *, complete: bool) -> None:
        self._join()
        self._pieces.append(CallEnd(self.num_calls - 1, complete))

    def finish(self) -> None:
        """The text has ended."""
        if self._space and self._keep_space:
            self._add(Content, "".join(self._space))
        self._space.clear()

    def _show(self, kind: type[Content | Reasoning], text: str) -> None:
        shown = text.rstrip()
        if shown:
            space = text[len(shown) :]
            shown = "".join(self._space) + shown if self._keep_space else shown.lstrip()
            self._space.clear()
            self._keep_space = True
            self._add(kind, shown)
            text = space
        if text:
            self._space.append(text)

    def _add(self, kind: Callable[[str], Piece], text: str) -> None:
        if self._texts and kind != self._kind:
            self._join()
        self._kind = kind
        self._texts.append(text)

    def _join(self) -> None:
        if self._texts:
            self._pieces.append(self._kind("".join(self._texts)))
            self._texts.clear()


class StepsParser:
    """The `OutputParser` of a computation that reads a scanner and fills an output."""

    def __init__(self, start: Callable[[Scanner, Output], Steps[None]]) -> None:
        self._scanner = Scanner()
        self._output = Output()
        self._steps = start(self._scanner, self._output)
        next(self._steps, None)

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    def push(self, text: str) -> Sequence[Piece]:
        self._scanner.feed(text)
        next(self._steps, None)
        return self._output.take()

    def finish(self) -> Sequence[Piece]:
        self._scanner.end()
        for _ in self._steps:
            raise AssertionError("a parser waits for text after the end")
        self._output.finish()
        return self._output.take()
