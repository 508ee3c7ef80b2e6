"""Reads text that arrives in pieces as if it were all there, by generators that wait for more.

What may have to wait for more text is a generator, to be called with `yield from`: it stops where
the text so far does not decide. What it has passed on or skipped is forgotten; only the beginning
of a tag is ever looked at twice, so that reading takes time in proportion to the text.

A tag that the end of the text cuts is skipped: it is neither content nor a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Incremental = Generator[None, None, T]
"""A computation that yields where it needs more text, and returns a T."""

Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")
_OPENING = re.compile(r"[<\[]")


class Scanner:
    """The text that has not been read yet, and whether there will be more.

    Attributes:
        is_ended: whether there will be no more text.
        is_cut: whether a limit ended the text; otherwise the model did, or a stop string.
    """

    __slots__ = ("_at", "_last", "_num_forgotten", "_recorded", "_text", "is_cut", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        # Characters before those of `_text`, and the last of them.
        self._num_forgotten = 0
        self._last = ""
        self._recorded: list[str] | None = None
        self.is_ended = False
        self.is_cut = False

    def feed(self, text: str) -> None:
        self._num_forgotten += self._at
        self._last = self._text[self._at - 1] if self._at else self._last
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, is_cut: bool = True) -> None:
        """Ends the text.

        Args:
            is_cut: whether a limit ended it.
        """
        self.is_ended = True
        self.is_cut = is_cut

    @property
    def position(self) -> int:
        """How many characters have been read."""
        return self._num_forgotten + self._at

    @property
    def is_empty(self) -> bool:
        """Whether all text so far has been read."""
        return self._at == len(self._text)

    def has_cut(self, markup: str) -> bool:
        """Returns whether the end of the text has cut what began with `markup`, read last. A text
        that the model has ended itself may end with a bracket that begins nothing."""
        if not self.is_ended or not self.is_empty:
            return False
        return self.is_cut or (len(markup) > 1 and _OPENING.search(markup) is not None)

    def record(self) -> None:
        """Keeps what is read from here on for `recorded`."""
        self._recorded = []

    def recorded(self) -> str:
        """Returns what was read since `record`, which ends here."""
        recorded, self._recorded = self._recorded or (), None
        return "".join(recorded)

    def put_back(self, text: str) -> None:
        """Undoes the reading of `text`, which was read last."""
        self._num_forgotten = self.position - len(text)
        self._text = text + self._text[self._at :]
        self._at = 0
        if self._recorded is not None:
            self._recorded = ["".join(self._recorded).removesuffix(text)]

    def peek(self, count: int = 1, expected: str = "") -> Incremental[str]:
        """Returns the next `count` characters without reading them; fewer only at the end, or where
        what is there is not what `expected`, if given, begins with."""
        while True:
            ahead = self._text[self._at : self._at + count]
            if len(ahead) == count or self.is_ended:
                return ahead
            if expected and not expected.startswith(ahead):
                return ahead
            yield

    def read(self, count: int) -> Incremental[str]:
        """Reads `count` characters; fewer only at the end."""
        text = yield from self.peek(count)
        return self._advance(self._at + len(text))

    def take(self, tag: str, *, is_first: bool = False) -> Incremental[bool]:
        """Reads `tag` if it comes next, or what the end of the text has left of it.

        Args:
            is_first: whether there is no markup before it, so that it may be content.
        """
        while True:
            ahead = self._text[self._at : self._at + len(tag)]
            if ahead == tag:
                self._advance(self._at + len(tag))
                return True
            if self.is_ended or not tag.startswith(ahead):
                self._skip_cut(self._at, (tag,), is_first)
                return False
            yield

    def starts(self, *tags: str, is_first: bool = False) -> Incremental[bool]:
        """Returns whether one of `tags` comes next, and reads what the end of the text has left of
        one; see `take`."""
        for tag in tags:
            if (yield from self.peek(len(tag), tag)) == tag:
                return True
        self._skip_cut(self._at, tags, is_first)
        return False

    def _skip_cut(self, start: int, tags: Sequence[str], is_first: bool) -> None:
        """At the end of the text, skips what stands from `start` on if it is the beginning of one
        of `tags`.

        Content that the model has ended itself may end with the first character of a tag. In
        content that a limit has cut, letters within a word, and the fence of a block of code, are
        not the beginning of a tag.
        """
        rest = self._text[start:]
        if not self.is_ended or not rest or not any(tag.startswith(rest) for tag in tags):
            return
        before = self._text[start - 1] if start else self._last
        if not is_first:
            is_tag = True
        elif not self.is_cut:
            is_tag = len(rest) > 1 and _OPENING.search(rest) is not None
        elif rest[0].isalnum():
            is_tag = not before.isalnum()
        else:
            is_tag = bool(rest.strip("`"))
        if is_tag:
            self._advance(len(self._text))

    def space(self) -> Incremental[str]:
        """Reads white space, perhaps none."""
        pieces = []
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            pieces.append(self._advance(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return "".join(pieces)
            yield

    def run(self, pattern: re.Pattern[str], emit: Emit) -> Incremental[None]:
        """Passes on the characters that `pattern`, a character class repeated, matches."""
        while True:
            if match := pattern.match(self._text, self._at):
                emit(self._advance(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return
            yield

    def until(self, tags: Sequence[str], emit: Emit) -> Incremental[str | None]:
        """Passes on the text up to the first of `tags`, reads that and returns it.

        Of two that begin at the same character the one given first counts. None: the text has
        ended without any.
        """
        pattern, first_characters = _any_of(tuple(tags))
        longest = max(map(len, tags))
        while True:
            if match := pattern.search(self._text, self._at):
                if match.start() > self._at:
                    emit(self._advance(match.start()))
                return self._advance(match.end())
            end = len(self._text)
            tail = self._text[max(self._at, end - longest + 1) :]
            if not first_characters.isdisjoint(tail):
                end -= _length_of_beginning(tail, tags)
            if end > self._at:
                emit(self._advance(end))
            if self.is_ended:
                self._skip_cut(end, tags, True)
                if not self.is_empty:
                    emit(self._advance(len(self._text)))
                return None
            yield

    def rest(self, emit: Emit) -> Incremental[None]:
        """Passes on all text to the end."""
        while True:
            if self._at < len(self._text):
                emit(self._advance(len(self._text)))
            if self.is_ended:
                return
            yield

    def _advance(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        if self._recorded is not None:
            self._recorded.append(text)
        return text


@lru_cache(maxsize=256)
def _any_of(tags: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str]]:
    """Returns an expression of the tags, and the characters that they begin with."""
    return re.compile("|".join(map(re.escape, tags))), frozenset(tag[0] for tag in tags)


def _length_of_beginning(text: str, tags: Sequence[str]) -> int:
    """Returns the length of the longest end of `text` that one of `tags` begins with."""
    for start in range(len(text)):
        if any(tag.startswith(text[start:]) for tag in tags):
            return len(text) - start
    return 0
