"""Incremental scanning of text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, Protocol, TypeVar

from fastovms.text.parameters import Tool


class Content(NamedTuple):
    """The next piece of the answer to the user, never empty."""

    text: str


class Reasoning(NamedTuple):
    """The next piece of the model's reasoning, never empty."""

    text: str


class CallBegin(NamedTuple):
    """The beginning of a tool call. `call_index` counts the answer's calls from 0. Calls never
    interleave."""

    call_index: int
    name: str


class CallArguments(NamedTuple):
    """The next piece of a call's arguments as JSON, never empty. All pieces joined are a JSON
    object. For a custom tool the client gets only the string in that object."""

    call_index: int
    text: str


class CallEnd(NamedTuple):
    """The end of a tool call. If not `complete`, the text ended or was malformed within the
    arguments. `position` is the number of characters of the answer read so far."""

    call_index: int
    complete: bool
    position: int = 0


Piece = Content | Reasoning | CallBegin | CallArguments | CallEnd

TEXT_PIECES: Final = (Content, Reasoning, CallArguments)
"""The types of pieces whose consecutive instances are parts of one text."""


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Merges consecutive pieces of the same kind and call."""
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
    """Splits one sample's text into pieces. Takes time in proportion to the new text only."""

    def push(self, text: str) -> Sequence[Piece]:
        """Adds text and returns the pieces that are final now, often none."""

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        """Ends the text and returns the rest. `is_cut` is whether a limit ended the text, instead
        of the model or a stop string."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends within reasoning. A token counts as a reasoning token if
        this is True after it has been pushed."""

    @property
    def content_end(self) -> int:
        """The number of characters of the text up to the end of the last content."""


class PlainParser:
    """A parser that returns all text as content."""

    in_reasoning = False
    content_end = 0

    def push(self, text: str) -> Sequence[Piece]:
        return [Content(text)] if text else []

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        return []


