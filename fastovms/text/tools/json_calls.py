"""Parsers and grammars of calls in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from fastovms.grammar_tree import EMPTY, MAYBE_LINE_BREAK, Node, Tag, in_order, one_of, several
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.scanning import Incremental, PieceCollector, Scanner
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls
from fastovms.text.values import (
    JSON,
    beginning_of_json,
    copy_json,
    copy_string,
    read_string,
    to_json,
)

CallReader = Callable[[Scanner, PieceCollector, str], Incremental[bool]]
"""Reads a call after the given markup, and returns whether it was complete. Text that is malformed
before the call begins becomes content, including the markup."""


def read_list(
    scan: Scanner, out: PieceCollector, opening: str, read_call: CallReader
) -> Incremental[bool]:
    """Reads calls separated by commas up to the bracket that ends their list, and returns whether
    they were complete. Malformed calls are handled as by `CallReader`."""
    while True:
        opening += yield from scan.space()
        if not (yield from read_call(scan, out, opening)):
            return False
        opening = yield from scan.space()
        if (yield from scan.take("]")):
            return True
        if not (yield from scan.take(",")):
            out.broken(opening)
            return False
        opening += ","


_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type", "index", "tool_call_id")
_FUNCTION = "function"


def json_call(
    tools: Sequence[Tool],
    member: str = "arguments",
    name: str = "name",
    first: Node = EMPTY,
    begin: str = "{",
) -> Node:
    """Returns the grammar of a call to one of `tools`.

    Args:
        member: the key of the arguments.
        name: the key of the function's name.
        first: the grammar of the text before the name.
        begin: the text before the call, possibly with the beginning of a list. It is joined to the
            name as one literal, to distinguish calls from similar text.
    """
    calls = []
    for tool in tools:
        called = json.dumps(tool.name, ensure_ascii=False)
        named = f'"{name}": {called}, "{member}": '
        opened = in_order(begin, first, named) if first != EMPTY else f"{begin}{named}"
        calls.append(in_order(opened, tool.arguments, "}"))
    return one_of(*calls)


def json_calls(call: Node, *, parallel: bool, begin: str = "[") -> Node:
    """Returns the grammar of a list of calls. `begin` is the text that opens the list: empty if the
    "[" comes before this grammar."""
    return in_order(begin, several(call, ", ") if parallel else call, "]")


def read_calls(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads one call or a list of calls, and returns whether they were complete. Malformed calls
    are handled as by `read_call`."""
    opening += yield from scan.space()
    if not (yield from scan.take("[")):
        return (yield from read_call(scan, out, opening, known))
    return (yield from read_list(scan, out, opening + "[", partial(read_call, known=known)))


