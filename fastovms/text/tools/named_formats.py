"""Tool-call formats with the function's name outside of the JSON arguments."""

from __future__ import annotations

import re
from collections.abc import Collection

from fastovms.grammar_tree import (
    MAYBE_LINE_BREAK,
    Node,
    Regex,
    Repeat,
    Tag,
    TriggeredTag,
    Until,
    in_order,
    one_of,
    optional,
)
from fastovms.text.headed_messages import HeadedMessages, Header, MessageKind
from fastovms.text.parameters import CallChoice
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.scanning import Incremental, PieceCollector, Scanner
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_end,
    tagged_calls,
)
from fastovms.text.tools.xml_calls import named_call, read_arguments, read_name

# Reads and constrains DeepSeek's calls: V3 and R1 fence each in Markdown, V3.1 does not:
#
# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add ```json {"a": 1}
# ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
#
# <｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>
# <｜tool▁calls▁end｜>
DEEPSEEK_ALL_BEGIN = "<｜tool▁calls▁begin｜>"
DEEPSEEK_ALL_END = "<｜tool▁calls▁end｜>"
DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_KIND = "function"
_FENCES = ("```json", "```")


def read_deepseek(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in the formats of DeepSeek V3 and V3.1, to the end tag."""
    opening = yield from read_begin(scan, out, opening, DEEPSEEK_ALL_BEGIN, DEEPSEEK_BEGIN)
    if opening and (yield from _read_deepseek_call(scan, out, opening)):
        yield from read_end(scan, out, DEEPSEEK_ALL_END)


def _read_deepseek_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    mark = scan.record()
    pieces: list[str] = []
    tag = yield from scan.until(
        (SEPARATOR, DEEPSEEK_END, DEEPSEEK_ALL_END, DEEPSEEK_BEGIN), pieces.append
    )
    if tag != SEPARATOR:
        out.broken(opening + scan.recorded(mark))
        return False
    name = "".join(pieces).strip()
    if name == _KIND:
        pieces = []
        end = yield from scan.until(("\n", "{", DEEPSEEK_END), pieces.append)
        if end is None:
            out.broken(opening + scan.recorded(mark))
            return False
        if end != "\n":
            scan.put_back(end)
        # In V3.1's format a function may itself be called `function`.
        name = "".join(pieces).strip() or name
    yield from scan.space()
    fence = yield from _take_fence(scan)
    opening += scan.recorded(mark)
    if not (yield from read_arguments(scan, out, name, opening, (DEEPSEEK_END,))):
        return False
    if fence:
        yield from scan.space()
        yield from scan.take("```")
    yield from read_end(scan, out, DEEPSEEK_END)
    return True


def _take_fence(scan: Scanner) -> Incremental[bool]:
    for fence in _FENCES:
        if (yield from scan.take(fence)):
            return True
    return False


def v3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in DeepSeek V3's format, with the arguments in a code block."""
    call = in_order(_KIND, Tag(SEPARATOR), named_call(choice.tools, "\n```json\n"), "\n```")
    return _all_calls(choice, call)


def v31_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in DeepSeek V3.1's format."""
    return _all_calls(choice, named_call(choice.tools, Tag(SEPARATOR)))


def _all_calls(choice: CallChoice, call: Node) -> Node:
    call = in_order(Tag(DEEPSEEK_BEGIN), call, Tag(DEEPSEEK_END))
    rest = in_order(choice.several(call, MAYBE_LINE_BREAK), Tag(DEEPSEEK_ALL_END))
    return tagged_calls(choice, DEEPSEEK_ALL_BEGIN, rest, between=None)


DEEPSEEK_TAGS = (DEEPSEEK_ALL_BEGIN, DEEPSEEK_ALL_END, DEEPSEEK_BEGIN, DEEPSEEK_END, SEPARATOR)
CALLS = TaggedCalls((DEEPSEEK_ALL_BEGIN, DEEPSEEK_BEGIN), read_deepseek)
DEEPSEEK = ToolFormat("deepseek", tags=DEEPSEEK_TAGS, parse=CALLS, grammar=v3_grammar)
DEEPSEEK_V31 = ToolFormat("deepseek_v31", tags=DEEPSEEK_TAGS, parse=CALLS, grammar=v31_grammar)


# >>>all text>>>add {"a": 1}
FUNCTIONARY_BEGIN, FUNCTIONARY_END = "<function=", "</function>"
SIGN = ">>>"
ALL = "all\n"


def _read_element(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    mark = scan.record()
    name = yield from read_name(scan, ">")
    opening += scan.recorded(mark)
    if (yield from read_arguments(scan, out, name, opening, (FUNCTIONARY_END,))):
        yield from read_end(scan, out, FUNCTIONARY_END)


def _read_part(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads a call of a known function, or the markup before a message to the user."""
    if (yield from scan.take(ALL, is_first=not opening)):
        return
    for tool in out.tools:
        begin = f"{tool.name}\n"
        if (yield from scan.take(begin, is_first=not opening)):
            yield from read_arguments(scan, out, tool.name, opening + begin)
            return
    out.broken(opening)


def element_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Functionary v3.1's format: an element with the arguments as
    JSON."""
    rest = in_order(named_call(choice.tools, ">"), FUNCTIONARY_END)
    return tagged_calls(choice, FUNCTIONARY_BEGIN, rest, between="")


def sign_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Functionary v3.2's format, with `>>>` before the name."""
    call = named_call(choice.tools, "\n")
    calls = choice.several(call, SIGN)
    text = in_order(ALL, TriggeredTag(SIGN, calls, once=True))
    return calls if choice.required else one_of(calls, text)


FUNCTIONARY_V31 = ToolFormat(
    "functionary_v31",
    tags=(),
    parse=TaggedCalls((FUNCTIONARY_BEGIN,), _read_element),
    grammar=element_grammar,
)
FUNCTIONARY_V32 = ToolFormat(
    "functionary_v32",
    tags=(),
    parse=TaggedCalls((SIGN,), _read_part, bare=("",), end_reasoning=False),
    grammar=sign_grammar,
)


#     <|channel|>analysis<|message|>why<|end|>
#     <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json
#         <|message|>{"a":1}<|call|>
#     <|start|>assistant<|channel|>final<|message|>answer<|return|>
#
# The recipient may precede the channel. A commentary without one is content.
GPTOSS_START, GPTOSS_CHANNEL, GPTOSS_MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
GPTOSS_CONSTRAIN = "<|constrain|>"
GPTOSS_END, GPTOSS_RETURN, GPTOSS_CALL = "<|end|>", "<|return|>", "<|call|>"
GPTOSS_TAGS = (
    GPTOSS_START,
    GPTOSS_CHANNEL,
    GPTOSS_MESSAGE,
    GPTOSS_CONSTRAIN,
    GPTOSS_END,
    GPTOSS_RETURN,
    GPTOSS_CALL,
)
_ENDS = (GPTOSS_END, GPTOSS_RETURN, GPTOSS_CALL)
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


def _read_gptoss_call(scan: Scanner, out: PieceCollector, function: str) -> Incremental[None]:
    yield from read_arguments(scan, out, function, "", _ENDS)


GPTOSS_MESSAGES = HeadedMessages(
    header=re.compile(r"(\s|<\|(start|channel|constrain)\|>\s*\w*|to=[^\s<]*)*"),
    begins=(GPTOSS_START, GPTOSS_CHANNEL),
    more_begins=("to=",),
    body=GPTOSS_MESSAGE,
    ends=_ENDS,
    read_header=_read_header,
    read_call=_read_gptoss_call,
)


def gptoss_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in gpt-oss's format, messages of the commentary channel."""
    between = in_order(" ", Tag(GPTOSS_CONSTRAIN), "json", Tag(GPTOSS_MESSAGE))
    call = in_order(named_call(choice.tools, between), Tag(GPTOSS_CALL))
    if choice.required:
        call = in_order(Tag(GPTOSS_CHANNEL), f"commentary to={_FUNCTIONS}", call)
        return choice.several(call, in_order(Tag(GPTOSS_START), "assistant"))
    begins = [f"{kind} to={prefix}" for kind in _KINDS for prefix in (_FUNCTIONS, "")]
    call = in_order(one_of(*begins), call)
    other = in_order(_OTHER_HEADER, Tag(GPTOSS_MESSAGE))
    if choice.parallel:
        return TriggeredTag(GPTOSS_CHANNEL, one_of(call, other), once=False)
    others = Repeat(in_order(Until(GPTOSS_CHANNEL), other))
    return in_order(others, TriggeredTag(GPTOSS_CHANNEL, call, once=True))


GPTOSS = ToolFormat("gptoss", tags=GPTOSS_TAGS, parse=GPTOSS_MESSAGES, grammar=gptoss_grammar)


# <|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a":
# 1} <|tool_call_end|><|tool_calls_section_end|>
KIMI_K2_ALL_BEGIN, KIMI_K2_ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_K2_BEGIN, KIMI_K2_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*(?:functions\.)?(.+?)(?::\d+)?\s*", re.DOTALL)


def read_kimi_k2(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in Kimi K2's format, in which call ids contain the function names."""
    opening = yield from read_begin(scan, out, opening, KIMI_K2_ALL_BEGIN, KIMI_K2_BEGIN)
    if not opening:
        return
    pieces: list[str] = []
    tag = yield from scan.until(
        (ARGUMENTS, KIMI_K2_BEGIN, KIMI_K2_END, KIMI_K2_ALL_END), pieces.append
    )
    called = "".join(pieces)
    opening += called + (tag or "")
    found = _ID.fullmatch(called)
    if tag != ARGUMENTS or found is None:
        out.broken(opening)
    elif (yield from read_arguments(scan, out, found[1], opening, (KIMI_K2_END,))):
        yield from read_end(scan, out, KIMI_K2_END)
        yield from read_end(scan, out, KIMI_K2_ALL_END)


def kimi_k2_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Kimi K2's format."""
    between = in_order(":", one_of("0", Regex("[0-9]{1,3}")), Tag(ARGUMENTS))
    call = in_order(
        Tag(KIMI_K2_BEGIN), "functions.", named_call(choice.tools, between), Tag(KIMI_K2_END)
    )
    rest = in_order(choice.several(call, ""), Tag(KIMI_K2_ALL_END))
    return tagged_calls(choice, KIMI_K2_ALL_BEGIN, rest, between=None)


KIMI_K2 = ToolFormat(
    "kimi_k2",
    tags=(KIMI_K2_ALL_BEGIN, KIMI_K2_ALL_END, KIMI_K2_BEGIN, KIMI_K2_END, ARGUMENTS),
    parse=TaggedCalls((KIMI_K2_ALL_BEGIN, KIMI_K2_BEGIN), read_kimi_k2),
    grammar=kimi_k2_grammar,
)


_GPTOSS_BEGIN = in_order(Tag(GPTOSS_CHANNEL), "analysis", Tag(GPTOSS_MESSAGE))
_GPTOSS_REST = in_order(Until(GPTOSS_END), Tag(GPTOSS_START), "assistant")
GPTOSS_REASONING = ReasoningFormat(
    "gptoss",
    tags=GPTOSS_TAGS,
    parse=GPTOSS_MESSAGES,
    begin=f"{GPTOSS_CHANNEL}analysis{GPTOSS_MESSAGE}",
    before_answer=optional(in_order(_GPTOSS_BEGIN, _GPTOSS_REST)),
    rest=_GPTOSS_REST,
    open_answer=in_order(Tag(GPTOSS_CHANNEL), "final", Tag(GPTOSS_MESSAGE)),
    closing=f"{GPTOSS_END}{GPTOSS_START}assistant",
)
