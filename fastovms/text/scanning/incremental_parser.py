"""Runs a parser that is written as one computation over the whole text, while the text still
arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.scanning.scanner import Incremental, Scanner


class PieceCollector:
    """Collects the pieces that a parser finds.

    White space beside a call or a thought belongs to the markup. So content with markup in it, and
    every thought, is told without white space at its beginning and its end.

    Args:
        scan: the text that the parser reads.

    Attributes:
        in_reasoning: whether the parser is within reasoning.
        num_calls: how many calls have begun so far.
        tells_calls: whether calls are pieces of their own; otherwise their arguments are content.
    """

    def __init__(self, scan: Scanner) -> None:
        self._scan = scan
        self._pieces: list[Piece] = []
        self._kind: Callable[[str], Piece] = Content
        self._texts: list[str] = []
        self._content = _Space()
        self._reasoning = _Space()
        self.in_reasoning = False
        self.num_calls = 0
        self.tells_calls = True

    def take(self) -> list[Piece]:
        """Returns the pieces found since the last time."""
        self._join()
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self, text: str) -> None:
        """Adds to the answer; within reasoning, where calls are looked for too, to that."""
        if self.in_reasoning:
            self.reasoning(text)
        else:
            self._add(Content, self._content.hold(text))

    def broken(self, markup: str) -> None:
        """Adds markup that has begun no call. It is content, unless the end of the text has cut
        it."""
        if not self._scan.has_cut(markup):
            self.content(markup)

    def begin_content(self) -> None:
        """Begins a message to the user. Of several, each is told after a space, as in OVMS."""
        self._content.trim()
        if self._content.has_text:
            self._content.held = [" "]

    def begin_reasoning(self) -> None:
        """Begins a thought. Of several, each begins a line."""
        self._content.trim()
        self._reasoning.trim()
        if self._reasoning.has_text:
            self._reasoning.held = ["\n"]
        self.in_reasoning = True

    def reasoning(self, text: str) -> None:
        self._add(Reasoning, self._reasoning.hold(text))

    def end_reasoning(self) -> None:
        self.in_reasoning = False

    def begin(self, name: str) -> None:
        """Begins a call, which ends reasoning."""
        self.end_reasoning()
        if not self.tells_calls:
            self.begin_content()
            return
        self._content.trim()
        self._join()
        self._pieces.append(CallBegin(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Adds to the arguments of the call that was begun last."""
        if self.tells_calls:
            self._add(self._arguments, text)
        else:
            self.content(text)

    def end(self, *, complete: bool) -> None:
        if not self.tells_calls:
            return
        self._join()
        self._pieces.append(CallEnd(self.num_calls - 1, complete, self._scan.position))

    def finish(self) -> None:
        """Ends the text."""
        self._add(Content, self._content.release())

    def _arguments(self, text: str) -> Piece:
        return CallArguments(self.num_calls - 1, text)

    def _add(self, kind: Callable[[str], Piece], text: str) -> None:
        if not text:
            return
        if self._texts and kind != self._kind:
            self._join()
        self._kind = kind
        self._texts.append(text)

    def _join(self) -> None:
        if self._texts:
            self._pieces.append(self._kind("".join(self._texts)))
            self._texts.clear()


class _Space:
    """White space at the end of a text, held until it is known what follows."""

    __slots__ = ("_is_trimmed", "has_text", "held")

    def __init__(self) -> None:
        self._is_trimmed = False
        self.has_text = False
        self.held: list[str] = []

    def hold(self, text: str) -> str:
        """Returns what may be shown of the text held so far and `text`."""
        shown = text.rstrip()
        if not shown:
            if text:
                self.held.append(text)
            return ""
        end = text[len(shown) :]
        if self.has_text or not self._is_trimmed:
            shown = "".join(self.held) + shown
        else:
            shown = shown.lstrip()
        self.held = [end] if end else []
        self.has_text = True
        self._is_trimmed = False
        return shown

    def trim(self) -> None:
        """Takes note that markup stands here. What is held is shown if text follows and there was
        some before."""
        self._is_trimmed = True

    def release(self) -> str:
        """Returns what is held, unless markup stands beside it."""
        return "" if self._is_trimmed else "".join(self.held)


class IncrementalParser:
    """Implements `OutputParser` by a computation that reads a scanner and fills an output."""

    def __init__(self, start: Callable[[Scanner, PieceCollector], Incremental[None]]) -> None:
        self._scanner = Scanner()
        self._output = PieceCollector(self._scanner)
        self._steps = start(self._scanner, self._output)
        next(self._steps, None)

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    def push(self, text: str) -> Sequence[Piece]:
        self._scanner.feed(text)
        next(self._steps, None)
        return self._output.take()

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        self._scanner.end(is_cut=is_cut)
        for _ in self._steps:
            raise AssertionError("a parser waits for text after the end")
        self._output.finish()
        return self._output.take()
