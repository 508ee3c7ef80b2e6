"""Reads calls that are written as elements, each argument one of its own:
`<function=add><parameter=a>1</parameter></function>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastovms.grammar_tree import (
    ANY_TEXT,
    EMPTY,
    MAYBE_LINE_BREAK,
    Json,
    Node,
    OtherTag,
    Regex,
    Repeat,
    Tag,
    TextBefore,
    in_order,
    one_of,
    optional,
)
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import copy_json, escape
from fastovms.text.scanning.parameters import (
    ANY_TYPE,
    Parameter,
    Parameters,
    value_of,
)
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner
from fastovms.text.scanning.text_values import constants, name_patterns, text_body
from fastovms.text.scanning.tool import Tool

_CDATA = "<![CDATA["
_CDATA_END = "]]>"
_JSON_BEGINS = ("{", "[", '"')
_QUOTES = ('"', "'")
_KIND = re.compile(r"""(.*?)\s+string\s*=\s*["']?(true|false)["']?\s*""")


@dataclass(frozen=True, slots=True)
class XmlForm:
    """How a format writes elements.

    Attributes:
        function: what stands before and after a function's name. Quotes around a name are
            written as here; any, or none, are read.
        parameter: the same of a parameter.
        value: what stands before a value, if its parameter's tag does not do.
        line: what stands around a value: a line break or nothing.
        trims_lines: whether one line break at either end of a value is not part of it in any case.
        gap: what stands after a tag that is not beside a value.
        has_cdata: whether a value may be wrapped in `<![CDATA[` and `]]>`.
        mends_ends: whether a value whose end tag is missing ends where the next parameter, or the
            function's end, begins a line.
        kinds: what stands behind a parameter's name where that says whether its value is a string:
            one for strings, one for others.
        tokens: tags, or beginnings of tags, that may be special tokens.
    """

    function: tuple[str, str]
    function_end: str
    parameter: tuple[str, str]
    parameter_end: str
    value: str = ""
    line: str = ""
    trims_lines: bool = True
    gap: str = ""
    has_cdata: bool = False
    mends_ends: bool = False
    kinds: tuple[str, str] | None = None
    tokens: tuple[str, ...] = ()

    @property
    def function_begin(self) -> str:
        """Returns what stands before a function's name and the quote before it."""
        return self.function[0].removesuffix('"')

    @property
    def parameter_begin(self) -> str:
        """Returns the same of a parameter."""
        return self.parameter[0].removesuffix('"')

    @property
    def late_ends(self) -> tuple[str, ...]:
        """Returns what ends a value that has no end tag, a line break first."""
        if not self.mends_ends:
            return ()
        return (f"\n{self.parameter_begin}", f"\n{self.function_end}")


def read_call(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], form: XmlForm, opening: str
) -> Incremental[bool]:
    """Reads a call from its function's name on and says whether it was a whole one.

    String arguments are passed on as they are generated, others as soon as they are whole, since
    what a text stands for may depend on its end. What breaks before the first argument, `opening`
    included, becomes content; what breaks later ends the call, and the rest is next to be read.

    Args:
        opening: the markup that has been read before it.
    """
    scan.record()
    name = yield from read_name(scan, form.function[1].removeprefix('"'))
    return (yield from read_named_call(scan, out, tools, form, name, opening))


def read_named_call(
    scan: Scanner,
    out: PieceCollector,
    tools: Sequence[Tool],
    form: XmlForm,
    name: str,
    opening: str,
) -> Incremental[bool]:
    """Does the same from behind the function's name, which has been recorded."""
    yield from scan.space()
    starts = name and (yield from scan.starts(form.parameter_begin, form.function_end))
    if not starts:
        out.broken(opening + scan.recorded())
        return False
    scan.recorded()
    out.begin(name)
    parameters = next((t.known_parameters for t in tools if t.name == name), Parameters())
    is_whole = yield from _read_arguments(scan, out, parameters, form)
    if is_whole:
        out.arguments("}")
    out.end(complete=is_whole)
    return is_whole


def read_name(scan: Scanner, end: str) -> Incremental[str]:
    """Reads a name, which may stand in quotes, and the markup behind it. Returns "" if there is no
    name."""
    return unquoted((yield from _read_tag(scan, end)))


def _read_tag(scan: Scanner, end: str) -> Incremental[str]:
    """Reads the rest of a tag, which has no tags and no line breaks in it."""
    pieces: list[str] = []
    stops = (end, "\n") if end.startswith("<") else (end, "<", "\n")
    found = yield from scan.until(stops, pieces.append)
    if found is not None and found != end:
        scan.put_back(found)
        return ""
    rest = "".join(pieces)
    return rest if found and "<" not in rest else ""


