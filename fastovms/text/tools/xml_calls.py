"""Parsers and grammars of calls in XML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    several,
)
from fastovms.text.parameters import (
    CallChoice,
    Parameter,
    Parameters,
    Tool,
    constants,
    find_parameters,
    name_patterns,
    text_body,
)
from fastovms.text.scanning import Emit, Incremental, PieceCollector, Scanner
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_next,
    tagged_calls,
)
from fastovms.text.values import copy_json, escape, value_of


def named_call(tools: Sequence[Tool], between: Node | str) -> Node:
    """Returns the grammar of a call to one of `tools`. `between` is the grammar of the markup
    between name and arguments."""
    return one_of(*[in_order(tool.name, between, tool.arguments) for tool in tools])


def read_arguments(
    scan: Scanner, out: PieceCollector, name: str, opening: str, ends: Sequence[str] = ()
) -> Incremental[bool]:
    """Reads the JSON arguments of a call. Returns whether they were complete.

    They are emitted as they arrive. If other text comes next, it becomes content, including
    `opening`, the markup read before.

    Args:
        ends: markup before which missing arguments count as `{}`, as at the end of the text.
    """
    opening += yield from scan.space()
    if not name:
        out.broken(opening)
        return False
    following = yield from scan.peek()
    if following == "{":
        out.begin(name, opening, scan.record())
        is_complete = yield from copy_json(scan, out.arguments)
        out.end(complete=is_complete)
        return is_complete
    is_empty = not following and not scan.is_cut
    if not is_empty and not (yield from scan.starts(*ends)):
        out.broken(opening)
        return False
    out.begin(name, opening, scan.record())
    out.arguments("{}")
    out.end(complete=True)
    return True


_ITEM = "item"
_JSON_BEGINS = ("{", "[", '"')
_MAX_DEPTH = 32
"""The maximum nesting of elements. Deeper elements are not a call."""

_NAME = re.compile(r"[^\s<>/]+")
_OTHER_NAME = r"[^\s<>/\"']+"


def read_elements(
    scan: Scanner, out: PieceCollector, mark: str, tool: Tool | None, end: str
) -> Incremental[str | None]:
    """Reads a call's arguments and the tag after them. Returns None if they were complete,
    otherwise the text of the malformed argument. Strings are emitted as they arrive, other values
    when complete.

    Args:
        mark: the text before every tag.
        tool: the function, if it is known.
        end: the tag, without the mark.
    """
    parameters = tool.known_parameters if tool is not None else Parameters()
    begin = "{"
    while True:
        argument = scan.record()
        yield from scan.space()
        is_marked = yield from scan.take(mark)
        if is_marked and (yield from scan.take(end)):
            scan.recorded(argument)
            out.arguments(begin if begin == "{" else "")
            out.arguments("}")
            return None
        name = (yield from _read_element_name(scan)) if is_marked else ""
        parameter = parameters.find(name)
        if name and parameter is not None and parameter.is_text:
            scan.recorded(argument)
            out.arguments(f'{begin}"{escape(name)}":"')
            if not (yield from _copy_element_text(scan, out.arguments, f"{mark}</{name}>")):
                return ""
            out.arguments('"')
        else:
            found = (yield from _read_value(scan, mark, name, parameter, 0)) if name else None
            text = scan.recorded(argument)
            if found is None:
                return text
            out.arguments(f'{begin}"{escape(name)}":{found}')
        begin = ","


def _read_element_name(scan: Scanner) -> Incremental[str]:
    """Reads a tag that begins an element and returns its name; "" = no element."""
    if not (yield from scan.take("<")):
        return ""
    pieces: list[str] = []
    yield from scan.run(_NAME, pieces.append)
    return "".join(pieces) if (yield from scan.take(">")) else ""


def _copy_element_text(scan: Scanner, emit: Emit, end: str) -> Incremental[bool]:
    return (yield from scan.until((end,), lambda text: emit(escape(text)))) is not None


def _read_value(
    scan: Scanner, mark: str, name: str, parameter: Parameter | None, depth: int
) -> Incremental[str | None]:
    """Reads an element after its name and returns its value as JSON; None = incomplete."""
    value = yield from _read_json(scan, f"{mark}</{name}>")
    if value is not None:
        return value_of(value, parameter)
    pieces: list[str] = []
    if (yield from scan.until((mark,), pieces.append)) is None or depth == _MAX_DEPTH:
        return None
    text = "".join(pieces)
    if (yield from scan.take(f"</{name}>")):
        return value_of(text, parameter)
    if text.strip():
        return None
    return (yield from _read_children(scan, mark, name, parameter, depth))


def _read_json(scan: Scanner, end: str) -> Incremental[str | None]:
    """Reads a JSON value and the tag after it, and returns the value's text; None = other text
    comes next, which is not read. The end of the JSON value is found by its syntax, because strings
    in it may contain the tag."""
    mark = scan.record()
    yield from scan.space()
    if (yield from scan.peek()) in _JSON_BEGINS:
        pieces: list[str] = []
        is_json = yield from copy_json(scan, pieces.append)
        yield from scan.space()
        if is_json and (yield from scan.take(end)):
            scan.recorded(mark)
            return "".join(pieces)
    scan.put_back(scan.recorded(mark))
    return None


def _read_children(
    scan: Scanner, mark: str, name: str, parameter: Parameter | None, depth: int
) -> Incremental[str | None]:
    """Reads the child elements of an element to its end, beginning after the mark of the first
    child."""
    schema: Mapping[str, Any] = parameter.whole_schema if parameter is not None else {}
    is_list = (
        parameter is not None and "array" in parameter.types and "object" not in parameter.types
    )
    items = find_parameters({**schema, "properties": {_ITEM: schema.get("items", {})}})
    children = items if is_list else find_parameters(schema)
    found: dict[str, list[str]] = {}
    while True:
        child = yield from _read_element_name(scan)
        if not child:
            return None
        value = yield from _read_value(scan, mark, child, children.find(child), depth + 1)
        if value is None:
            return None
        found.setdefault(child, []).append(value)
        yield from scan.space()
        if not (yield from scan.take(mark)):
            return None
        if (yield from scan.take(f"</{name}>")):
            break
    may_be_list = parameter is None or "array" in parameter.types
    if is_list or (may_be_list and found.keys() == {_ITEM} and _ITEM not in children):
        return f"[{','.join(value for values in found.values() for value in values)}]"
    members = [f'"{escape(key)}":{_joined(values)}' for key, values in found.items()]
    return f"{{{','.join(members)}}}"


def _joined(values: Sequence[str]) -> str:
    """Returns the only value, or a list if several elements have the same name."""
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"


def nested_elements(tool: Tool, mark: str) -> Node:
    """Returns the grammar of a call's arguments as nested elements. Values that are not strings are
    JSON. Raises InvalidField if a schema is not supported in this form."""
    arguments = []
    found = tool.enforced_parameters()
    for parameter in found.values():
        begin, end = f"{mark}<{parameter.name}>", f"{mark}</{parameter.name}>"
        argument = in_order(Tag(begin), _element_value(parameter, end))
        arguments.append(argument if parameter.is_required else optional(argument))
    for pattern, parameter in found.others:
        begun = OtherTag("<", name_patterns(_OTHER_NAME, pattern), ">", tuple(found))
        ended = Regex(rf"</{_OTHER_NAME}>")
        value: Node = Json.of(parameter.whole_schema)
        if parameter.is_text or parameter.is_free:
            value = TextBefore(mark, text_body(parameter, mark))
            arguments.append(Repeat(in_order(Tag(mark), begun, value, ended)))
        else:
            arguments.append(Repeat(in_order(Tag(mark), begun, value, Tag(mark), ended)))
    return in_order(*arguments)


def _element_value(parameter: Parameter, end: str) -> Node:
    if not parameter.is_text and not parameter.is_free:
        return in_order(Json.of(parameter.whole_schema), Tag(end))
    values = constants(parameter)
    if values is not None:
        return in_order(one_of(*values), Tag(end))
    body = text_body(parameter, end)
    return TextBefore(end, ANY_TEXT if body == ANY_TEXT else body)


_CDATA = "<![CDATA["
_CDATA_END = "]]>"
_QUOTES = ('"', "'")
_KIND = re.compile(r"""(.*?)\s+string\s*=\s*["']?(true|false)["']?\s*""")


@dataclass(frozen=True, slots=True)
class XmlForm:
    """The form of elements in an XML-like format.

    Attributes:
        function: the text before and after a function's name. Quotes around a name are written as
            here; the parser accepts any quotes, or none.
        parameter: the text before and after a parameter's name.
        value: the text before a value, if it is not part of the parameter's tag.
        line: the text around a value: a line break or nothing.
        trims_lines: whether one line break at either end of a value is always dropped.
        gap: the text after a tag that is not next to a value.
        has_cdata: whether a value may be wrapped in `<![CDATA[` and `]]>`.
        mends_ends: whether a value without an end tag ends at a line that begins with the next
            parameter or the function's end.
        kinds: the text after a parameter's name, if it says whether the value is a string: one for
            strings, one for others.
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
        """Returns the text before a function's name and the quote before it."""
        return self.function[0].removesuffix('"')

    @property
    def parameter_begin(self) -> str:
        """Returns the text before a parameter's name and the quote before it."""
        return self.parameter[0].removesuffix('"')

    @property
    def late_ends(self) -> tuple[str, ...]:
        """Returns the texts that end a value without an end tag, a line break first."""
        if not self.mends_ends:
            return ()
        return (f"\n{self.parameter_begin}", f"\n{self.function_end}")


def read_call(scan: Scanner, out: PieceCollector, form: XmlForm, opening: str) -> Incremental[bool]:
    """Reads a call, beginning with its function's name. Returns whether it was complete.

    String arguments are emitted as they arrive, others when complete, because their type may depend
    on their end. If the text is malformed before the first argument, it becomes content, including
    `opening`; if later, the call ends there. `opening` is the markup read before the call.
    """
    mark = scan.record()
    name = yield from read_name(scan, form.function[1].removeprefix('"'))
    return (yield from read_named_call(scan, out, form, name, opening, mark))


def read_named_call(
    scan: Scanner, out: PieceCollector, form: XmlForm, name: str, opening: str, mark: int
) -> Incremental[bool]:
    """Like `read_call`, but begins after the function's name, which must have been recorded since
    `mark`."""
    yield from scan.space()
    starts = name and (yield from scan.starts(form.parameter_begin, form.function_end))
    if not starts:
        out.broken(opening + scan.recorded(mark))
        return False
    out.begin(name, opening, mark)
    tool = out.tool(name)
    parameters = tool.known_parameters if tool is not None else Parameters()
    rest = yield from _read_arguments(scan, out, parameters, form)
    if rest is None:
        out.arguments("}")
    out.end(complete=rest is None, rest=rest or "")
    return rest is None


def read_name(scan: Scanner, end: str) -> Incremental[str]:
    """Reads a name, with or without quotes, and the markup after it. Returns "" if the name
    is missing."""
    return unquoted((yield from _read_tag(scan, end)))


def _read_tag(scan: Scanner, end: str) -> Incremental[str]:
    """Reads the rest of a tag, which contains no tags and no line breaks."""
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
) -> Incremental[str | None]:
    """Reads the arguments and the tag after them. Returns None if they were complete, otherwise the
    text of the malformed argument."""
    names: set[str] = set()
    while True:
        argument = scan.record()
        yield from scan.space()
        if (yield from scan.take(form.function_end)):
            scan.recorded(argument)
            if not names:
                out.arguments("{")
            return None
        name, says_text = yield from _read_parameter_tag(scan, form)
        if not name:
            return scan.recorded(argument)
        emit = out.arguments
        if name in names:  # repeated: the first value of a parameter counts
            emit = _skip
        head = f'{"," if names else "{"}"{escape(name)}":'
        names.add(name)
        parameter = parameters.find(name)
        may_be_text = parameter is None or "string" in parameter.types
        if (says_text and may_be_text) or (parameter is not None and parameter.is_text):
            scan.recorded(argument)
            emit(head)
            if not (yield from _copy_text(scan, emit, form)):
                return ""
            continue
        emit(head)
        # A long value follows, so report the call's name now.
        if (yield from scan.peek()) in ("{", "["):
            out.report()
        is_whole = yield from _copy_other(scan, emit, form, parameter)
        text = scan.recorded(argument)
        if not is_whole:
            return text


