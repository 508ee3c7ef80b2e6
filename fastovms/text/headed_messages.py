"""Parses answers that consist of messages with headers, as in OpenAI's harmony format: a header
says whether its message is reasoning, a tool call or content."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fastovms.text.scanning import Incremental, PieceCollector, Scanner


class MessageKind(Enum):
    """Whether a message is reasoning, a tool call or content."""

    REASONING = "reasoning"
    CALL = "call"
    CONTENT = "content"


class Header(NamedTuple):
    """The parsed content of a header. `function` is the called function."""

    kind: MessageKind
    function: str = ""


@dataclass(frozen=True, slots=True)
class HeadedMessages:
    """The message format of a model family.

    Attributes:
        begins: the tags that begin a message anywhere.
        more_begins: further tags that may begin a message at the start of the answer (the prompt
            may contain a part of the tag) and after another message.
        body: the tag that ends the header.
        ends: the tags that end a message.
        read_header: parses a header, given its text, its begin tag and the names of the allowed
            functions.
        read_call: parses the body of a tool call, possibly not to its end, given the function's
            name.
        header: matches the longest text that may belong to a header.
    """

    begins: Sequence[str]
    more_begins: Sequence[str]
    body: str
    ends: Sequence[str]
    read_header: Callable[[str, Collection[str]], Header]
    read_call: Callable[[Scanner, PieceCollector, str], Incremental[None]]
    header: re.Pattern[str]


def parse_messages(
    scan: Scanner,
    out: PieceCollector,
    form: HeadedMessages,
    *,
    reports_calls: bool,
    reports_reasoning: bool,
    is_inside: bool,
) -> Incremental[None]:
    """Parses an answer to its end. Text outside of messages is content; headers never are.

    Args:
        reports_calls: whether tool calls are reported; otherwise their arguments are content.
        reports_reasoning: whether reasoning is reported separately from content.
        is_inside: whether the answer begins within reasoning.
    """
    out.reports_calls = reports_calls
    functions = frozenset(tool.name for tool in out.tools) if reports_calls else frozenset()
    if is_inside:
        yield from _read_text(scan, out, form, is_reasoning=reports_reasoning)
    while True:
        space = yield from scan.space()
        begin = yield from _take_any(scan, (*form.begins, *form.more_begins))
        if begin is None:
            out.content(space)
            begin = yield from scan.until((*form.begins, *form.ends), out.content)
            if begin is None:
                return
            if begin in form.ends:
                continue
        opening = yield from _read_opening(scan, out, form, begin)
        if opening is None:
            continue
        header = form.read_header(opening, functions)
        if header.kind is MessageKind.CALL:
            yield from form.read_call(scan, out, header.function)
            space = yield from scan.space()
            if not (yield from _starts_message(scan, form)):
                out.content(space)
                yield from _read_to_end(scan, form, out.content)
            continue
        is_reasoning = header.kind is MessageKind.REASONING and reports_reasoning
        yield from _read_text(scan, out, form, is_reasoning=is_reasoning)


def _read_opening(
    scan: Scanner, out: PieceCollector, form: HeadedMessages, begin: str
) -> Incremental[str | None]:
    """Reads a header and the tag after it, and returns the header's text. If the tag is missing,
    the text after the header is read as the message. None = no header, or the header was cut by a
    limit. A header at which the model ends the text is content."""
    if begin == form.body:
        return begin
    pieces = [begin]
    end = yield from scan.until((form.body, *form.ends), pieces.append)
    opening = "".join([*pieces, end or ""])
    if end == form.body:
        return opening
    header = form.header.match(opening)
    rest = opening[header.end() if header else 0 :]
    text = rest.removesuffix(end or "").strip()
    is_cut = end is None and scan.is_cut and len(text.split()) <= 1
    if not text or text.startswith("<") or is_cut:
        if end is None:
            out.broken(opening)
        else:
            scan.put_back(end)
        return None
    scan.put_back(rest)
    return opening


def _read_text(
    scan: Scanner, out: PieceCollector, form: HeadedMessages, *, is_reasoning: bool
) -> Incremental[None]:
    if is_reasoning:
        out.begin_reasoning()
        yield from _read_to_end(scan, form, out.reasoning)
        out.end_reasoning()
    else:
        out.begin_content()
        yield from _read_to_end(scan, form, out.content)


def _read_to_end(
    scan: Scanner, form: HeadedMessages, emit: Callable[[str], None]
) -> Incremental[None]:
    """Reads a message to its end. The beginning of another message also ends it."""
    end = yield from scan.until((*form.ends, *form.begins), emit)
    if end in form.begins:
        scan.put_back(str(end))


def _starts_message(scan: Scanner, form: HeadedMessages) -> Incremental[bool]:
    if (yield from scan.starts(*form.begins)):
        return True
    return (yield from _take_any(scan, form.ends)) is not None


def _take_any(scan: Scanner, tags: Sequence[str]) -> Incremental[str | None]:
    for tag in tags:
        if (yield from scan.take(tag, is_first=True)):
            return tag
    return None
