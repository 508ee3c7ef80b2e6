"""Reads and constrains the calls of Llama 3: JSON at the beginning or behind a tag, several
separated by semicolons:

<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}
"""

from __future__ import annotations

import json
import re

from fastovms.grammar_tree import (
    ANY_TEXT,
    Node,
    OtherText,
    Tag,
    TextBefore,
    in_order,
    one_of,
    several,
)
from fastovms.text.scanning.tool import CallChoice
from fastovms.text.tools.calls import llama_calls
from fastovms.text.tools.calls.json_call import json_call
from fastovms.text.tools.tool_format import ToolFormat

TAG = llama_calls.TAG


def grammar(choice: CallChoice) -> Node:
    call = json_call(choice.tools, "parameters")
    calls = several(call, "; ") if choice.parallel else call
    begun = in_order(one_of(Tag(TAG), ""), calls)
    if choice.required:
        return begun
    bare = [f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}' for tool in choice.tools]
    before = ANY_TEXT.excluding(rf"\s*({'|'.join(map(re.escape, bare))})(.|\n)*")
    return one_of(begun, in_order(TextBefore(TAG, before), calls), OtherText(tuple(bare), (TAG,)))


LLAMA3 = ToolFormat(
    "llama3",
    tags=llama_calls.TAGS,
    parse=llama_calls.CALLS,
    grammar=grammar,
    aliases=("llama3_json", "llama4_json"),
    marks=((TAG,), ("<|start_header_id|>", '"parameters":')),
)
