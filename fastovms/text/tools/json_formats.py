"""Tool-call formats of model families in JSON."""

from __future__ import annotations

import json
import re

from fastovms.grammar_tree import (
    ANY_TEXT,
    MAYBE_LINE_BREAK,
    Node,
    OtherText,
    Regex,
    Repeat,
    Tag,
    TextBefore,
    in_order,
    one_of,
    optional,
)
from fastovms.text.parameters import CallChoice
from fastovms.text.scanning import Incremental, PieceCollector, Scanner
from fastovms.text.tools.json_calls import (
    CallTags,
    json_call,
    json_calls,
    read_calls,
    read_list,
    tagged_json,
)
from fastovms.text.tools.python_calls import CALLS, TAG, TAGS
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat, read_end, tagged_calls
from fastovms.text.tools.xml_calls import named_call, read_arguments
from fastovms.text.values import read_string

# {"name": "add", "arguments": {"a": 1}}
_FENCE = "```"
BLOCKS = ("```json\n", "```tool_call\n", "```tool_code\n")
BEGINS = ("{", "[")


def read_plain_json(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads consecutive calls of known functions, and the end of the code block around them."""
    known = [tool.name for tool in out.tools]
    is_block = bool(opening)
    num_calls = out.num_calls
    opening += yield from scan.space()
    while (yield from scan.peek()) in BEGINS:
        if not (yield from read_calls(scan, out, opening, known)):
            return
        opening = yield from scan.space()
        for separator in (",", ";"):
            if (yield from scan.take(separator)):
                opening += separator + (yield from scan.space())
    if out.num_calls > num_calls and is_block and (yield from scan.take(_FENCE)):
        return
    out.broken(opening)


def plain_json_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls as JSON objects without tags."""
    call = json_call(choice.tools)
    calls = choice.several(call, "\n")
    begins = [f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    return calls if choice.required else one_of(calls, OtherText(tuple(begins)))


PLAIN_JSON = ToolFormat(
    "json",
    tags=(),
    parse=TaggedCalls(BLOCKS, read_plain_json, bare=BEGINS, end_reasoning=False),
    grammar=plain_json_grammar,
)


APERTUS_BEGIN = "<|tools_prefix|>"
APERTUS_END = "<|tools_suffix|>"


def read_apertus(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads a list of calls in Apertus's format, to the end tag."""
    opening += yield from scan.space()
    if not (yield from scan.take("[")):
        out.broken(opening)
    elif (yield from read_list(scan, out, opening + "[", _read_call)):
        yield from read_end(scan, out, APERTUS_END)


def _read_call(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[bool]:
    mark = scan.record()
    is_call = yield from scan.take("{")
    yield from scan.space()
    name = (yield from read_string(scan)) if is_call else None
    yield from scan.space()
    is_call = bool(name) and (yield from scan.take(":"))
    opening += scan.recorded(mark)
    if not is_call:
        out.broken(opening)
        return False
    if not (yield from read_arguments(scan, out, name or "", opening)):
        return False
    yield from scan.space()
    return (yield from scan.take("}"))


def apertus_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Apertus's format."""
    names = [json.dumps(tool.name, ensure_ascii=False) for tool in choice.tools]
    calls = [
        in_order(f"{{{name}: ", tool.arguments, "}")
        for name, tool in zip(names, choice.tools, strict=True)
    ]
    rest = in_order(json_calls(one_of(*calls), parallel=choice.parallel), Tag(APERTUS_END))
    return tagged_calls(choice, APERTUS_BEGIN, rest, between=None)


APERTUS = ToolFormat(
    "apertus",
    tags=(APERTUS_BEGIN, APERTUS_END),
    parse=TaggedCalls((APERTUS_BEGIN,), read_apertus),
    grammar=apertus_grammar,
)


# <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "add", "parameters": {"a":
# 1}}]<|END_ACTION|>
_KEYS = ("tool_name", "parameters")

COMMAND_R7B = tagged_json(
    "command_r7b",
    CallTags("<|START_ACTION|>", "<|END_ACTION|>"),
    keys=_KEYS,
    first=optional(in_order('"tool_call_id": "', Regex("[0-9]{1,3}"), '", ')),
)
COMMAND_R = tagged_json(
    "command_r",
    CallTags("Action: ```json\n", "```", also=("Action:```json\n", "Action:\n```json\n")),
    keys=_KEYS,
)


# Granite 3.1 and 4 write `<tool_call>` for the tag, Granite 4 a call at a time.
GRANITE_BEGIN = "<|tool_call|>"
OTHER_BEGIN = "<tool_call>"
GRANITE_END = "</tool_call>"


def read_granite(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in Granite's format, to the end tag."""
    if (yield from read_calls(scan, out, opening)):
        yield from read_end(scan, out, GRANITE_END)


def granite_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Granite's format."""
    calls = json_calls(json_call(choice.tools), parallel=choice.parallel)
    return tagged_calls(choice, GRANITE_BEGIN, calls, between=None)


GRANITE = ToolFormat(
    "granite",
    tags=(GRANITE_BEGIN, OTHER_BEGIN, GRANITE_END),
    parse=TaggedCalls((GRANITE_BEGIN, OTHER_BEGIN), read_granite),
    grammar=granite_grammar,
)


GRANITE_20B = tagged_json(
    "granite_20b_fc", CallTags("<function_call>", ""), is_list=False, line=" "
)


HERMES3 = tagged_json(
    "hermes3", CallTags("<tool_call>", "</tool_call>"), is_list=False, line=MAYBE_LINE_BREAK
)


INTERNLM = tagged_json(
    "internlm",
    CallTags("<|action_start|>", "<|action_end|>", kind="<|plugin|>"),
    is_list=False,
    keys=("name", "parameters"),
    line=MAYBE_LINE_BREAK,
)


JAMBA = tagged_json("jamba", CallTags("<tool_calls>", "</tool_calls>"))


# <|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}
LLAMA3_TAG = TAG


def llama3_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Llama 3's format: JSON objects, optionally after a tag."""
    call = json_call(choice.tools, "parameters")
    calls = choice.several(call, "; ")
    begun = in_order(one_of(Tag(LLAMA3_TAG), ""), calls)
    if choice.required:
        return begun
    bare = [f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    before = ANY_TEXT.excluding(rf"\s*({'|'.join(map(re.escape, bare))})(.|\n)*")
    return one_of(
        begun,
        in_order(TextBefore(LLAMA3_TAG, before), calls),
        OtherText(tuple(bare), (LLAMA3_TAG,)),
    )


LLAMA3 = ToolFormat("llama3", tags=TAGS, parse=CALLS, grammar=llama3_grammar)


# An answer that begins with `[{"` is calls too. Since version 11 of its tokenizer, and in
# Devstral, each call has the tag: `[TOOL_CALLS]add[ARGS]{"a": 1}`, at first without `[ARGS]`.
# Both parsers read both.
MISTRAL_BEGIN = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_BARE = '[{"'


def read_mistral(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in Mistral's formats: a JSON list, or a name and its arguments after each tag."""
    opening += yield from scan.space()
    if (yield from scan.peek()) in ("[", "{"):
        yield from read_calls(scan, out, opening)
    else:
        yield from _read_named(scan, out, opening)


def _read_named(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    pieces: list[str] = []
    tag = yield from scan.until((ARGUMENTS, _CALL_ID, MISTRAL_BEGIN, "{"), pieces.append)
    name = "".join(pieces)
    opening += name
    if tag == _CALL_ID:
        pieces.clear()
        tag = yield from scan.until((ARGUMENTS, MISTRAL_BEGIN, "{"), pieces.append)
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
    yield from read_arguments(scan, out, name.strip(), opening, (MISTRAL_BEGIN,))


def list_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Mistral's older format, a JSON list."""
    calls = in_order(Regex(" ?"), json_calls(json_call(choice.tools), parallel=choice.parallel))
    return tagged_calls(choice, MISTRAL_BEGIN, calls, between=None)


def named_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Mistral's newer format: a name, a tag and the arguments."""
    return tagged_calls(choice, MISTRAL_BEGIN, named_call(choice.tools, Tag(ARGUMENTS)), between="")


MISTRAL_TAGS = (MISTRAL_BEGIN, ARGUMENTS, _CALL_ID)
MISTRAL_CALLS = TaggedCalls((MISTRAL_BEGIN,), read_mistral, bare=(_BARE,))
MISTRAL = ToolFormat("mistral", tags=MISTRAL_TAGS, parse=MISTRAL_CALLS, grammar=list_grammar)
DEVSTRAL = ToolFormat("devstral", tags=MISTRAL_TAGS, parse=MISTRAL_CALLS, grammar=named_grammar)


NEMOTRON = tagged_json("nemotron", CallTags("<TOOLCALL>", "</TOOLCALL>"))


PHI4_BEGIN = "functools["
PHI4_TAG = "<|tool_call|>"
PHI4_END = "<|/tool_call|>"


def read_phi4(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in Phi-4's format, to the end tag."""
    if opening == PHI4_BEGIN:
        scan.put_back("[")
    if (yield from read_calls(scan, out, opening.removesuffix("["))):
        yield from read_end(scan, out, PHI4_END)


def phi4_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in Phi-4's format."""
    calls = json_calls(json_call(choice.tools), parallel=choice.parallel, begin="")
    return tagged_calls(choice, PHI4_BEGIN, calls, between=None)


PHI4 = ToolFormat(
    "phi4",
    tags=(PHI4_TAG, PHI4_END),
    parse=TaggedCalls((PHI4_BEGIN, PHI4_TAG), read_phi4),
    grammar=phi4_grammar,
)


XLAM_TAGS = ("[TOOL_CALLS]", "<tool_call>")
XLAM_END = "</tool_call>"


def read_xlam(scan: Scanner, out: PieceCollector, opening: str) -> Incremental[None]:
    """Reads calls in xLAM's format: a JSON list, with or without tags."""
    if opening not in XLAM_TAGS:
        yield from read_plain_json(scan, out, opening)
    elif (yield from read_calls(scan, out, opening)):
        yield from read_end(scan, out, XLAM_END)


def xlam_grammar(choice: CallChoice) -> Node:
    """Returns the grammar of calls in xLAM's format, without tags."""
    more = [Repeat(in_order(", ", json_call(choice.tools)))] if choice.parallel else []
    calls = in_order(json_call(choice.tools, begin="[{"), *more, "]")
    begins = [f'[{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    return calls if choice.required else one_of(calls, OtherText(tuple(begins)))


XLAM = ToolFormat(
    "xlam",
    tags=(*XLAM_TAGS, XLAM_END),
    parse=TaggedCalls((*BLOCKS, *XLAM_TAGS), read_xlam, bare=BEGINS, end_reasoning=False),
    grammar=xlam_grammar,
)