def unquoted(name: str) -> str:
    """Returns a name without white space and quotes around it."""
    name = name.strip()
    return name.strip(name[0]).strip() if name.startswith(_QUOTES) else name


def _read_arguments(
    scan: Scanner, out: PieceCollector, parameters: Parameters, form: XmlForm
) -> Incremental[bool]:
    told: set[str] = set()
    while True:
        yield from scan.space()
        if (yield from scan.take(form.function_end)):
            if not told:
                out.arguments("{")
            return True
        if not (yield from scan.take(form.parameter_begin)):
            return False
        tag = yield from _read_tag(scan, form.parameter[1].removeprefix('"'))
        kind = _KIND.fullmatch(tag) if form.kinds else None
        name = unquoted(tag if kind is None else kind[1])
        if not name or not (yield from _take_value_tag(scan, form)):
            return False
        emit = out.arguments
        if name in told:  # the first one counts
            emit = _skip
        emit(f'{"," if told else "{"}"{escape(name)}":')
        told.add(name)
        parameter = parameters.find(name)
        may_be_text = parameter is None or "string" in parameter.types
        says_text = kind is not None and kind[2] == "true"
        is_text = (says_text and may_be_text) or (parameter is not None and parameter.is_text)
        if is_text:
            is_whole = yield from _copy_text(scan, emit, form)
        else:
            is_whole = yield from _copy_other(scan, emit, form, parameter)
        if not is_whole:
            return False


def _take_value_tag(scan: Scanner, form: XmlForm) -> Incremental[bool]:
    if not form.value:
        return True
    yield from scan.space()
    return (yield from scan.take(form.value))


def _copy_other(
    scan: Scanner, emit: Emit, form: XmlForm, parameter: Parameter | None
) -> Incremental[bool]:
    """Passes on a value whose type its text decides. JSON, where the schema asks for it, ends where
    it ends, since a string in it may hold the tag behind it. What only begins like JSON is read
    again, up to the tag; at the end of the text that may be much, and happens once."""
    if parameter is not None and not parameter.is_free and not scan.is_ended:
        scan.record()
        yield from scan.space()
        if (yield from scan.peek()) in _JSON_BEGINS:
            pieces: list[str] = []
            is_json = yield from copy_json(scan, pieces.append)
            yield from scan.space()
            if is_json and (yield from scan.take(form.parameter_end)):
                scan.recorded()
                emit(value_of("".join(pieces), parameter.types))
                return True
        scan.put_back(scan.recorded())
    pieces = []
    is_whole = yield from _read_text(scan, pieces.append, form)
    if is_whole:
        emit(value_of("".join(pieces), parameter.types if parameter is not None else ANY_TYPE))
    return is_whole


def _skip(text: str) -> None:
    """Passes on nothing of a repeated argument."""


def _copy_text(scan: Scanner, emit: Emit, form: XmlForm) -> Incremental[bool]:
    emit('"')
    is_whole = yield from _read_text(scan, lambda text: emit(escape(text)), form)
    if is_whole:
        emit('"')
    return is_whole


def _read_text(scan: Scanner, emit: Emit, form: XmlForm) -> Incremental[bool]:
    """Passes on a value without the line breaks around it, and reads the tag behind it."""
    if not form.trims_lines:
        return (yield from _read_to_end(scan, emit, form, (form.parameter_end,)))
    yield from scan.take("\n")
    if form.has_cdata and (yield from scan.take(_CDATA)):
        if (yield from scan.until((_CDATA_END,), emit)) is None:
            return False
        yield from scan.space()
        return (yield from scan.take(form.parameter_end))
    # A line break is held until it is known that it is not the last.
    ends = (f"\n{form.parameter_end}", form.parameter_end)
    return (yield from _read_to_end(scan, emit, form, ends))


def _read_to_end(
    scan: Scanner, emit: Emit, form: XmlForm, ends: tuple[str, ...]
) -> Incremental[bool]:
    end = yield from scan.until((*ends, *form.late_ends), emit)
    if end in form.late_ends:
        scan.put_back(end)
    return end is not None


def xml_calls(tools: Sequence[Tool], form: XmlForm, *, begun: str = "") -> Node:
    """Returns the grammar of a call to one of `tools`.

    Args:
        begun: what stands there already of the function's tag.

    Raises:
        InvalidField: a schema cannot be kept to in this form.
    """
    calls = []
    for tool in tools:
        begin = f"{form.function[0]}{tool.name}{form.function[1]}{form.gap}".removeprefix(begun)
        arguments = xml_arguments(tool, form)
        calls.append(in_order(_markup(form, begin), arguments, Tag(form.function_end)))
    return one_of(*calls)


