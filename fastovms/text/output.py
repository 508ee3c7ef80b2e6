"""Splits a model's text into content, reasoning and tool calls, incrementally."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.grammar_tree import EMPTY, Answer, Node, in_order, one_of
from fastovms.params import Grammar, GrammarKind
from fastovms.text.detokenizer import LocatingDetokenizer
from fastovms.text.headed_messages import HeadedMessages, parse_messages
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.reasoning import ReasoningFormat, ReasoningMarkup, Tags, reasoning_before_calls
from fastovms.text.scanning import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Incremental,
    IncrementalParser,
    OutputParser,
    Piece,
    PieceCollector,
    PlainParser,
    Scanner,
    joined,
)
from fastovms.text.stop import StopSearch
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat

INPUT: Final = "input"
"""The name of the string argument."""

_OPENING: Final = ("{", f'"{INPUT}"', ":", '"')
_HEX: Final = "[0-9a-fA-F]"
_HIGH: Final = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW: Final = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_WHOLE: Final = re.compile(
    rf'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB]){_HEX}{{4}}|{_HIGH}{_LOW}'
    rf"|{_HIGH}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F]))*"
)
"""The part of a JSON string that can be decoded before the rest arrives. A character may be
escaped as two surrogates (RFC 8259, 7): the first is matched only with the second, or if none
follows."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def input_parameters(pattern: str | None = None) -> dict[str, Any]:
    """Returns the JSON schema of the function that represents a custom tool. `pattern` is a regular
    expression that the whole text must match; None = any text."""
    text: dict[str, Any] = {"type": "string"}
    if pattern is not None:
        text["pattern"] = f"^(?:{pattern})$"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


def input_arguments(text: str) -> str:
    """Returns the function arguments, as JSON, for a custom tool's text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class InputReader:
    """Extracts a custom tool's text from the arguments of one call, incrementally. If the arguments
    do not begin with the expected markup, the text is reported only at the end."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._rest = ""
        self._before_text = list(_OPENING)
        self._has_text = True
        self._is_complete = False

    def push(self, arguments: str) -> str:
        """Adds a piece of the arguments' JSON and returns the new part of the text."""
        if self._is_complete:
            return ""
        if self._before_text:
            self._seen.append(arguments)
            self._open(arguments)
        else:
            self._rest += arguments
        return "" if self._before_text else self._read()

    def finish(self, *, complete: bool) -> str:
        """Ends the arguments and returns the rest of the text. `complete` is whether the arguments
        are complete."""
        if not self._before_text or not complete:
            return ""
        arguments = "".join(self._seen)
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if isinstance(read, Mapping) and not read:
            return ""
        text = read.get(INPUT) if isinstance(read, Mapping) else None
        return _encodable(text) if isinstance(text, str) else arguments

    def _open(self, arguments: str) -> None:
        """Skips the markup before the text, if there is any."""
        if not self._has_text:
            return
        self._rest += arguments
        while self._before_text:
            part = self._before_text[0]
            self._rest = self._rest.lstrip()
            if not self._rest.startswith(part):
                self._has_text = part.startswith(self._rest)
                return
            self._rest = self._rest.removeprefix(part)
            self._before_text.pop(0)

    def _read(self) -> str:
        found = _WHOLE.match(self._rest)
        assert found is not None
        self._rest = self._rest[found.end() :]
        self._is_complete = self._rest.startswith('"')
        return _encodable(json.loads(f'"{found[0]}"', strict=False))


def _encodable(text: str) -> str:
    """Returns the text with lone surrogates replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class CustomCallParser:
    """Implements `OutputParser` around another parser, and converts calls of custom tools. `names`
    are the functions that represent custom tools.

    The model calls such a tool as a function with one string argument, which every tool-call format
    supports.
    """

    def __init__(self, parser: OutputParser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._reader: InputReader | None = None

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    @property
    def content_end(self) -> int:
        return self._parser.content_end

    def push(self, text: str) -> Sequence[Piece]:
        return list(self._converted(self._parser.push(text)))

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        return list(self._converted(self._parser.finish(is_cut=is_cut)))

    def _converted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            match piece:
                case CallBegin(name=name):
                    self._reader = InputReader() if name in self._names else None
                    yield piece
                case CallArguments(call_index=index, text=arguments) if self._reader is not None:
                    if text := self._reader.push(arguments):
                        yield CallArguments(index, text)
                case CallEnd(call_index=index, complete=complete) if self._reader is not None:
                    if text := self._reader.finish(complete=complete):
                        yield CallArguments(index, text)
                    yield piece
                case _:
                    yield piece


def call_grammar(
    tool_format: ToolFormat,
    reasoning_format: ReasoningFormat | None,
    choice: CallChoice,
    *,
    prompt: str,
) -> Grammar:
    """Returns the grammar that enforces the schemas of tool-call arguments. If calls are required,
    the answer is only valid calls. Otherwise text is free until a call begins; such a grammar may
    be dropped if it cannot be compiled. Raises InvalidField if a schema is not supported in the
    model's tool-call format."""
    calls = tool_format.grammar(choice)
    if reasoning_format is None:
        tree = calls
    elif isinstance(reasoning_format.parse, ReasoningMarkup):
        tree = reasoning_before_calls(
            reasoning_format.parse,
            calls,
            is_inside=opens_reasoning(reasoning_format, prompt),
            is_required=choice.required,
            is_strict=choice.strict,
        )
    else:
        # If no call is required, messages of every kind are allowed.
        tree = in_order(_reasoning(reasoning_format, prompt) if choice.required else EMPTY, calls)
    return Grammar(GrammarKind.CALLS, "", "tools", tree)


