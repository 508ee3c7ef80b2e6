"""Reads and constrains calls as in Python, `[add(a=1), now()]`, which Llama 4 may put between tags
and others write as their whole answer."""

from __future__ import annotations

from fastovms.grammar_tree import Node, OtherText, one_of
from fastovms.text.scanning.tool import CallChoice
from fastovms.text.tools.calls import llama_calls
from fastovms.text.tools.calls.pythonic_call import pythonic_calls
from fastovms.text.tools.tool_format import ToolFormat


def grammar(choice: CallChoice) -> Node:
    calls = pythonic_calls(choice)
    begins = tuple(f"[{tool.name}(" for tool in choice.tools)
    return calls if choice.required else one_of(calls, OtherText(begins))


PYTHONIC = ToolFormat(
    "pythonic",
    tags=llama_calls.TAGS,
    parse=llama_calls.CALLS,
    grammar=grammar,
    aliases=("llama4_pythonic",),
    marks=((llama_calls.LIST_BEGIN,), ("func_name1(params_name1=",)),
)
