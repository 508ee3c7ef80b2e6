"""Formats of calls in Python's or a like notation."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Node, OtherText, Tag, in_order, one_of, several
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.scanning import Incremental, PieceCollector, Scanner
from fastovms.text.tools.python_calls import (
    CALLS,
    LIST_BEGIN,
    TAGS,
    braced_calls,
    pythonic_call,
    pythonic_calls,
    read_mixed_list,
    read_pythonic_call,
)
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls

FUNCTIONGEMMA = braced_calls(
    "functiongemma",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    marks=(("<start_function_call>",),),
)


GEMMA4 = braced_calls(
    "gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', marks=(("<|tool_call>call:",),)
)


LFM2_BEGIN = "<|tool_call_start|>"
LFM2_END = "<|tool_call_end|>"


def read_lfm2(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    if (yield from read_mixed_list(scan, out, opening)):
        yield from read_end(scan, out, LFM2_END)


def lfm2_grammar(choice: CallChoice) -> Node:
    rest = in_order(pythonic_calls(choice), Tag(LFM2_END))
    return tagged_calls(choice, LFM2_BEGIN, rest, between=None)


LFM2 = ToolFormat(
    "lfm2",
    tags=(LFM2_BEGIN, LFM2_END),
    parse=TaggedCalls((LFM2_BEGIN,), read_lfm2),
    grammar=lfm2_grammar,
    marks=(
        (LFM2_BEGIN,),
        ("<|tool_list_start|>",),
        ("<|assistant_tool_call|>",),
        ("keep_past_thinking",),
    ),
)


# <function_calls> add(a=1) now() </function_calls>


OLMO3_BEGIN = "<function_calls>"
OLMO3_END = "</function_calls>"


def read_olmo3(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], opening: str
) -> Incremental[None]:
    opening += yield from scan.space()
    while (yield from read_pythonic_call(scan, out, opening)):
        opening = yield from scan.space()
        if (yield from scan.take(OLMO3_END)):
            return
        if (yield from scan.peek()) in ("", "<") or not opening:
            out.content(opening)
            return


def olmo3_grammar(choice: CallChoice) -> Node:
    call = pythonic_call(choice)
    calls = several(call, "\n") if choice.parallel else call
    return tagged_calls(choice, OLMO3_BEGIN, in_order("\n", calls, "\n", OLMO3_END), between=None)


OLMO3 = ToolFormat(
    "olmo3",
    tags=(OLMO3_BEGIN, OLMO3_END),
    parse=TaggedCalls((OLMO3_BEGIN,), read_olmo3),
    grammar=olmo3_grammar,
    marks=((OLMO3_BEGIN,),),
)


def pythonic_grammar(choice: CallChoice) -> Node:
    calls = pythonic_calls(choice)
    begins = tuple(f"[{tool.name}(" for tool in choice.tools)
    return calls if choice.required else one_of(calls, OtherText(begins))


PYTHONIC = ToolFormat(
    "pythonic",
    tags=TAGS,
    parse=CALLS,
    grammar=pythonic_grammar,
    aliases=("llama4_pythonic",),
    marks=((LIST_BEGIN,), ("func_name1(params_name1=",)),
)