def answer_grammar(
    grammar: Grammar,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    calls: tuple[ToolFormat, CallChoice] | None = None,
) -> Grammar:
    """Returns a grammar that constrains the answer, but not the reasoning before it. `calls` are
    the tool calls that are allowed instead of the answer; None = none."""
    if reasoning_format is None and calls is None:
        return grammar
    answer: Node = Answer()
    if reasoning_format is not None:
        answer = in_order(reasoning_format.open_answer, answer)
    if calls is not None:
        tool_format, choice = calls
        answer = one_of(answer, tool_format.grammar(replace(choice, required=True)))
    return replace(grammar, tree=in_order(_reasoning(reasoning_format, prompt), answer))


def _reasoning(reasoning_format: ReasoningFormat | None, prompt: str) -> Node:
    if reasoning_format is None:
        return EMPTY
    is_inside = opens_reasoning(reasoning_format, prompt)
    return reasoning_format.rest if is_inside else reasoning_format.before_answer


@dataclass(frozen=True, slots=True)
class TaggedAnswer:
    """The markup of one request's answer.

    Attributes:
        calls: the tool-call format; None = calls are content.
        reasoning: the reasoning tags; None = reasoning is content.
        is_inside: whether the answer begins within reasoning.
    """

    calls: TaggedCalls | None
    reasoning: ReasoningMarkup | None
    is_inside: bool

    def parse(self, scan: Scanner, out: PieceCollector) -> Incremental[None]:
        """Parses an answer to its end: reasoning, if it comes first, and the rest."""
        loose: list[str] = []
        if self.reasoning is not None:
            loose = yield from self._read_first_reasoning(scan, out, self.reasoning)
        if self.calls is not None and self.calls.bare:
            yield from self._read_bare_calls(scan, out, self.calls)
        begins = self.calls.begins if self.calls is not None else ()
        stops = (*begins, *loose, *self._reasoning_begin_tags)
        if not stops:
            yield from scan.rest(out.content)
            return
        while found := (yield from scan.until(stops, out.content)):
            if found in begins and self.calls is not None:
                yield from self.calls.read(scan, out, found)
            elif found not in loose:
                scan.put_back(found)
                tags = yield from self._take_begin(scan)
                assert tags is not None
                yield from self._read_reasoning(scan, out, *tags)

    @property
    def _reasoning_begin_tags(self) -> list[str]:
        """Returns the begin tags of reasoning, including those after the answer's begin tag. A tag
        that is a prefix of another one represents both."""
        if self.reasoning is None or not self.reasoning.anywhere:
            return []
        begins = [begin for begin, _ in self.reasoning.pairs]
        return [
            b for b in begins if not any(b != other and b.startswith(other) for other in begins)
        ]

    def _read_first_reasoning(
        self, scan: Scanner, out: PieceCollector, reasoning: ReasoningMarkup
    ) -> Incremental[list[str]]:
        """Reads reasoning, if it comes first, and returns the tags that count as markup in the rest
        even if unpaired."""
        space = yield from scan.space()
        tags = yield from self._take_begin(scan)
        loose = []
        if reasoning.anywhere:
            loose = [its_end for _, its_end in reasoning.pairs] + list(reasoning.answer or ())
        if tags is None and not self.is_inside:
            out.content(space)
            return loose
        begin, end = tags or ("", reasoning.pairs[0][1])
        if not (yield from self._read_reasoning(scan, out, begin, end)):
            loose.append(end)  # a call ended the reasoning before its end tag
        elif reasoning.answer is not None and not reasoning.anywhere:
            space = yield from scan.space()
            if (yield from scan.take(reasoning.answer[0])):
                loose.append(reasoning.answer[1])
            else:
                out.content(space)
        return loose

    def _take_begin(self, scan: Scanner) -> Incremental[Tags | None]:
        """Reads a begin tag of reasoning and returns its pair of tags; None = no reasoning
        begins."""
        for tags in self.reasoning.pairs if self.reasoning is not None else ():
            if (yield from scan.take(tags[0], is_first=True)):
                return tags
        return None

    def _read_reasoning(
        self, scan: Scanner, out: PieceCollector, begin: str, end: str
    ) -> Incremental[bool]:
        """Reads reasoning to its end tag, or to the end of the text. Returns False if a tool call
        within the reasoning ends it. A begin tag at which the model ends the text is content."""
        begins = self.calls.begins if self.calls and self.calls.end_reasoning else ()
        out.begin_reasoning()
        if not ((yield from scan.peek()) or scan.is_cut):
            out.end_reasoning()
            out.content(begin)
            return True
        while found := (yield from scan.until((end, *begins), out.reasoning)):
            if found == end or self.calls is None:
                break
            yield from self.calls.read(scan, out, found)
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
                yield from calls.read(scan, out, "")
                return