def _read_parameter_tag(scan: Scanner, form: XmlForm) -> Incremental[tuple[str, bool]]:
    """Reads the tag before a value. Returns the parameter's name ("" = no tag), and whether the tag
    marks the value as a string."""
    if not (yield from scan.take(form.parameter_begin)):
        return "", False
    tag = yield from _read_tag(scan, form.parameter[1].removeprefix('"'))
    kind = _KIND.fullmatch(tag) if form.kinds else None
    name = unquoted(tag if kind is None else kind[1])
    if not name or not (yield from _take_value_tag(scan, form)):
        return "", False
    return name, kind is not None and kind[2] == "true"


def _take_value_tag(scan: Scanner, form: XmlForm) -> Incremental[bool]:
    if not form.value:
        return True
    yield from scan.space()
    return (yield from scan.take(form.value))


def _copy_other(
    scan: Scanner, emit: Emit, form: XmlForm, parameter: Parameter | None
) -> Incremental[bool]:
    """Reads and emits a value whose type depends on its text. If the schema allows JSON, that is
    tried first. Text that only begins like JSON is read again up to the tag, at most once."""
    if parameter is not None and not parameter.is_free and not scan.is_ended:
        value = yield from _read_json(scan, form.parameter_end)
        if value is not None:
            emit(value_of(value, parameter))
            return True
    pieces: list[str] = []
    is_whole = yield from _read_text(scan, pieces.append, form)
    if is_whole:
        emit(value_of("".join(pieces), parameter))
    return is_whole


