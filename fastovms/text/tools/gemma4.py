"""Reads and constrains Gemma 4's calls: `<|tool_call>call:add{a:1,s:<|"|>x<|"|>}<tool_call|>`.

Several calls may stand between one pair of tags, or each between its own. Keys are bare; in nested
objects they may be quoted like strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastovms.grammar_tree import Json, Node, Tag, TextBefore, in_order, one_of
from fastovms.text.scanning import json_text
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import escape
from fastovms.text.scanning.literals import Notation, copy_value, read_word
from fastovms.text.scanning.parameters import Parameter
from fastovms.text.scanning.python_text import PYTHON
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner
from fastovms.text.scanning.text_values import constants, text_body
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.pythonic_call import arguments
from fastovms.text.tools.tool_format import ToolFormat, tagged_calls

BEGIN = "<|tool_call>"
END = "<tool_call|>"
CALL = "call:"
QUOTE = '<|"|>'

_KEY = re.compile(r"[^\s:,{}\[\]<\"]+")


def _copy_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
    if not (yield from scan.take(QUOTE)):
        return (yield from json_text.copy_string(scan, emit))
    emit('"')
    is_whole = (yield from scan.until((QUOTE,), lambda text: emit(escape(text)))) is not None
    if is_whole:
        emit('"')
    return is_whole


def _copy_key(scan: Scanner, emit: Emit) -> Incremental[bool]:
    if (yield from scan.peek()) in ("<", '"'):
        return (yield from _copy_string(scan, emit))
    pieces: list[str] = []
    yield from scan.run(_KEY, pieces.append)
    if pieces:
        emit(f'"{escape("".join(pieces))}"')
    return bool(pieces)


NOTATION = Notation(
    quotes=(QUOTE, '"'),
    copy_string=_copy_string,
    copy_key=_copy_key,
    convert=PYTHON.convert,
    convert_cut=PYTHON.convert_cut,
    brackets={"{": "}", "[": "]"},
)


def parse(scan: Scanner, out: PieceCollector, tools: Sequence[Tool]) -> Incremental[None]:
    while (yield from scan.until((BEGIN,), out.content)):
        num_calls = out.num_calls
        opening = BEGIN + (yield from scan.space())
        while (yield from scan.take(CALL)):
            if not (yield from _read_call(scan, out, opening + CALL)):
                break
            opening = yield from scan.space()
            if (yield from scan.take(",")):  # some models put commas between calls
                opening += "," + (yield from scan.space())
        else:
            is_closed = yield from scan.take(END)
            if out.num_calls == num_calls:
                out.content(opening + END if is_closed else opening)
            elif not is_closed:
                out.content(opening)


def _read_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    scan.record()
    name = yield from read_word(scan)
    yield from scan.space()
    if not name or (yield from scan.peek()) != "{":
        out.content(opening + scan.recorded())
        return False
    scan.recorded()
    out.begin(name)
    is_whole = yield from copy_value(scan, out.arguments, NOTATION)
    out.end(complete=is_whole)
    return is_whole


def grammar(choice: CallChoice) -> Node:
    calls = [
        in_order(f"{CALL}{tool.name}{{", arguments(tool, _argument, separator=","), "}")
        for tool in choice.tools
    ]
    return tagged_calls(choice, BEGIN, in_order(one_of(*calls), Tag(END)), between="")


def _argument(parameter: Parameter) -> Node:
    if not parameter.is_text:
        return in_order(f"{parameter.name}:", Json.of(parameter.whole_schema))
    values = constants(parameter)
    text = (
        TextBefore(QUOTE, text_body(parameter, QUOTE))
        if values is None
        else in_order(one_of(*values), Tag(QUOTE))
    )
    return in_order(f"{parameter.name}:", Tag(QUOTE), text)


GEMMA4 = ToolFormat("gemma4", tags=(BEGIN, END, QUOTE), parse=parse, grammar=grammar)
