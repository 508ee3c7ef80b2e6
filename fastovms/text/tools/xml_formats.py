"""Tool-call formats of model families in XML."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fastovms.grammar_tree import MAYBE_LINE_BREAK, Node, Tag, Until, in_order, one_of, optional
from fastovms.text.headed_messages import HeadedMessages, Header, MessageKind
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.scanning import Incremental, PieceCollector, Scanner
from fastovms.text.tools.tool_format import (
    TaggedCalls,
    ToolFormat,
    read_begin,
    read_end,
    read_next,
    tagged_calls,
)
from fastovms.text.tools.xml_calls import (
    XmlForm,
    nested_elements,
    read_call,
    read_elements,
    read_name,
    read_named_call,
    tagged_xml,
    unquoted,
    xml_arguments,
    xml_calls,
)


def _attribute_form(function: str, parameter: str, **options: Any) -> XmlForm:
    """Returns the form of elements that have their names in an attribute, `<invoke name="add">`."""
    return XmlForm(
        function=(f'<{function} name="', '">'),
        function_end=f"</{function}>",
        parameter=(f'<{parameter} name="', '">'),
        parameter_end=f"</{parameter}>",
        **options,
    )


# <｜DSML｜function_calls> <｜DSML｜invoke name="add"> <｜DSML｜parameter name="a"
# string="false">1</｜DSML｜parameter> </｜DSML｜invoke> </｜DSML｜function_calls>
DEEPSEEK_V32_TOKEN = "｜DSML｜"
DEEPSEEK_V32_FORM = _attribute_form(
    f"{DEEPSEEK_V32_TOKEN}invoke",
    f"{DEEPSEEK_V32_TOKEN}parameter",
    trims_lines=False,
    gap="\n",
    kinds=(' string="true"', ' string="false"'),
    tokens=(DEEPSEEK_V32_TOKEN,),
)

_FOUND = tagged_xml(
    "deepseek_v32",
    f"<{DEEPSEEK_V32_TOKEN}function_calls>",
    f"</{DEEPSEEK_V32_TOKEN}function_calls>",
    DEEPSEEK_V32_FORM,
    is_list=True,
)
DEEPSEEK_V32 = replace(_FOUND, tags=(DEEPSEEK_V32_TOKEN,))


# <tool_call>add <arg_key>a</arg_key> <arg_value>1</arg_value> </tool_call>
GLM45_BEGIN = "<tool_call>"
GLM45_END = "</tool_call>"
GLM45_FORM = XmlForm(
    function=("", ""),
    function_end=GLM45_END,
    parameter=("<arg_key>", "</arg_key>"),
    parameter_end="</arg_value>",
    value="<arg_value>",
    trims_lines=False,
    gap="\n",
    tokens=("<arg_key>", "</arg_key>"),
)
GLM45_TAGS = (
    GLM45_BEGIN,
    GLM45_END,
    *GLM45_FORM.parameter,
    GLM45_FORM.value,
    GLM45_FORM.parameter_end,
)


def read_glm45(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads a call in GLM-4.5's format: the name, then elements of arguments."""
    mark = scan.record()
    name = yield from read_glm45_name(scan)
    yield from read_named_call(scan, out, GLM45_FORM, name, opening, mark)


def read_glm45_name(scan: Scanner) -> Incremental[str]:
    """Reads a function's name, which ends before a line break or a tag."""
    yield from scan.space()
    pieces: list[str] = []
    end = yield from scan.until(("\n", "<"), pieces.append)
    if end:
        scan.put_back(end)
    return unquoted("".join(pieces))


def glm45_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in GLM-4.5's format."""
    calls = [
        in_order(tool.name, MAYBE_LINE_BREAK, xml_arguments(tool, GLM45_FORM))
        for tool in choice.tools
    ]
    rest = in_order(one_of(*calls), Tag(GLM45_END))
    return tagged_calls(choice, GLM45_BEGIN, rest, between=MAYBE_LINE_BREAK)


GLM45 = ToolFormat(
    "glm45", tags=GLM45_TAGS, parse=TaggedCalls((GLM45_BEGIN,), read_glm45), grammar=glm45_grammar
)