_LOOK_BACK = 200
"""The number of characters at a prompt's end that show whether reasoning has been opened."""


def output_parser(
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    tools: Sequence[Tool],
) -> OutputParser:
    """Returns a new parser for one sample.

    Args:
        tool_format: the model's tool-call format; None = calls are content.
        reasoning_format: the model's reasoning format; None = reasoning is content.
        prompt: the rendered prompt. If its end has opened reasoning, the answer begins within
            reasoning.
        tools: the tools of the request. Without tools, calls are content.
    """
    if not tools:
        tool_format = None
    if tool_format is None and reasoning_format is None:
        return PlainParser()
    is_inside = reasoning_format is not None and opens_reasoning(reasoning_format, prompt)
    calls = tool_format.parse if tool_format is not None else None
    reasoning = reasoning_format.parse if reasoning_format is not None else None
    for form in (calls, reasoning):
        if isinstance(form, HeadedMessages):
            parse = partial(
                parse_messages,
                form=form,
                reports_calls=tool_format is not None,
                reports_reasoning=reasoning_format is not None,
                is_inside=is_inside,
            )
            return IncrementalParser(parse, tools)
    answer = TaggedAnswer(
        calls if isinstance(calls, TaggedCalls) else None,
        reasoning if isinstance(reasoning, ReasoningMarkup) else None,
        is_inside,
    )
    return IncrementalParser(answer.parse, tools)


def check_formats(tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None) -> None:
    """Checks that a tool-call format and a reasoning format are compatible. Raises
    ConfigurationError if the formats are incompatible."""
    if tool_format is None or reasoning_format is None:
        return
    forms = [found.parse for found in (tool_format, reasoning_format)]
    if forms[0] is not forms[1] and any(isinstance(form, HeadedMessages) for form in forms):
        raise ConfigurationError(
            f"the tool parser {tool_format.name} and the reasoning parser "
            f"{reasoning_format.name} cannot be used together"
        )


def kept_tags(
    tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None
) -> frozenset[str]:
    """Returns the texts that must be kept in the decoded text even if they are special tokens."""
    formats = (tool_format, reasoning_format)
    return frozenset(tag for found in formats if found is not None for tag in found.tags)


def leaves_reasoning_open(reasoning_format: ReasoningFormat, answer: str) -> bool:
    """Returns whether the beginning of an answer, which the model must continue, ends within
    reasoning."""
    at = answer.rfind(reasoning_format.begin)
    form = reasoning_format.parse
    ends = (
        [end for _, end in form.pairs]
        if isinstance(form, ReasoningMarkup)
        else reasoning_format.tags
    )
    rest = answer[at + len(reasoning_format.begin) :]
    return at >= 0 and not any(end in rest for end in ends)


def opens_reasoning(reasoning_format: ReasoningFormat, prompt: str) -> bool:
    """Returns whether an answer to the prompt begins within reasoning."""
    prompt = prompt[-_LOOK_BACK:].rstrip()
    if reasoning_format.end is not None:
        return not prompt.endswith(reasoning_format.end)
    return prompt.endswith(reasoning_format.begin)


def content_of(new_parser: Callable[[], OutputParser], text: str) -> str:
    """Returns the content of a text."""
    parser = new_parser()
    pieces = [*parser.push(text), *parser.finish(is_cut=False)]
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