def _skip(text: str) -> None:
    """Discards the value of a repeated argument."""


def _copy_text(scan: Scanner, emit: Emit, form: XmlForm) -> Incremental[bool]:
    emit('"')
    is_whole = yield from _read_text(scan, lambda text: emit(escape(text)), form)
    if is_whole:
        emit('"')
    return is_whole


def _read_text(scan: Scanner, emit: Emit, form: XmlForm) -> Incremental[bool]:
    """Reads and emits a value without the line breaks around it, and reads the tag after it."""
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
    """Returns the grammar of a call to one of `tools`. Raises InvalidField if a schema is not
    supported in this form. `begun` is the part of the function's tag that is already written."""
    calls = []
    for tool in tools:
        begin = f"{form.function[0]}{tool.name}{form.function[1]}{form.gap}".removeprefix(begun)
        arguments = xml_arguments(tool, form)
        calls.append(in_order(_markup(form, begin), arguments, Tag(form.function_end)))
    return one_of(*calls)


def xml_arguments(tool: Tool, form: XmlForm) -> Node:
    """Returns the grammar of a call's arguments. Raises InvalidField like `xml_calls`."""
    arguments = []
    found = tool.enforced_parameters()
    for parameter in found.values():
        argument = _argument(parameter, form)
        arguments.append(argument if parameter.is_required else optional(argument))
    others = [
        one
        for pattern, parameter in found.others
        for one in _others(
            parameter, name_patterns(_OTHER_PARAMETER_NAME, pattern), tuple(found), form
        )
    ]
    return in_order(*arguments, Repeat(one_of(*others))) if others else in_order(*arguments)


