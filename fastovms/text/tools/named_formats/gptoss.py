"""Reads and constrains gpt-oss's calls, in OpenAI's harmony format:

    <|channel|>analysis<|message|>why<|end|>
    <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":1}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

The recipient may stand before the channel. A commentary without one is content.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from fastovms.grammar_tree import (
    Node,
    Regex,
    Repeat,
    Tag,
    TriggeredTag,
    Until,
    in_order,
    one_of,
    several,
)
from fastovms.text.scanning.headed_messages import HeadedMessages, Header, MessageKind
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import ToolFormat

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
TAGS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
_ENDS = (END, RETURN, CALL)
_FUNCTIONS = "functions."
_KINDS = ("commentary", "analysis")
_OTHER_HEADER = Regex(r"\s?\w*\s?")

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _read_header(text: str, functions: Collection[str]) -> Header:
    recipient = _RECIPIENT.search(text)
    if recipient is not None:
        name = recipient[1].removeprefix(_FUNCTIONS)
        if name != recipient[1] or name in functions:  # some models leave the prefix out
            return Header(MessageKind.CALL, name)
    channel = _CHANNEL.search(text)
    is_reasoning = channel is not None and channel[1] == "analysis"
    return Header(MessageKind.REASONING if is_reasoning else MessageKind.CONTENT)


def _read_call(
    scan: Scanner, out: PieceCollector, tools: Sequence[Tool], function: str
) -> Incremental[None]:
    yield from read_arguments(scan, out, function, "", _ENDS)


MESSAGES = HeadedMessages(
    header=re.compile(r"(\s|<\|(start|channel|constrain)\|>\s*\w*|to=[^\s<]*)*"),
    begins=(START, CHANNEL),
    more_begins=("to=",),
    body=MESSAGE,
    ends=_ENDS,
    read_header=_read_header,
    read_call=_read_call,
)


def grammar(choice: CallChoice) -> Node:
    between = in_order(" ", Tag(CONSTRAIN), "json", Tag(MESSAGE))
    call = in_order(named_call(choice.tools, between), Tag(CALL))
    if choice.required:
        call = in_order(Tag(CHANNEL), f"commentary to={_FUNCTIONS}", call)
        return several(call, in_order(Tag(START), "assistant")) if choice.parallel else call
    begins = [f"{kind} to={prefix}" for kind in _KINDS for prefix in (_FUNCTIONS, "")]
    call = in_order(one_of(*begins), call)
    other = in_order(_OTHER_HEADER, Tag(MESSAGE))
    if choice.parallel:
        return TriggeredTag(CHANNEL, one_of(call, other), once=False)
    others = Repeat(in_order(Until(CHANNEL), other))
    return in_order(others, TriggeredTag(CHANNEL, call, once=True))


GPTOSS = ToolFormat(
    "gptoss",
    tags=TAGS,
    parse=MESSAGES,
    grammar=grammar,
    aliases=("openai",),
    marks=((CHANNEL,),),
)
