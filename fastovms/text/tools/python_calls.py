"""Tool-call formats in Python's syntax, `f(a=1)`, or with arguments in braces, `f{a:1}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial

from fastovms.grammar_tree import (
    ANY_TEXT,
    EMPTY,
    Json,
    Node,
    OtherTag,
    OtherText,
    Repeat,
    Separated,
    Tag,
    TextBefore,
    in_order,
    one_of,
)
from fastovms.text.parameters import (
    CallChoice,
    Parameter,
    Parameters,
    Tool,
    constants,
    name_patterns,
    text_body,
)
from fastovms.text.scanning import Emit, Incremental, PieceCollector, Scanner
from fastovms.text.tools.json_calls import read_call, read_list
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls
from fastovms.text.values import (
    PYTHON,
    Notation,
    copy_bare,
    copy_python,
    copy_string,
    copy_value,
    escape,
    for_parameter,
    read_word,
    starts_string,
)

_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def read_pythonic_call(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads a Python-style call. Returns whether it was complete.

    Arguments have names; they are emitted as they arrive. If the text is malformed before the first
    argument, it becomes content, including `opening`; if later, the call ends there.

    Args:
        opening: the markup read before the call.
        known: the allowed function names; other names are not calls; None = any name.
    """
    mark = scan.record()
    name = yield from read_word(scan)
    is_call = bool(name) and (known is None or name in known) and (yield from scan.take("("))
    yield from scan.space()
    if is_call and (yield from scan.take(")")):
        out.begin(name, opening, mark)
        out.arguments("{}")
        out.end(complete=True)
        return True
    if not is_call:
        out.broken(opening + scan.recorded(mark))
        return False
    out.begin(name, opening, mark)
    tool = out.tool(name)
    parameters = tool.known_parameters if tool is not None else Parameters()
    rest = yield from _read_arguments(scan, out, parameters)
    out.end(complete=rest is None, rest=rest or "")
    return rest is None


def _read_argument_name(scan: Scanner) -> Incremental[str]:
    """Reads an argument's name; "" = no name."""
    name = yield from read_word(scan)
    yield from scan.space()
    return name if name and (yield from scan.take("=")) else ""


def _read_arguments(
    scan: Scanner, out: PieceCollector, parameters: Parameters
) -> Incremental[str | None]:
    """Reads the arguments and the bracket after them. Returns None if they were complete, otherwise
    the text read since the last value."""
    before, mark = "{", scan.record()
    while name := (yield from _read_argument_name(scan)):
        yield from scan.space()
        scan.recorded(mark)
        out.arguments(f'{before}"{escape(name)}":')
        before = ","
        is_value = yield from copy_python(scan, out.arguments, parameters.find(name))
        mark = scan.record()
        if not is_value:
            break
        yield from scan.space()
        is_end = yield from scan.take(")")
        if not is_end:
            if not (yield from scan.take(",")):
                break
            yield from scan.space()
            is_end = yield from scan.take(")")
        if is_end:
            scan.recorded(mark)
            out.arguments("}")
            return None
    return scan.recorded(mark)


def pythonic_calls(choice: CallChoice) -> Node:
    """Returns the grammar of a list of calls. Values are JSON, which `copy_python` accepts, too.
    Raises InvalidField if a schema is not supported in this form."""
    rests = [
        in_order(arguments(tool, _argument, separator=", ", end="=", name=_NAME), ")")
        for tool in choice.tools
    ]

    # `begin` and the name are one literal, to distinguish a call from text with the same beginning.
    def call(begin: str) -> Node:
        names = [f"{begin}{tool.name}(" for tool in choice.tools]
        return one_of(*map(in_order, names, rests))

    more = [Repeat(call(", "))] if choice.parallel else []
    return in_order(call("["), *more, "]")


def pythonic_call(choice: CallChoice) -> Node:
    """Returns the grammar of a call. Raises InvalidField like `pythonic_calls`."""
    return one_of(
        *[
            in_order(
                f"{tool.name}(",
                arguments(tool, _argument, separator=", ", end="=", name=_NAME),
                ")",
            )
            for tool in choice.tools
        ]
    )


def _argument(parameter: Parameter, begin: Node | None = None) -> Node:
    return in_order(begin or f"{parameter.name}=", Json.of(parameter.whole_schema))


Argument = Callable[[Parameter, Node | None], Node]
"""Builds the grammar of an argument; the second value replaces the name if the schema does not
declare it."""


def arguments(tool: Tool, argument: Argument, *, separator: str, end: str, name: str) -> Node:
    """Returns the grammar of a call's arguments in the order of their schema, each built by
    `argument`. Raises InvalidField if the schema has keywords that constrain several parameters
    together.

    Args:
        end: the text after an argument's name.
        name: a regular expression of the names of undeclared arguments.
    """
    found = tool.enforced_parameters()
    items = [(argument(parameter, None), parameter.is_required) for parameter in found.values()]
    others = [
        argument(parameter, OtherTag("", name_patterns(name, pattern), end, tuple(found)))
        for pattern, parameter in found.others
    ]
    if not items and not others:
        return EMPTY
    return Separated(tuple(items), separator, one_of(*others) if others else None)