def _markup(form: XmlForm, text: str) -> Node:
    """Returns the grammar of text in which tags may be special tokens."""
    pieces = re.split(f"({'|'.join(map(re.escape, form.tokens))})", text) if form.tokens else [text]
    return in_order(*[Tag(piece) if piece in form.tokens else piece for piece in pieces])


def _argument(parameter: Parameter, form: XmlForm) -> Node:
    kind = form.kinds[not parameter.is_text] if form.kinds else ""
    begin = _markup(form, f"{form.parameter[0]}{parameter.name}{_name_end(form, kind)}")
    if form.value:
        begin = in_order(begin, MAYBE_LINE_BREAK, Tag(form.value))
    return in_order(begin, form.line, _value(parameter, form), form.gap)


def _name_end(form: XmlForm, kind: str) -> str:
    """Returns the text after a parameter's name, with the marker of strings or of other values."""
    if not form.kinds:
        return form.parameter[1]
    return f"{form.parameter[1][0]}{kind}{form.parameter[1][1:]}"


_OTHER_PARAMETER_NAME = r"[^\s<>\"']([^<>\"'\n]*[^\s<>\"'])?"


def _others(
    parameter: Parameter, patterns: tuple[str, ...], names: tuple[str, ...], form: XmlForm
) -> list[Node]:
    """Returns grammars for an argument whose name is not in the schema. The text before the name is
    joined to it as one literal, to distinguish the name from declared ones."""
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
    """Returns the grammar of a value and the tag after it."""
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


# Values that the reader would change: it strips line breaks at their ends, and unwraps CDATA.
_NO_MARKUP = {False: (r"\n(.|\n)*", r"(.|\n)*\n"), True: (r"[\n<](.|\n)*", r"(.|\n)*\n")}
_NOT_CDATA = Regex(r"([^\n<](.|\n)*)?")


def tagged_xml(
    name: str,
    begin: str,
    end: str,
    form: XmlForm,
    *,
    is_list: bool = False,
    between: str | Node = "\n",
) -> ToolFormat:
    """Returns a format. Its parser accepts any number of elements after the tag, and elements
    without the tag.

    Args:
        end: the tag after the elements.
        is_list: whether all calls are after one tag; otherwise each has its own tags.
        between: the text between two calls.
    """
    function = form.function_begin

    def read(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
        opening = yield from read_begin(scan, out, opening, begin, function)
        while opening and (yield from read_call(scan, out, form, opening)):
            opening = yield from read_next(scan, out, function, end)

    def grammar(choice: CallChoice) -> Node:
        call = xml_calls(choice.tools, form)
        if is_list and choice.parallel:
            call = several(call, "\n")
        rest = in_order("\n", call, "\n", Tag(end))
        return tagged_calls(choice, begin, rest, between=None if is_list else between)

    return ToolFormat(
        name, tags=(begin, end), parse=TaggedCalls((begin, function), read), grammar=grammar
    )