# <tool_calls> <tool_call>add<tool_sep> <arg_key>a</arg_key> <arg_value>1</arg_value> </tool_call>
# </tool_calls>
HUNYUAN_V3_ALL_BEGIN = "<tool_calls>"
HUNYUAN_V3_ALL_END = "</tool_calls>"
HUNYUAN_V3_SEPARATOR = "<tool_sep>"


def read_hunyuan_v3(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in Hunyuan V3's format, to the end tag."""
    opening = yield from read_begin(scan, out, opening, HUNYUAN_V3_ALL_BEGIN, GLM45_BEGIN)
    if not opening:
        return
    mark = scan.record()
    name = yield from read_glm45_name(scan)
    yield from scan.take(HUNYUAN_V3_SEPARATOR)
    if (yield from read_named_call(scan, out, GLM45_FORM, name, opening, mark)):
        yield from read_end(scan, out, HUNYUAN_V3_ALL_END)


def hunyuan_v3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Hunyuan V3's format."""
    calls = [
        in_order(
            Tag(GLM45_BEGIN),
            tool.name,
            Tag(HUNYUAN_V3_SEPARATOR),
            "\n",
            xml_arguments(tool, GLM45_FORM),
        )
        for tool in choice.tools
    ]
    call = in_order(one_of(*calls), Tag(GLM45_END), "\n")
    rest = in_order("\n", choice.several(call, ""), Tag(HUNYUAN_V3_ALL_END))
    return tagged_calls(choice, HUNYUAN_V3_ALL_BEGIN, rest, between=None)


HUNYUAN_V3 = ToolFormat(
    "hunyuan_v3",
    tags=(HUNYUAN_V3_ALL_BEGIN, HUNYUAN_V3_ALL_END, HUNYUAN_V3_SEPARATOR, *GLM45_TAGS),
    parse=TaggedCalls((HUNYUAN_V3_ALL_BEGIN, GLM45_BEGIN), read_hunyuan_v3),
    grammar=hunyuan_v3_grammar,
)


TOKENS = ("<function", "<param")
MINICPM5_FORM = _attribute_form("function", "param", has_cdata=True, tokens=TOKENS)


def read_minicpm5(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads a call in MiniCPM5's format, `<function name="f"><param name="a">1</param></function>`,
    whose tag `opening` has been read."""
    yield from read_call(scan, out, MINICPM5_FORM, opening)


def minicpm5_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in MiniCPM5's format."""
    begin, _ = TOKENS
    call = xml_calls(choice.tools, MINICPM5_FORM, begun=begin)
    return tagged_calls(choice, begin, call, between=MAYBE_LINE_BREAK)


MINICPM5 = ToolFormat(
    "minicpm5",
    tags=(*TOKENS, MINICPM5_FORM.function_end, MINICPM5_FORM.parameter_end),
    parse=TaggedCalls((MINICPM5_FORM.function_begin,), read_minicpm5),
    grammar=minicpm5_grammar,
)


# <minimax:tool_call> <invoke name="add"> <parameter name="a">1</parameter> </invoke>
# </minimax:tool_call>
MINIMAX_M2_FORM = _attribute_form("invoke", "parameter", trims_lines=False, gap="\n")

MINIMAX_M2 = tagged_xml(
    "minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", MINIMAX_M2_FORM, is_list=True
)


# <tool_call> <invoke name="add"><a>1</a><more><item>2</item></more></invoke> </tool_call>
MINIMAX_M3_TOKEN = "]<]minimax[>["
MINIMAX_M3_BEGIN, MINIMAX_M3_END = (
    f"{MINIMAX_M3_TOKEN}<tool_call>",
    f"{MINIMAX_M3_TOKEN}</tool_call>",
)
INVOKE, INVOKE_END = f"{MINIMAX_M3_TOKEN}<invoke name=", "</invoke>"


def read_minimax_m3(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in MiniMax M3's format, elements after a special token."""
    opening = yield from read_begin(scan, out, opening, MINIMAX_M3_BEGIN, INVOKE)
    while opening and (yield from _read_minimax_m3_call(scan, out, opening)):
        opening = yield from read_next(scan, out, INVOKE, MINIMAX_M3_END)


def _read_minimax_m3_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    mark = scan.record()
    name = yield from read_name(scan, ">")
    if not name:
        out.broken(opening + scan.recorded(mark))
        return False
    out.begin(name, opening, mark)
    tool = out.tool(name)
    rest = yield from read_elements(scan, out, MINIMAX_M3_TOKEN, tool, INVOKE_END)
    out.end(complete=rest is None, rest=rest or "")
    return rest is None


def minimax_m3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in MiniMax M3's format."""
    calls = [
        in_order(
            Tag(f'{INVOKE}"{tool.name}">'),
            nested_elements(tool, MINIMAX_M3_TOKEN),
            Tag(f"{MINIMAX_M3_TOKEN}{INVOKE_END}"),
        )
        for tool in choice.tools
    ]
    rest = in_order("\n", choice.several(one_of(*calls), "\n"), "\n", Tag(MINIMAX_M3_END))
    return tagged_calls(choice, MINIMAX_M3_BEGIN, rest, between=None)


MINIMAX_M3 = ToolFormat(
    "minimax_m3",
    tags=(MINIMAX_M3_TOKEN,),
    parse=TaggedCalls((MINIMAX_M3_BEGIN, INVOKE), read_minimax_m3),
    grammar=minimax_m3_grammar,
)


# to=self<|message|>why<|eom|> <|start|>assistant to=add<|message|><atem:function_calls>
# <atem:invoke name="add"> <atem:parameter name="a">1</atem:parameter> </atem:invoke>
# </atem:function_calls><|eom|> <|start|>assistant to=user<|message|>answer<|eot|>
ONYX_START, ONYX_MESSAGE = "<|start|>", "<|message|>"
ONYX_END_MESSAGE, ONYX_END_TURN = "<|eom|>", "<|eot|>"
ONYX_BEGIN = "<atem:function_calls>"
ONYX_END = "</atem:function_calls>"
ONYX_FORM = _attribute_form("atem:invoke", "atem:parameter", trims_lines=False, gap="\n")
_ENDS = (ONYX_END_MESSAGE, ONYX_END_TURN)
_KINDS = {"user": MessageKind.CONTENT, "self": MessageKind.REASONING}
_RECIPIENT = re.compile(r"to=([^\s<]+)")


def _read_header(text: str, functions: Collection[str]) -> Header:
    match = _RECIPIENT.search(text)
    recipient = match[1] if match is not None else "user"
    kind = _KINDS.get(recipient, MessageKind.CALL)
    return Header(kind, recipient if kind is MessageKind.CALL else "")


def _read_onyx_call(scan: Scanner, out: PieceCollector, function: str) -> Incremental[None]:
    """Reads a call. The elements name the functions, not the header."""
    invoke = ONYX_FORM.function_begin
    while (found := (yield from scan.until((ONYX_BEGIN, invoke, *_ENDS), out.content))) is not None:
        if found in _ENDS:
            scan.put_back(found)
            return
        opening = yield from read_begin(scan, out, found, ONYX_BEGIN, invoke)
        while opening and (yield from read_call(scan, out, ONYX_FORM, opening)):
            yield from scan.space()
            opening = invoke
            if not (yield from scan.take(invoke)):
                yield from scan.take(ONYX_END)
                break


ONYX_MESSAGES = HeadedMessages(
    header=re.compile(r"(\s|<\|start\|>\w*|to=[^\s<]*)*"),
    begins=(ONYX_START,),
    more_begins=("to=", ONYX_MESSAGE),
    body=ONYX_MESSAGE,
    ends=_ENDS,
    read_header=_read_header,
    read_call=_read_onyx_call,
)


def onyx_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Onyx's format; required calls are separate messages."""
    if not choice.required:
        return tagged_calls(choice, ONYX_BEGIN, _elements(choice.tools), between="")
    headers = [in_order(f" to={tool.name}", Tag(ONYX_MESSAGE), ONYX_BEGIN) for tool in choice.tools]
    elements = [_elements([tool]) for tool in choice.tools]
    call = one_of(*map(in_order, headers, elements))
    between = in_order(Tag(ONYX_END_MESSAGE), Tag(ONYX_START), "assistant")
    return choice.several(call, between)


def _elements(tools: Sequence[Tool]) -> Node:
    return in_order("\n", xml_calls(tools, ONYX_FORM), "\n", ONYX_END)


ONYX_TAGS = (ONYX_START, ONYX_MESSAGE, ONYX_END_MESSAGE, ONYX_END_TURN)
ONYX = ToolFormat("onyx", tags=ONYX_TAGS, parse=ONYX_MESSAGES, grammar=onyx_grammar)


#     <tool_call>
#     <function=add>
#     <parameter=a>
#     1
#     </parameter>
#     </function>
#     </tool_call>
#
# The outer tags may be missing. Nemotron 3, Step 3.5 and MiMo write the same.
QWEN3CODER_FORM = XmlForm(
    function=("<function=", ">"),
    function_end="</function>",
    parameter=("<parameter=", ">"),
    parameter_end="</parameter>",
    line="\n",
    gap="\n",
    mends_ends=True,
)

QWEN3CODER = tagged_xml(
    "qwen3coder", "<tool_call>", "</tool_call>", QWEN3CODER_FORM, between=MAYBE_LINE_BREAK
)


# <seed:tool_call> <function=add> <parameter=a>1</parameter> </function> </seed:tool_call>
SEED_OSS_FORM = replace(QWEN3CODER_FORM, line="", trims_lines=False, mends_ends=False)

SEED_OSS = tagged_xml("seed_oss", "<seed:tool_call>", "</seed:tool_call>", SEED_OSS_FORM)


# <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="add">
# <steptml:parameter name="a">1</steptml:parameter></steptml:invoke><｜tool_call_end｜>
# <｜tool_calls_end｜>
STEP3_ALL_BEGIN, STEP3_ALL_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
STEP3_BEGIN, STEP3_END, STEP3_SEPARATOR = (
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
)
_KIND = "function"
STEP3_FORM = _attribute_form("steptml:invoke", "steptml:parameter", trims_lines=False)


def read_step3(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads a call. The markup's text may also occur within it."""
    if opening == STEP3_ALL_BEGIN:
        opening += yield from scan.space()
        if (yield from scan.take(STEP3_BEGIN)):
            opening += STEP3_BEGIN
    pieces: list[str] = []
    invoke = STEP3_FORM.function_begin
    found = yield from scan.until((invoke, STEP3_END, STEP3_ALL_END), pieces.append)
    opening += "".join(pieces) + (found or "")
    if found != invoke:
        out.broken(opening)
    elif (yield from read_call(scan, out, STEP3_FORM, opening)):
        yield from read_end(scan, out, STEP3_END)
        yield from scan.take(STEP3_SEPARATOR)
        yield from read_end(scan, out, STEP3_ALL_END)


def step3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Step3's format."""
    call = in_order(
        Tag(STEP3_BEGIN),
        _KIND,
        Tag(STEP3_SEPARATOR),
        xml_calls(choice.tools, STEP3_FORM),
        Tag(STEP3_END),
    )
    rest = in_order(choice.several(call, ""), Tag(STEP3_ALL_END))
    return tagged_calls(choice, STEP3_ALL_BEGIN, rest, between=None)


STEP3 = ToolFormat(
    "step3",
    tags=(STEP3_ALL_BEGIN, STEP3_ALL_END, STEP3_BEGIN, STEP3_END, STEP3_SEPARATOR),
    parse=TaggedCalls((STEP3_ALL_BEGIN, STEP3_BEGIN), read_step3),
    grammar=step3_grammar,
)


_ONYX_BEGIN = in_order(" to=self", Tag(ONYX_MESSAGE))
_ONYX_REST = in_order(Until(ONYX_END_MESSAGE), optional(in_order(Tag(ONYX_START), "assistant")))
ONYX_REASONING = ReasoningFormat(
    "onyx",
    tags=ONYX_TAGS,
    parse=ONYX_MESSAGES,
    begin=f"to=self{ONYX_MESSAGE}",
    before_answer=optional(in_order(_ONYX_BEGIN, _ONYX_REST)),
    rest=_ONYX_REST,
    open_answer=in_order(" to=user", Tag(ONYX_MESSAGE)),
    closing=f"{ONYX_END_MESSAGE}{ONYX_START}assistant",
)