def xml_arguments(tool: Tool, form: XmlForm) -> Node:
    """Returns the grammar of a call's arguments. It raises as `xml_calls` does."""
    arguments = []
    found = tool.enforced_parameters()
    for parameter in found.values():
        argument = _argument(parameter, form)
        arguments.append(argument if parameter.is_required else optional(argument))
    others = [
        one
        for pattern, parameter in found.others
        for one in _others(parameter, name_patterns(_OTHER_NAME, pattern), tuple(found), form)
    ]
    return in_order(*arguments, Repeat(one_of(*others))) if others else in_order(*arguments)


def _markup(form: XmlForm, text: str) -> Node:
    """Returns the grammar of text in which tokens may stand for tags."""
    pieces = re.split(f"({'|'.join(map(re.escape, form.tokens))})", text) if form.tokens else [text]
    return in_order(*[Tag(piece) if piece in form.tokens else piece for piece in pieces])


def _argument(parameter: Parameter, form: XmlForm) -> Node:
    kind = form.kinds[not parameter.is_text] if form.kinds else ""
    begin = _markup(form, f"{form.parameter[0]}{parameter.name}{_name_end(form, kind)}")
    if form.value:
        begin = in_order(begin, MAYBE_LINE_BREAK, Tag(form.value))
    return in_order(begin, form.line, _value(parameter, form), form.gap)


def _name_end(form: XmlForm, kind: str) -> str:
    """Returns what stands behind a parameter's name, with what says whether it is a string."""
    if not form.kinds:
        return form.parameter[1]
    return f"{form.parameter[1][0]}{kind}{form.parameter[1][1:]}"


_OTHER_NAME = r"[^\s<>\"']([^<>\"'\n]*[^\s<>\"'])?"


def _others(
    parameter: Parameter, patterns: tuple[str, ...], names: tuple[str, ...], form: XmlForm
) -> list[Node]:
    """Returns grammars of an argument without a name in the schema. What stands before the name
    after the last token is one text with it, so that it is told from other names."""
    kinds = form.kinds or ("",)
    if form.kinds and not parameter.is_free:
        kinds = (form.kinds[not parameter.is_text],)
    found: list[Node] = []
    for kind in kinds:
        before, after = form.parameter[0], _name_end(form, kind)
        tokens = [token for token in form.tokens if token in before]
        cut = max((before.rfind(token) + len(token) for token in tokens), default=0)
        behind = [token for token in form.tokens if after.startswith(token)]
        end = Tag(after) if behind else EMPTY
        begin = OtherTag(before[cut:], patterns, "" if behind else after, names)
        start = in_order(_markup(form, before[:cut]), begin, end)
        if form.value:
            start = in_order(start, MAYBE_LINE_BREAK, Tag(form.value))
        is_json = form.kinds is not None and kind == form.kinds[1]
        value = _json(parameter, form) if is_json else _value(parameter, form)
        found.append(in_order(start, form.line, value, form.gap))
    return found


def _json(parameter: Parameter, form: XmlForm) -> Node:
    return in_order(Json.of(parameter.whole_schema), form.line, Tag(form.parameter_end))


def _value(parameter: Parameter, form: XmlForm) -> Node:
    """Returns the grammar of a value and the tag behind it."""
    end = in_order(form.line, Tag(form.parameter_end))
    if not parameter.is_text and not parameter.is_free:
        return _json(parameter, form)
    values = constants(parameter)
    if values is not None:
        return in_order(one_of(*values), end)
    body = text_body(parameter, form.parameter_end)
    if body != ANY_TEXT:
        unlike = _NO_MARKUP[form.has_cdata] if form.trims_lines and not form.line else ()
        return TextBefore(form.parameter_end, body.excluding(*unlike), gap=form.line)
    if not form.has_cdata:
        late = [rf"(.|\n)*{re.escape(end)}(.|\n)*" for end in form.late_ends]
        return TextBefore(form.parameter_end, ANY_TEXT.excluding(*late))
    cdata = in_order(_CDATA, TextBefore(_CDATA_END, ANY_TEXT), Tag(form.parameter_end))
    return one_of(TextBefore(form.parameter_end, _NOT_CDATA), cdata)


# A value that the reader would take for something else: line breaks at its ends are not part of
# it, and CDATA is unwrapped.
_NO_MARKUP = {
    False: (r"\n(.|\n)*", r"(.|\n)*\n"),
    True: (r"[\n<](.|\n)*", r"(.|\n)*\n"),
}
_NOT_CDATA = Regex(r"([^\n<](.|\n)*)?")