T = TypeVar("T")
Incremental = Generator[None, None, T]
"""A computation that yields when it needs more text, and returns a T."""

Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Scanner:
    """The unread text of an answer, and whether more will come.

    A function that may have to wait for more text is a generator, to be called with `yield from`:
    it pauses when the text so far is not sufficient. Consumed text is dropped; only the beginning
    of a tag is ever read twice, so scanning takes linear time. A tag that a limit cuts is skipped:
    it is neither content nor a value.

    Attributes:
        is_ended: whether there will be no more text.
        is_cut: whether a limit ended the text, instead of the model or a stop string.
    """

    __slots__ = (
        "_at", "_base", "_last", "_marks", "_num_forgotten", "_recorded", "_text", "is_cut",
        "is_ended",
    )  # fmt: skip

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        # The number of characters dropped before `_text`, and the last one of them.
        self._num_forgotten = 0
        self._last = ""
        # The text read since `_base`, kept while any of `_marks` is being recorded.
        self._recorded: list[str] = []
        self._base = 0
        self._marks: list[int] = []
        self.is_ended = False
        self.is_cut = False

    def feed(self, text: str) -> None:
        """Adds text."""
        self._num_forgotten += self._at
        self._last = self._text[self._at - 1] if self._at else self._last
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, is_cut: bool = True) -> None:
        """Ends the text. `is_cut` is whether a limit ended it."""
        self.is_ended = True
        self.is_cut = is_cut

    @property
    def position(self) -> int:
        """The number of characters that have been read."""
        return self._num_forgotten + self._at

    @property
    def is_empty(self) -> bool:
        """Whether all text so far has been read."""
        return self._at == len(self._text)

    @property
    def was_cut(self) -> bool:
        """Whether a limit ended the text, and all of it has been read."""
        return self.is_ended and self.is_cut and self.is_empty

    def record(self) -> int:
        """Starts recording the text that is read from now on, and returns the mark for
        `recorded`."""
        if not self._marks:
            self._base = self.position
        self._marks.append(self.position)
        return self.position

    def recorded(self, mark: int) -> str:
        """Returns the text that was read since `record`, and ends the recording."""
        self._marks.remove(mark)
        text = "".join(self._recorded)[mark - self._base :]
        if not self._marks:
            self._recorded.clear()
        return text

    def put_back(self, text: str) -> None:
        """Puts back `text`, which was read last."""
        self._num_forgotten = self.position - len(text)
        self._text = text + self._text[self._at :]
        self._at = 0
        length = len(text)
        while self._recorded and length > 0:
            last = self._recorded.pop()
            if len(last) > length:
                self._recorded.append(last[:-length])
            length -= len(last)

    def peek(self, count: int = 1, expected: str = "") -> Incremental[str]:
        """Returns the next `count` characters without reading them. Returns fewer at the end of the
        text, or as soon as they differ from the beginning of `expected`, if given."""
        while True:
            ahead = self._text[self._at : self._at + count]
            if len(ahead) == count or self.is_ended:
                return ahead
            if expected and not expected.startswith(ahead):
                return ahead
            yield

    def read(self, count: int) -> Incremental[str]:
        """Reads and returns `count` characters; fewer only at the end of the text."""
        text = yield from self.peek(count)
        return self._advance(self._at + len(text))

    def take(self, tag: str, *, is_first: bool = False) -> Incremental[bool]:
        """Reads `tag`, or its beginning at the end of the text, if it comes next. Returns whether
        it did. `is_first` is whether no markup precedes it, so that a partial tag may be
        content."""
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
        """Returns whether one of `tags` comes next. Reads a partial tag at the end of the text; see
        `take`."""
        for tag in tags:
            if (yield from self.peek(len(tag), tag)) == tag:
                return True
        self._skip_cut(self._at, tags, is_first)
        return False

    def _skip_cut(self, start: int, tags: Sequence[str], is_first: bool) -> None:
        """At the end of a text that a limit has cut, skips the text from `start` on if it is the
        beginning of one of `tags`. Letters within a word, and the fence of a code block, do not
        count as the beginning of a tag in content."""
        rest = self._text[start:]
        if not self.is_ended or not self.is_cut or not rest:
            return
        if not any(tag.startswith(rest) for tag in tags):
            return
        before = self._text[start - 1] if start else self._last
        if not is_first:
            is_tag = True
        elif rest[0].isalnum():
            is_tag = not before.isalnum()
        else:
            is_tag = bool(rest.strip("`"))
        if is_tag:
            self._advance(len(self._text))

    def space(self) -> Incremental[str]:
        """Reads and returns white space; "" = none."""
        pieces = []
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            pieces.append(self._advance(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return "".join(pieces)
            yield

    def run(self, pattern: re.Pattern[str], emit: Emit) -> Incremental[None]:
        """Emits the characters that match `pattern`, a repeated character class."""
        while True:
            if match := pattern.match(self._text, self._at):
                emit(self._advance(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return
            yield

    def until(self, tags: Sequence[str], emit: Emit) -> Incremental[str | None]:
        """Emits the text up to the first of `tags`, then reads and returns that tag.

        If two begin at the same character, the one given first counts. None = the text ended
        without a tag.
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
        """Emits all text to the end."""
        while True:
            if self._at < len(self._text):
                emit(self._advance(len(self._text)))
            if self.is_ended:
                return
            yield

    def _advance(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        if self._marks:
            self._recorded.append(text)
        return text


@lru_cache(maxsize=256)
def _any_of(tags: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str]]:
    """Returns a regular expression of the tags, and their first characters."""
    return re.compile("|".join(map(re.escape, tags))), frozenset(tag[0] for tag in tags)


def _length_of_beginning(text: str, tags: Sequence[str]) -> int:
    """Returns the length of the longest suffix of `text` that is a prefix of one of `tags`."""
    for start in range(len(text)):
        if any(tag.startswith(text[start:]) for tag in tags):
            return len(text) - start
    return 0


_FIRST_VALUE = re.compile(r'\s*\{\s*(\}|"([^"\\]|\\.)*"\s*:\s*\S)')
_MAX_HELD = 1000
"""The maximum number of characters of arguments that are held back."""


class _HeldCall(NamedTuple):
    """A call that is held back until its first argument has a value; see `PieceCollector.begin`."""

    name: str
    opening: str
    mark: int | None
    arguments: list[str]


class PieceCollector:
    """Collects the pieces that a parser finds.

    The merged pieces do not depend on how the text was split. Markup that is not a well-formed call
    becomes content, to the last character, unless a limit has cut it: then it is dropped. A call
    that is malformed after the value of its first argument has begun keeps what was sent of it; its
    `CallEnd` says so, and the rest is content.

    White space around tool calls and reasoning counts as markup. Content next to markup, and
    reasoning, are therefore stripped.

    Args:
        scan: the text that the parser reads.

    Attributes:
        tools: the functions that may be called.
        in_reasoning: whether the parser is within reasoning.
        content_end: the number of characters read up to the end of the last content.
        num_calls: the number of calls so far.
        reports_calls: whether tool calls are reported; otherwise their arguments are content.
    """

    def __init__(self, scan: Scanner, tools: Sequence[Tool] = ()) -> None:
        self._scan = scan
        self.tools = tools
        self._pieces: list[Piece] = []
        self._kind: Callable[[str], Piece] = Content
        self._texts: list[str] = []
        self._content = _Space()
        self._reasoning = _Space()
        self.in_reasoning = False
        self.content_end = 0
        self.num_calls = 0
        self.reports_calls = True
        self._held: _HeldCall | None = None

    def take(self) -> list[Piece]:
        """Returns the pieces found since the last call."""
        self._join()
        pieces, self._pieces = self._pieces, []
        return pieces

    def tool(self, name: str) -> Tool | None:
        """Returns the function of this name; None = not allowed."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def content(self, text: str) -> None:
        """Adds content, or reasoning while within reasoning."""
        if self.in_reasoning:
            self.reasoning(text)
        else:
            self._add_content(self._content.hold(text), self._content.num_held)

    def broken(self, markup: str) -> None:
        """Adds markup that did not begin a call. It becomes content, unless a limit has cut it."""
        if not self._scan.was_cut:
            self.content(markup)

    def begin_content(self) -> None:
        """Begins a message to the user. Further messages are separated by a space, as in OVMS."""
        self._content.trim()
        if self._content.has_text:
            self._content.held = [" "]

    def begin_reasoning(self) -> None:
        """Begins reasoning. Further reasoning begins on a new line."""
        self._content.trim()
        self._reasoning.trim()
        if self._reasoning.has_text:
            self._reasoning.held = ["\n"]
        self.in_reasoning = True

    def reasoning(self, text: str) -> None:
        """Adds reasoning."""
        self._add(Reasoning, self._reasoning.hold(text))

    def end_reasoning(self) -> None:
        """Ends reasoning; the following text is content."""
        self.in_reasoning = False

    def begin(self, name: str, opening: str = "", mark: int | None = None) -> None:
        """Begins a call. The call is held back until the value of its first argument begins: if it
        is malformed before that, its text becomes content.

        Args:
            opening: the markup read before `mark`.
            mark: the mark of the recording of the call; None = the call is not held back.
        """
        self._held = _HeldCall(name, opening, mark, [])
        if mark is None or not self.reports_calls:
            self.report()

    def arguments(self, text: str) -> None:
        """Adds to the arguments of the call that was begun last."""
        if self._held is not None:
            self._held.arguments.append(text)
            arguments = "".join(self._held.arguments)
            if len(arguments) > _MAX_HELD or _FIRST_VALUE.match(arguments):
                self.report()
        elif self.reports_calls:
            self._add(self._arguments, text)
        else:
            self.content(text)

    def report(self) -> None:
        """Reports a call that was held back; this ends reasoning."""
        held, self._held = self._held, None
        if held is None:
            return
        if held.mark is not None:
            self._scan.recorded(held.mark)
        self.end_reasoning()
        if self.reports_calls:
            self._content.trim()
            self._join()
            self._pieces.append(CallBegin(self.num_calls, held.name))
            self.num_calls += 1
        else:
            self.begin_content()
        self.arguments("".join(held.arguments))

    def end(self, *, complete: bool, rest: str = "") -> None:
        """Ends the call that was begun last. `rest` is the text of a malformed argument, which was
        read last and becomes content."""
        held = self._held
        if held is not None and held.mark is not None and not (complete or self._scan.was_cut):
            self._held = None
            self.content(held.opening + self._scan.recorded(held.mark))
            return
        self.report()
        if self.reports_calls:
            self._join()
            self._pieces.append(CallEnd(self.num_calls - 1, complete, self._scan.position))
        self.broken(rest)

    def finish(self) -> None:
        """Ends the text."""
        self._add_content(self._content.release(), 0)

    def _add_content(self, text: str, num_held: int) -> None:
        """Adds content that precedes the last `num_held` characters read."""
        if text:
            self.content_end = self._scan.position - num_held
            self._add(Content, text)

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
    """White space at the end of a text, held back until the next text is known."""

    __slots__ = ("_is_trimmed", "has_text", "held")

    def __init__(self) -> None:
        self._is_trimmed = False
        self.has_text = False
        self.held: list[str] = []

    def hold(self, text: str) -> str:
        """Returns the part of the held text and `text` that may be output now."""
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

    @property
    def num_held(self) -> int:
        return sum(map(len, self.held))

    def trim(self) -> None:
        """Records markup at this position. The held white space is output only between two
        texts."""
        self._is_trimmed = True

    def release(self) -> str:
        """Returns the held text, unless markup is next to it."""
        return "" if self._is_trimmed else "".join(self.held)


class IncrementalParser:
    """Implements `OutputParser` with a generator that reads a `Scanner` and fills a
    `PieceCollector`. `tools` are the functions that may be called."""

    def __init__(
        self,
        start: Callable[[Scanner, PieceCollector], Incremental[None]],
        tools: Sequence[Tool] = (),
    ) -> None:
        self._scanner = Scanner()
        self._output = PieceCollector(self._scanner, tools)
        self._steps = start(self._scanner, self._output)
        next(self._steps, None)

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    @property
    def content_end(self) -> int:
        return self._output.content_end

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
