"""Reads answers in which tags mark calls and thoughts, and decides what a call in a thought is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastovms.text.reasoning.reasoning_format import ThoughtTags
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import Tool
from fastovms.text.tools.tool_format import TaggedCalls


@dataclass(frozen=True, slots=True)
class TaggedAnswer:
    """The marks of one request's answer.

    Attributes:
        calls: None = calls are content.
        thoughts: None = thoughts are content.
        tools: what may be called.
        is_inside: whether the answer begins within a thought.
    """

    calls: TaggedCalls | None
    thoughts: ThoughtTags | None
    tools: Sequence[Tool]
    is_inside: bool

    def parse(self, scan: Scanner, out: PieceCollector) -> Incremental[None]:
        """Reads an answer to its end: a thought, if it begins with one, and what follows."""
        loose: list[str] = []
        if self.thoughts is not None:
            loose = yield from self._read_first_thought(scan, out, self.thoughts)
        if self.calls is not None and self.calls.bare:
            yield from self._read_bare_calls(scan, out, self.calls)
        begins = self.calls.begins if self.calls is not None else ()
        stops = (*begins, *loose, *self._begins_of_thoughts)
        if not stops:
            yield from scan.rest(out.content)
            return
        while found := (yield from scan.until(stops, out.content)):
            if found in begins and self.calls is not None:
                yield from self.calls.read(scan, out, self.tools, found)
            elif found not in loose:
                scan.put_back(found)
                yield from self._read_thought(scan, out, (yield from self._take_begin(scan)))

    @property
    def _begins_of_thoughts(self) -> list[str]:
        """Returns what begins a thought behind the beginning of the answer. What another one goes
        on from stands for both."""
        if self.thoughts is None or not self.thoughts.anywhere:
            return []
        begins = [begin for begin, _ in self.thoughts.pairs]
        return [
            b for b in begins if not any(b != other and b.startswith(other) for other in begins)
        ]

    def _read_first_thought(
        self, scan: Scanner, out: PieceCollector, thoughts: ThoughtTags
    ) -> Incremental[list[str]]:
        """Reads a thought, if one comes first, and returns what is markup from here on though it
        stands alone."""
        space = yield from scan.space()
        end = yield from self._take_begin(scan)
        loose = []
        if thoughts.anywhere:
            loose = [its_end for _, its_end in thoughts.pairs] + list(thoughts.answer or ())
        if end is None and not self.is_inside:
            out.content(space)
            return loose
        end = end or thoughts.pairs[0][1]
        if not (yield from self._read_thought(scan, out, end)):
            loose.append(end)  # a call came before it
        elif thoughts.answer is not None and not thoughts.anywhere:
            space = yield from scan.space()
            if (yield from scan.take(thoughts.answer[0])):
                loose.append(thoughts.answer[1])
            else:
                out.content(space)
        return loose

    def _take_begin(self, scan: Scanner) -> Incremental[str | None]:
        """Reads what begins a thought and returns what ends it; None where none begins."""
        for begin, end in self.thoughts.pairs if self.thoughts is not None else ():
            if (yield from scan.take(begin, is_first=True)):
                return end
        return None

    def _read_thought(
        self, scan: Scanner, out: PieceCollector, end: str | None
    ) -> Incremental[bool]:
        """Reads a thought to its end. Without one, all is the thought. A call within it ends it:
        then it returns False."""
        begins = self.calls.begins if self.calls and self.calls.end_thoughts else ()
        out.begin_reasoning()
        while found := (yield from scan.until((*([end] if end else []), *begins), out.reasoning)):
            if found == end or self.calls is None:
                break
            yield from self.calls.read(scan, out, self.tools, found)
            if not out.in_reasoning:
                return False
        out.end_reasoning()
        return True

    def _read_bare_calls(
        self, scan: Scanner, out: PieceCollector, calls: TaggedCalls
    ) -> Incremental[None]:
        out.content((yield from scan.space()))
        for begin in calls.bare:
            if (yield from scan.starts(begin, is_first=True)):
                yield from calls.read(scan, out, self.tools, "")
                return