def read_call(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads a call and returns whether its arguments were complete.

    Once the name is known, arguments are emitted as they arrive. If the text is malformed before
    that, it becomes content, including `opening`; if later, the call ends there. Other keys are
    skipped; unknown keys before the name mean that the JSON is not a call. Missing, null or ""
    arguments become `{}`, and arguments in a string are decoded. The whole call may be the value of
    `function` in an object.

    Args:
        opening: the markup read before the call.
        known: the allowed function names; other names are not calls; None = any name.
    """
    call = _Call(out, opening, scan.record(), known)
    is_whole = yield from _read_members(scan, call)
    if is_whole and not call.has_begun:
        call.begin()
        call.arguments("{}")
        call.is_complete = True
    if not call.has_begun:
        out.broken(opening + scan.recorded(call.mark))
        return False
    out.end(complete=call.is_complete)
    return call.is_complete


class _Call:
    """The parts of a call that have been read so far."""

    def __init__(
        self, out: PieceCollector, opening: str, mark: int, known: Collection[str] | None
    ) -> None:
        self._out = out
        self._opening = opening
        self.mark = mark
        self._known = known
        self._waiting: list[str] = []
        self.name: str | None = None
        self.has_begun = False
        self.is_complete = False

    def begin(self) -> None:
        assert self.name is not None
        self._out.begin(self.name, self._opening, self.mark)
        self.has_begun = True

    def arguments(self, text: str) -> None:
        if self.has_begun:
            self._out.arguments(text)
        else:
            self._waiting.append(text)

    def set_name(self, name: str | None) -> bool:
        """Sets the name, and returns whether it is allowed."""
        if not name or (self._known is not None and name not in self._known):
            return False
        self.name = name
        if self._waiting:
            self.begin()
            self._out.arguments("".join(self._waiting))
        return True


def _skip(text: str) -> None:
    """Discards a value that is not part of the call."""


def _read_members(scan: Scanner, call: _Call, *, may_nest: bool = True) -> Incremental[bool]:
    yield from scan.space()
    if not (yield from scan.take("{")):
        return False
    while True:
        yield from scan.space()
        key = yield from read_string(scan)
        yield from scan.space()
        if key is None or not (yield from scan.take(":")):
            return False
        yield from scan.space()
        if key == _FUNCTION and call.name is None and may_nest:
            is_whole = yield from _read_function(scan, call)
        else:
            is_whole = yield from _read_member(scan, call, key)
        if not is_whole:
            return False
        yield from scan.space()
        if (yield from scan.take("}")):
            return call.name is not None
        if not (yield from scan.take(",")):
            return False


def _read_function(scan: Scanner, call: _Call) -> Incremental[bool]:
    """Reads a function's name, or an object with the call."""
    if (yield from scan.peek()) == '"':
        return call.set_name((yield from read_string(scan)))
    return (yield from _read_members(scan, call, may_nest=False))


def _read_member(scan: Scanner, call: _Call, key: str) -> Incremental[bool]:
    if key in _NAMES and call.name is None:
        return call.set_name((yield from read_string(scan)))
    if key not in _ARGUMENTS or call.is_complete:
        is_known = call.name is not None or key in _OTHERS
        return is_known and (yield from copy_json(scan, _skip))
    for empty in ("null", '""'):
        if (yield from scan.take(empty)):
            return True
    first = yield from scan.peek()
    if first == '"':
        return (yield from _read_quoted_arguments(scan, call))
    if first != "{":
        return False
    if call.name is not None:
        call.begin()
    call.is_complete = yield from copy_json(scan, call.arguments)
    return call.is_complete


def _read_quoted_arguments(scan: Scanner, call: _Call) -> Incremental[bool]:
    """Reads arguments that are given as a JSON string; they are emitted only when complete, or when
    a limit has cut them."""
    if call.name is not None:
        call.begin()
    mark = scan.record()
    pieces: list[str] = []
    is_whole = yield from copy_string(scan, pieces.append)
    written = scan.recorded(mark)
    if not is_whole:
        last = pieces.pop()
        pieces += ['"'] if last.startswith("\\") else [last, '"']  # the escape may be incomplete
    text = json.loads("".join(pieces))
    arguments = to_json(text, JSON) if is_whole else beginning_of_json(text)
    if arguments is None or not f"{arguments.lstrip()}{{".startswith("{"):
        scan.put_back(written)  # malformed, not only cut by a limit
        return False
    call.arguments(arguments)
    call.is_complete = is_whole
    return is_whole


class CallTags(NamedTuple):
    """The tags around calls.

    Attributes:
        begin: the tag before calls.
        end: the tag after calls; "" = none.
        kind: a second tag after `begin`, which marks tool calls; "" = none.
        also: further tags that may begin calls.
    """

    begin: str
    end: str
    kind: str = ""
    also: tuple[str, ...] = ()


def tagged_json(
    name: str,
    call_tags: CallTags,
    *,
    is_list: bool = True,
    keys: tuple[str, str] = ("name", "arguments"),
    first: Node = EMPTY,
    line: Node | str = "",
) -> ToolFormat:
    """Returns a format. Its parser accepts one call or a list of calls after each tag.

    Args:
        is_list: whether the calls are in a list after one tag; otherwise each has its own tags.
        keys: the keys of the function's name and arguments.
        first: the grammar of the text before the name in a call.
        line: the text between tags and JSON.
    """
    begin, end, kind, also = call_tags

    def read(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
        if kind:
            if not (yield from scan.take(kind)):
                out.broken(opening)
                return
            opening += kind
        if (yield from read_calls(scan, out, opening)) and end:
            yield from read_end(scan, out, end)

    def grammar(choice: CallChoice) -> Node:
        call = json_call(choice.tools, keys[1], keys[0], first)
        calls = json_calls(call, parallel=choice.parallel) if is_list else call
        begun = in_order(Tag(kind), line) if kind else line
        rest = in_order(begun, calls, *([line, Tag(end)] if end else []))
        return tagged_calls(choice, begin, rest, between=None if is_list else MAYBE_LINE_BREAK)

    return ToolFormat(
        name,
        tags=tuple(filter(None, (begin, *also, kind, end))),
        parse=TaggedCalls((begin, *also), read),
        grammar=grammar,
    )
