"""Ends a text at its first stop string, regardless of how the text is split into pieces."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from fastovms.text.detokenizer import Detokenizer

_MAX_TOKENS_OF_CHARACTER = 4
"""The maximum number of tokens of one character: one for each byte."""

_NUM_TOKENS_BEFORE = 32
"""The number of tokens that are read before the last ones that may belong to a stop string. Some
tokens may have no text, and the first of a text may be written differently than in the middle."""

_MAX_KNOWN = 64
"""The number of tokens before the searched text whose positions are kept, to drop many at once."""


class StopResult(NamedTuple):
    """The text to output, and the stop string that ended it; None = none."""

    text: str
    stop: str | None


class StopMatcher:
    """Holds text back while it may be the beginning of a stop string.

    The stop string that is complete first wins; of two complete at the same character, the one
    given first, as in vLLM. (vLLM checks once per token, so that within a token only the given
    order counts; here the result does not depend on tokens.) Amortized time per character and stop
    string is constant; memory is proportional to the matched text.

    Args:
        stop: non-empty strings.
        include: keep the stop string at the end of the text. Nothing needs to be held back then.

    Attributes:
        num_dropped: the number of characters after the stop string, in the text that completed it.
    """

    __slots__ = ("_held", "_include", "_searches", "_stop", "num_dropped")

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        assert all(stop), "a stop string is empty"
        self._searches = [_PieceSearch(text) for text in stop]
        self._include = include
        self._held = ""
        self._stop: str | None = None
        self.num_dropped = 0

    def push(self, text: str, *, ends: bool = True) -> StopResult:
        """Adds text. After a stop string everything is dropped and the result repeats the stop
        string. `ends` is whether a stop string that is completed by this text ends it; otherwise it
        is ignored."""
        if self._stop is not None:
            return StopResult("", self._stop)
        if not self._searches:
            return StopResult(text, None)
        end = len(text) + 1
        num_held = 0
        for search in self._searches:
            if not ends:
                search.pass_over(text)
                num_held = max(num_held, search.num_matched)
            elif (found := search.advance(text, end - 1)) is not None:
                end = found
                self._stop = search.pattern
            elif search.num_matched > num_held:
                num_held = search.num_matched
        seen = self._held + text
        if self._stop is not None:
            self.num_dropped = len(text) - end
            end += len(self._held)
            self._held = ""
            return StopResult(seen[: end if self._include else end - len(self._stop)], self._stop)
        if num_held == 0 or self._include:
            self._held = ""
            return StopResult(seen, None)
        self._held = seen[-num_held:]
        return StopResult(seen[:-num_held], None)

    def flush(self) -> str:
        """Ends the text and returns the text that was held back."""
        held, self._held = self._held, ""
        return held


class StopSearch:
    """Ends the text of one sample at its first stop string, and counts the tokens up to the one
    that completed the stop string. More tokens may have arrived by then, because a detokenizer or a
    parser holds text back. Positions are in characters of the decoded text.

    Args:
        stop: non-empty strings.
        include: see `StopMatcher`.
        min_tokens: a stop string that is complete within this number of tokens does not end the
            text.

    Attributes:
        stop: the stop string that ended the text; None = none so far.
        end: the end position of that stop string.
        num_tokens: the number of tokens up to the one that completed it.
        num_decoded: the number of characters of all tokens.
    """

    __slots__ = (
        "_matcher",
        "_min_tokens",
        "_num_before",
        "_passes_to",
        "_starts",
        "end",
        "num_decoded",
        "num_tokens",
        "stop",
    )

    def __init__(self, stop: Sequence[str], include: bool, min_tokens: int) -> None:
        self._matcher = StopMatcher(stop, include)
        self._min_tokens = min_tokens
        self._passes_to = math.inf  # the start of the first token that may complete a stop string
        self._starts = array("Q")  # start of each of the last tokens
        self._num_before = 0  # number of tokens before those
        self.num_decoded = 0
        self.num_tokens = 0
        self.end = 0
        self.stop: str | None = None

    def add_tokens(self, text: str, starts: Sequence[str]) -> None:
        """Adds decoded text that will be searched, now or later. `starts` are the start positions
        of tokens; see `LocatingDetokenizer`."""
        for start in starts:
            self._starts.append(self.num_decoded + len(start))
            if self._num_before + len(self._starts) == self._min_tokens + 1:
                self._passes_to = self._starts[-1]
        self.num_decoded += len(text)

    def search(self, text: str, end: int) -> str:
        """Searches the next text, and returns the text to output. `end` is the position of the end
        of `text`."""
        start = end - len(text)
        num_passed = int(min(max(self._passes_to - start, 0), len(text)))
        shown = ""
        if num_passed:
            shown = self._matcher.push(text[:num_passed], ends=False).text
        found = self._matcher.push(text[num_passed:])
        if found.stop is not None and self.stop is None:
            self.stop = found.stop
            self.end = end - self._matcher.num_dropped
            self.num_tokens = self._num_before + bisect_left(self._starts, self.end)
        num_known = bisect_left(self._starts, start)  # no later stop string ends before `start`
        if num_known > _MAX_KNOWN:
            del self._starts[:num_known]
            self._num_before += num_known
        return shown + found.text

    def flush(self) -> str:
        """Ends the text and returns the text that was held back."""
        return self._matcher.flush()


def completes_stop(
    new_detokenizer: Callable[[], Detokenizer],
    stop: Sequence[str],
    min_tokens: int,
    content_of: Callable[[str], str] | None,
    num_tokens: int,
    backwards: Iterable[int],
) -> bool:
    """Returns whether the last token completes a stop string, and not within the first
    `min_tokens`. Used for beams: it keeps no state and reads only the end of the text.

    Args:
        content_of: returns the content of a whole text, if only content is searched; called only if
            the text ends with a stop string. None = the whole text is searched.
        num_tokens: the number of tokens of the text.
        backwards: the tokens in reverse order.
    """
    num_read = _NUM_TOKENS_BEFORE + _MAX_TOKENS_OF_CHARACTER * max(map(len, stop))
    rest = iter(backwards)
    token_ids = list(islice(rest, num_read))[::-1]
    num_passed_over = max(0, min_tokens - (num_tokens - len(token_ids)))
    detokenizer = new_detokenizer()
    passed_over = detokenizer.push(token_ids[:num_passed_over])
    text = passed_over + detokenizer.push(token_ids[num_passed_over:])
    found = [s for s in stop if text.find(s, max(0, len(passed_over) - len(s) + 1)) >= 0]
    if found and content_of is not None:
        content = content_of(new_detokenizer().push([*list(rest)[::-1], *token_ids]))
        found = [s for s in found if s in content]
    return bool(found)


class _PieceSearch:
    """Searches for one string in text that arrives in pieces, with the algorithm of Knuth, Morris
    and Pratt.

    `num_matched` is the length of the longest prefix of the pattern with which the text so far
    ends. The failure table is extended as needed, so that long patterns cost nothing until they
    match.
    """

    __slots__ = ("_failure", "num_matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0
        # _failure[k]: the longest proper prefix of pattern[:k] that is also its suffix.
        self._failure = [0, 0]

    def advance(self, text: str, end: int) -> int | None:
        """Reads `text[:end]`, and returns the position after the first occurrence; None = none."""
        pattern, failure = self.pattern, self._failure
        num_matched = self.num_matched
        position = 0
        while position < end:
            if num_matched == 0:
                position = text.find(pattern[0], position, end)
                if position < 0:
                    break
            char = text[position]
            while num_matched and pattern[num_matched] != char:
                num_matched = failure[num_matched]
            if pattern[num_matched] == char:
                num_matched += 1
            position += 1
            if num_matched == len(failure):
                self._extend_failure()
            if num_matched == len(pattern):
                return position
        self.num_matched = num_matched
        return None

    def pass_over(self, text: str) -> None:
        """Reads all of `text` and ignores matches within it, but a match may begin at its end."""
        while (found := self.advance(text, len(text))) is not None:
            self.num_matched = self._failure[len(self.pattern)]
            text = text[found:]

    def _extend_failure(self) -> None:
        pattern, failure = self.pattern, self._failure
        last = len(failure) - 1
        border = failure[last]
        while border and pattern[border] != pattern[last]:
            border = failure[border]
        failure.append(border + 1 if pattern[border] == pattern[last] else 0)
