"""gpt-oss, in OpenAI's harmony format:

    <|channel|>analysis<|message|>why<|end|>
    <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":1}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

The recipient may stand before the channel. A commentary without one is content.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Sequence

from fastovms.text.scanning.headed_messages import Header, Kind, MessageForm
from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules, literal
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.named_call import named_call, read_arguments
from fastovms.text.tools.tool_format import ToolFormat

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
TAGS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
_ENDS = (END, RETURN, CALL)
_FUNCTIONS = "functions."

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _read_header(text: str) -> Header:
    recipient = _RECIPIENT.search(text)
    if recipient is not None and recipient[1].startswith(_FUNCTIONS):
        return Header(Kind.CALL, recipient[1].removeprefix(_FUNCTIONS))
    channel = _CHANNEL.search(text)
    is_reasoning = channel is not None and channel[1] == "analysis"
    return Header(Kind.REASONING if is_reasoning else Kind.CONTENT)


def _read_call(
    scan: Scanner, out: Output, tools: Sequence[Tool], function: str, opening: str
) -> Steps[None]:
    yield from read_arguments(scan, out, function, opening, _ENDS)


MESSAGES = MessageForm(
    begins=(START, CHANNEL),
    more_begins=("to=",),
    body=MESSAGE,
    ends=_ENDS,
    read_header=_read_header,
    read_call=_read_call,
)


def write_rules(rules: Rules, choice: CallChoice) -> str:
    channel, message = rules.tag(CHANNEL), rules.tag(MESSAGE)
    between = f"{literal(' ')} {rules.tag(CONSTRAIN)} {literal('json')} {message}"
    begin = literal(f"commentary to={_FUNCTIONS}")
    call = rules.rule(f"{begin} {named_call(choice.tools, between)} {rules.tag(CALL)}")
    if choice.required:
        more = f" ({rules.tag(START)} {literal('assistant')} {channel} {call})*"
        return f"{channel} {call}{more if choice.parallel else ''}"
    other = rules.text(message, r"/(.|\n)*/ & ~/(.|\n)*to=functions\.(.|\n)*/")
    others = f"(until_{channel} {other})*"
    calls = f"(until_{channel} {call})"
    if choice.parallel:
        return f"(until_{channel} ({call} | {other}))* without_{channel}"
    return f"{others} ({calls} | without_{channel})"


GPTOSS = ToolFormat("gptoss", tags=TAGS, parse=MESSAGES, rules=write_rules)
