"""Reads and constrains Onyx's calls: elements in messages whose recipient says what these are:

to=self<|message|>why<|eom|>
<|start|>assistant to=add<|message|><atem:function_calls>
<atem:invoke name="add">
<atem:parameter name="a">1</atem:parameter>
</atem:invoke>
</atem:function_calls><|eom|>
<|start|>assistant to=user<|message|>answer<|eot|>
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from fastovms.grammar_tree import Node, Tag, in_order, one_of, several
from fastovms.text.scanning.headed_messages import HeadedMessages, Header, MessageKind
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_call, xml_calls
from fastovms.text.tools.tool_format import ToolFormat, read_begin, tagged_calls

START, MESSAGE = "<|start|>", "<|message|>"
END_MESSAGE, END_TURN = "<|eom|>", "<|eot|>"
BEGIN = "<atem:function_calls>"
END = "</atem:function_calls>"
FORM = XmlForm(
    function=('<atem:invoke name="', '">'),
    function_end="</atem:invoke>",
    parameter=('<atem:parameter name="', '">'),
    parameter_end="</atem:parameter>",
    trims_lines=False,
    gap="\n",
)
_ENDS = (END_MESSAGE, END_TURN)
_KINDS = {"user": MessageKind.CONTENT, "self": MessageKind.REASONING}
_RECIPIENT = re.compile(r"to=([^\s<]+)")


def _read_header(text: str, functions: Collection[str]) -> Header:
    match = _RECIPIENT.search(text)
    recipient = match[1] if match is not None else "user"
    kind = _KINDS.get(recipient, MessageKind.CALL)
    return Header(kind, recipient if kind is MessageKind.CALL else "")


def _read_call(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], function: str
) -> Incremental[None]:
    """Reads a call. The elements name the functions, not the header."""
    invoke = FORM.function_begin
    while (found := (yield from scan.until((BEGIN, invoke, *_ENDS), out.content))) is not None:
        if found in _ENDS:
            scan.put_back(found)
            return
        opening = found
        if found == BEGIN:
            opening = yield from read_begin(scan, out, BEGIN, invoke)
        while opening and (yield from read_call(scan, out, tools, FORM, opening)):
            yield from scan.space()
            opening = invoke
            if not (yield from scan.take(invoke)):
                yield from scan.take(END)
                break


MESSAGES = HeadedMessages(
    header=re.compile(r"(\s|<\|start\|>\w*|to=[^\s<]*)*"),
    begins=(START,),
    more_begins=("to=", MESSAGE),
    body=MESSAGE,
    ends=_ENDS,
    read_header=_read_header,
    read_call=_read_call,
)


def grammar(choice: CallChoice) -> Node:
    if not choice.required:
        return tagged_calls(choice, BEGIN, _elements(choice.tools), between="")
    headers = [in_order(f" to={tool.name}", Tag(MESSAGE), BEGIN) for tool in choice.tools]
    elements = [_elements([tool]) for tool in choice.tools]
    call = one_of(*map(in_order, headers, elements))
    between = in_order(Tag(END_MESSAGE), Tag(START), "assistant")
    return several(call, between) if choice.parallel else call


def _elements(tools: Sequence[Tool]) -> Node:
    return in_order("\n", xml_calls(tools, FORM), "\n", END)


TAGS = (START, MESSAGE, END_MESSAGE, END_TURN)
ONYX = ToolFormat("onyx", tags=TAGS, parse=MESSAGES, grammar=grammar, marks=(TAGS,))