class TextDelta(NamedTuple):
    """The result of pushing tokens.

    Attributes:
        text: new text, often empty; if only content is searched, up to the end of the stop string.
        stop: the stop string that ended the text; None = none. Later pushes add nothing.
        num_tokens: the number of tokens pushed so far, or up to the one that completed the stop
            string, which may be fewer than were reported before.
        pieces: the pieces found by the parser, if there is one.
    """

    text: str
    stop: str | None
    num_tokens: int
    pieces: Sequence[Piece] = ()


class TextStream:
    """Detokenizes a sample, ends it at a stop string, and parses its text.

    Args:
        stop: non-empty strings.
        include_stop: whether to keep the stop string at the end of the text.
        min_tokens: a stop string that is complete within this number of tokens does not end the
            text.
        parser: finds pieces in the text; it receives the text of one token at a time, so the result
            does not depend on how many tokens come at once.
        stop_in_reasoning: whether a stop string also ends the text in reasoning and tool calls;
            otherwise only in content.

    Attributes:
        num_reasoning_tokens: the number of reasoning tokens found so far.
    """

    __slots__ = (
        "_detokenizer",
        "_is_of_content",
        "_num_tokens",
        "_parser",
        "_search",
        "num_reasoning_tokens",
    )

    def __init__(
        self,
        detokenizer: LocatingDetokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        parser: OutputParser | None = None,
        stop_in_reasoning: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        is_parsed = parser is not None and not isinstance(parser, PlainParser)
        self._is_of_content = is_parsed and not stop_in_reasoning
        self._search = StopSearch(stop, include_stop, min_tokens) if stop else None
        self._parser = parser
        self._num_tokens = 0
        self.num_reasoning_tokens = 0

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Adds tokens, without the end-of-text token."""
        search = self._search
        if search is None and self._parser is None:
            self._num_tokens += len(token_ids)
            return TextDelta(self._detokenizer.push(token_ids), None, self._num_tokens)
        texts: list[str] = []
        pieces: list[Piece] = []
        for token_id in token_ids:
            if search is not None and search.stop is not None:
                break
            self._num_tokens += 1
            text = self._searched(self._detokenizer.push((token_id,)))
            texts.append(text)
            if self._parser is not None:
                pieces += self._cut(self._parser.push(text))
                self.num_reasoning_tokens += self._parser.in_reasoning
                if search is not None and search.stop is not None and not self._is_of_content:
                    pieces += self._parser.finish(is_cut=False)
        if len(pieces) > 1:
            pieces = joined(pieces)
        return self._delta("".join(texts), pieces)

    def flush(self, *, is_cut: bool = True) -> TextDelta:
        """Ends the text and returns the text that was held back, unless it completes a stop string.
        `is_cut` is whether a limit ended the text."""
        text = self._searched(self._detokenizer.flush())
        if self._search is not None and not self._is_of_content:
            text += self._search.flush()
        pieces: Sequence[Piece] = ()
        if self._parser is not None:
            found = [*self._parser.push(text), *self._parser.finish(is_cut=is_cut)]
            pieces = [*self._cut(found), *self._held()]
        return self._delta(text, pieces)

    def _delta(self, text: str, pieces: Sequence[Piece]) -> TextDelta:
        search = self._search
        if search is None or search.stop is None:
            return TextDelta(text, None, self._num_tokens, pieces)
        if self._is_of_content:
            text = text[: max(0, len(text) - (search.num_decoded - search.end))]
        return TextDelta(text, search.stop, search.num_tokens, pieces)

    def _searched(self, text: str) -> str:
        """Returns the part of decoded text that may be shown or parsed."""
        search = self._search
        if search is None:
            return text
        search.add_tokens(text, self._detokenizer.starts)
        return text if self._is_of_content else search.search(text, search.num_decoded)

    def _cut(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Returns the pieces up to the first stop string in content. A stop string does not extend
        across a tool call or reasoning."""
        search = self._search
        if search is None or not self._is_of_content:
            return pieces
        assert self._parser is not None
        found: list[Piece] = []
        for piece in pieces:
            if search.stop is not None:
                break
            if not isinstance(piece, Content):
                found += [*self._held(), piece]
                continue
            text = search.search(piece.text, self._parser.content_end)
            found += [Content(text)] if text else []
        return found

    def _held(self) -> Sequence[Piece]:
        """Ends the open content and returns its held-back text."""
        search = self._search
        if search is None or not self._is_of_content or search.stop is not None:
            return ()
        text = search.flush()
        return [Content(text)] if text else ()