_CALL = "call:"
_KEY = re.compile(r"[^\s:,{}\[\]<\"]+")
_OTHER_KEY = r"[^\s:,{}\[\]<\"']+"


def braced_calls(name: str, begin: str, end: str, quote: str) -> ToolFormat:
    """Returns a format with calls between a pair of tags. Keys may be quoted like strings, and
    strings may lack their quotes.

    Args:
        begin: the tag before calls.
        quote: the tag at either end of a string.
    """
    notation = _notation(quote, end)

    def read(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
        num_calls = out.num_calls
        opening += yield from scan.space()
        while (yield from scan.take(_CALL)):
            if not (yield from _read_call(scan, out, notation, opening + _CALL)):
                return
            opening = yield from scan.space()
            if (yield from scan.take(",")):  # some models put commas between calls
                opening += "," + (yield from scan.space())
        is_closed = yield from scan.take(end)
        if out.num_calls == num_calls:
            out.broken(opening + end if is_closed else opening)
        elif not is_closed:
            out.broken(opening)

    def argument(parameter: Parameter, begin: Node | None = None) -> Node:
        begun = begin or f"{parameter.name}:"
        if parameter.is_free:
            text = in_order(Tag(quote), TextBefore(quote, ANY_TEXT))
            return in_order(begun, one_of(text, Json.of(parameter.whole_schema)))
        if not parameter.is_text:
            return in_order(begun, Json.of(parameter.whole_schema))
        values = constants(parameter)
        text = (
            TextBefore(quote, text_body(parameter, quote))
            if values is None
            else in_order(one_of(*values), Tag(quote))
        )
        return in_order(begun, Tag(quote), text)

    def grammar(choice: CallChoice) -> Node:
        calls = [
            in_order(
                f"{_CALL}{tool.name}{{",
                arguments(tool, argument, separator=",", end=":", name=_OTHER_KEY),
                "}",
            )
            for tool in choice.tools
        ]
        return tagged_calls(choice, begin, in_order(one_of(*calls), Tag(end)), between="")

    return ToolFormat(
        name, tags=(begin, end, quote), parse=TaggedCalls((begin,), read), grammar=grammar
    )


def _notation(quote: str, end: str) -> Notation:
    def copy_text(scan: Scanner, emit: Emit) -> Incremental[bool]:
        if not (yield from scan.take(quote)):
            return (yield from copy_string(scan, emit))
        emit('"')
        is_whole = (yield from scan.until((quote,), lambda text: emit(escape(text)))) is not None
        if is_whole:
            emit('"')
        return is_whole

    def copy_key(scan: Scanner, emit: Emit) -> Incremental[bool]:
        if (yield from scan.peek()) in ("<", '"'):
            return (yield from copy_text(scan, emit))
        pieces: list[str] = []
        yield from scan.run(_KEY, pieces.append)
        if pieces:
            emit(f'"{escape("".join(pieces))}"')
        return bool(pieces)

    return Notation(
        quotes=(quote, '"'),
        copy_string=copy_text,
        copy_key=copy_key,
        convert=PYTHON.convert,
        convert_cut=PYTHON.convert_cut,
        brackets={"{": "}", "[": "]"},
        bare_ends=(",", "}", "]", end, quote),
    )


def _read_call(
    scan: Scanner, out: PieceCollector, notation: Notation, opening: str
) -> Incremental[bool]:
    mark = scan.record()
    yield from scan.space()
    name = yield from read_word(scan)
    yield from scan.space()
    if not name or not (yield from scan.take("{")):
        out.broken(opening + scan.recorded(mark))
        return False
    out.begin(name, opening, mark)
    out.arguments("{")
    tool = out.tool(name)
    parameters = tool.known_parameters if tool is not None else Parameters()
    rest = yield from _read_braced_arguments(scan, out, parameters, notation)
    out.end(complete=rest is None, rest=rest or "")
    return rest is None


def _read_braced_arguments(
    scan: Scanner, out: PieceCollector, parameters: Parameters, notation: Notation
) -> Incremental[str | None]:
    """Reads the arguments and the brace after them. Returns None if they were complete, otherwise
    the text read since the last value."""
    comma = ""
    while True:
        mark = scan.record()
        yield from scan.space()
        if (yield from scan.take("}")):
            scan.recorded(mark)
            out.arguments("}")
            return None
        pieces: list[str] = []
        is_key = yield from notation.copy_key(scan, pieces.append)
        yield from scan.space()
        is_key = is_key and (yield from scan.take(":"))
        text = scan.recorded(mark)
        if not is_key:
            return text
        key = "".join(pieces)
        out.arguments(f"{comma}{key}:")
        comma = ","
        if not (yield from _copy_argument(scan, out, parameters.find(json.loads(key)), notation)):
            return ""
        mark = scan.record()
        yield from scan.space()
        is_next = (yield from scan.take(",")) or (yield from scan.peek()) == "}"
        text = scan.recorded(mark)
        if not is_next:
            return text


def _copy_argument(
    scan: Scanner, out: PieceCollector, parameter: Parameter | None, notation: Notation
) -> Incremental[bool]:
    """Reads and emits a value. For a string parameter, unquoted text is always a string."""
    yield from scan.space()
    first = yield from scan.peek()
    if (
        parameter is not None
        and parameter.is_text
        and not (yield from starts_string(scan, notation))
        and first not in notation.brackets
    ):
        return (yield from copy_bare(scan, out.arguments, notation, is_text=True))
    notation = for_parameter(notation, parameter, first)
    return (yield from copy_value(scan, out.arguments, notation))


TAG = "<|python_tag|>"
LIST_BEGIN = "<|python_start|>"
LIST_END = "<|python_end|>"
TAGS = (TAG, LIST_BEGIN, LIST_END)


def _read(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls. Without a tag, only a known function's name begins a call."""
    num_calls = out.num_calls
    known = None if opening else [tool.name for tool in out.tools]
    opening += yield from scan.space()
    if (yield from scan.peek()) == "[":
        yield from read_mixed_list(scan, out, opening, known)
    else:
        while (yield from read_call(scan, out, opening, known)):
            opening = yield from scan.space()
            if not (yield from scan.take(";")):
                out.broken(opening)
                break
            opening += ";" + (yield from scan.space())
            if not (yield from scan.peek()):
                break
    if out.num_calls > num_calls:
        out.content((yield from scan.space()))
        yield from scan.take(LIST_END)


CALLS = TaggedCalls((TAG, LIST_BEGIN), _read, bare=("{", "["))


def read_mixed_list(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads a list of Python calls, or of JSON calls. Returns whether they were complete. If the
    text is malformed before the first call, it becomes content, including `opening`.

    Args:
        known: the allowed function names; other names are not calls; None = any name.
    """
    opening += yield from scan.space()
    if (yield from scan.peek()) == "{":
        return (yield from read_call(scan, out, opening, known))
    if not (yield from scan.take("[")):
        out.broken(opening)
        return False
    opening += "["
    opening += yield from scan.space()
    is_json = (yield from scan.peek()) == "{"
    reader = read_call if is_json else read_pythonic_call
    return (yield from read_list(scan, out, opening, partial(reader, known=known)))


FUNCTIONGEMMA = braced_calls(
    "functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"
)


GEMMA4 = braced_calls("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')


LFM2_BEGIN = "<|tool_call_start|>"
LFM2_END = "<|tool_call_end|>"


def read_lfm2(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in LFM2's format, a Python list, to the end tag."""
    if (yield from read_mixed_list(scan, out, opening)):
        yield from read_end(scan, out, LFM2_END)


def lfm2_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in LFM2's format."""
    rest = in_order(pythonic_calls(choice), Tag(LFM2_END))
    return tagged_calls(choice, LFM2_BEGIN, rest, between=None)


LFM2 = ToolFormat(
    "lfm2",
    tags=(LFM2_BEGIN, LFM2_END),
    parse=TaggedCalls((LFM2_BEGIN,), read_lfm2),
    grammar=lfm2_grammar,
)


# <function_calls> add(a=1) now() </function_calls>
OLMO3_BEGIN = "<function_calls>"
OLMO3_END = "</function_calls>"


def read_olmo3(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads Python calls in Olmo 3's format, one per line, to the end tag."""
    opening += yield from scan.space()
    while (yield from read_pythonic_call(scan, out, opening)):
        opening = yield from scan.space()
        if (yield from scan.take(OLMO3_END)):
            return
        if (yield from scan.peek()) in ("", "<") or not opening:
            out.content(opening)
            return


def olmo3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Olmo 3's format."""
    call = pythonic_call(choice)
    calls = choice.several(call, "\n")
    return tagged_calls(choice, OLMO3_BEGIN, in_order("\n", calls, "\n", OLMO3_END), between=None)


OLMO3 = ToolFormat(
    "olmo3",
    tags=(OLMO3_BEGIN, OLMO3_END),
    parse=TaggedCalls((OLMO3_BEGIN,), read_olmo3),
    grammar=olmo3_grammar,
)


def pythonic_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls as a Python list without tags."""
    calls = pythonic_calls(choice)
    begins = tuple(f"[{tool.name}(" for tool in choice.tools)
    return calls if choice.required else one_of(calls, OtherText(begins))


PYTHONIC = ToolFormat("pythonic", tags=TAGS, parse=CALLS, grammar=pythonic_grammar)
