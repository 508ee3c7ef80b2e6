"""Reads and constrains Mistral's calls: `[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}},
...]`.

An answer that begins with `[{"` is calls too. Since version 11 of its tokenizer, and in Devstral,
each call has the tag: `[TOOL_CALLS]add[ARGS]{"a": 1}`, at first without `[ARGS]`. Both parsers read
both.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, Regex, Tag, in_order
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.json_call import json_call, json_calls, read_calls
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, tagged_calls

BEGIN = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_BARE = '[{"'


def read(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    opening += yield from scan.space()
    if (yield from scan.peek()) in ("[", "{"):
        yield from read_calls(scan, out, opening)
    else:
        yield from _read_named(scan, out, opening)


def _read_named(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    pieces: list[str] = []
    tag = yield from scan.until((ARGUMENTS, _CALL_ID, BEGIN, "{"), pieces.append)
    name = "".join(pieces)
    opening += name
    if tag == _CALL_ID:
        pieces.clear()
        tag = yield from scan.until((ARGUMENTS, BEGIN, "{"), pieces.append)
        opening += _CALL_ID + "".join(pieces)
    if tag == "{":
        scan.put_back(tag)
    elif tag != ARGUMENTS:
        if tag:
            scan.put_back(tag)
        out.broken(opening)
        return
    else:
        opening += tag
    yield from read_arguments(scan, out, name.strip(), opening, (BEGIN,))


def list_grammar(choice: CallChoice) -> Node:
    calls = in_order(Regex(" ?"), json_calls(json_call(choice.tools), parallel=choice.parallel))
    return tagged_calls(choice, BEGIN, calls, between=None)


def named_grammar(choice: CallChoice) -> Node:
    return tagged_calls(choice, BEGIN, named_call(choice.tools, Tag(ARGUMENTS)), between="")


TAGS = (BEGIN, ARGUMENTS, _CALL_ID)
CALLS = TaggedCalls((BEGIN,), read, bare=(_BARE,))
MISTRAL = ToolFormat(
    "mistral",
    tags=TAGS,
    parse=CALLS,
    grammar=list_grammar,
    marks=((BEGIN,), ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")),
)
DEVSTRAL = ToolFormat(
    "devstral",
    tags=TAGS,
    parse=CALLS,
    grammar=named_grammar,
    marks=((BEGIN, ARGUMENTS),),
)
