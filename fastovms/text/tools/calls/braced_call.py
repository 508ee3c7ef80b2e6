"""Makes formats of calls whose arguments stand in braces, their keys bare and their strings between
tags: `call:add{a:1,s:<|"|>x<|"|>}`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from fastovms.grammar_tree import ANY_TEXT, Json, Node, Tag, TextBefore, in_order, one_of
from fastovms.text.scanning import json_text
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import escape
from fastovms.text.scanning.literals import (
    Notation,
    copy_bare,
    copy_value,
    read_word,
    starts_string,
)
from fastovms.text.scanning.parameters import Parameter, Parameters
from fastovms.text.scanning.python_text import PYTHON
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner
from fastovms.text.scanning.text_values import constants, text_body
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.pythonic_call import arguments
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, tagged_calls

_CALL = "call:"
_KEY = re.compile(r"[^\s:,{}\[\]<\"]+")
_OTHER_KEY = r"[^\s:,{}\[\]<\"']+"


def braced_calls(
    name: str,
    begin: str,
    end: str,
    quote: str,
    *,
    aliases: tuple[str, ...] = (),
    marks: tuple[tuple[str, ...], ...] = (),
) -> ToolFormat:
    """Returns a format. Several calls may stand between one pair of tags. Keys may be quoted
    like strings, and strings may lack their quotes.

    Args:
        begin: the tag before calls.
        quote: the tag at either end of a string.
    """
    notation = _notation(quote, end)

    def read(
        scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
    ) -> Incremental[None]:
        num_calls = out.num_calls
        opening += yield from scan.space()
        while (yield from scan.take(_CALL)):
            if not (yield from _read_call(scan, out, tools, notation, opening + _CALL)):
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
        name,
        tags=(begin, end, quote),
        parse=TaggedCalls((begin,), read),
        grammar=grammar,
        aliases=aliases,
        marks=marks,
    )


def _notation(quote: str, end: str) -> Notation:
    def copy_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
        if not (yield from scan.take(quote)):
            return (yield from json_text.copy_string(scan, emit))
        emit('"')
        is_whole = (yield from scan.until((quote,), lambda text: emit(escape(text)))) is not None
        if is_whole:
            emit('"')
        return is_whole

    def copy_key(scan: Scanner, emit: Emit) -> Incremental[bool]:
        if (yield from scan.peek()) in ("<", '"'):
            return (yield from copy_string(scan, emit))
        pieces: list[str] = []
        yield from scan.run(_KEY, pieces.append)
        if pieces:
            emit(f'"{escape("".join(pieces))}"')
        return bool(pieces)

    return Notation(
        quotes=(quote, '"'),
        copy_string=copy_string,
        copy_key=copy_key,
        convert=PYTHON.convert,
        convert_cut=PYTHON.convert_cut,
        brackets={"{": "}", "[": "]"},
        bare_ends=(",", "}", "]", end, quote),
    )


def _read_call(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], notation: Notation, opening: str
) -> Incremental[bool]:
    scan.record()
    yield from scan.space()
    name = yield from read_word(scan)
    yield from scan.space()
    if not name or not (yield from scan.take("{")):
        out.broken(opening + scan.recorded())
        return False
    scan.recorded()
    out.begin(name)
    out.arguments("{")
    parameters = next((t.known_parameters for t in tools if t.name == name), Parameters())
    is_whole = yield from _read_arguments(scan, out, parameters, notation)
    out.end(complete=is_whole)
    return is_whole


def _read_arguments(
    scan: Scanner, out: PieceCollector, parameters: Parameters, notation: Notation
) -> Incremental[bool]:
    comma = ""
    while True:
        yield from scan.space()
        if (yield from scan.take("}")):
            out.arguments("}")
            return True
        pieces: list[str] = []
        if not (yield from notation.copy_key(scan, pieces.append)):
            return False
        yield from scan.space()
        if not (yield from scan.take(":")):
            return False
        key = "".join(pieces)
        out.arguments(f"{comma}{key}:")
        comma = ","
        if not (yield from _copy_argument(scan, out, parameters.find(json.loads(key)), notation)):
            return False
        yield from scan.space()
        if not (yield from scan.take(",")) and (yield from scan.peek()) != "}":
            return False


def _copy_argument(
    scan: Scanner, out: PieceCollector, parameter: Parameter | None, notation: Notation
) -> Incremental[bool]:
    """Passes on a value. What stands without quotes for a string is one, whatever it looks like."""
    yield from scan.space()
    if (
        parameter is not None
        and parameter.is_text
        and not (yield from starts_string(scan, notation))
        and (yield from scan.peek()) not in notation.brackets
    ):
        return (yield from copy_bare(scan, out.arguments, notation, is_text=True))
    return (yield from copy_value(scan, out.arguments, notation))
