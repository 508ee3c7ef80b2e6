"""Reads and constrains the calls of Hermes and of Qwen 2.5 and 3: `<tool_call>{"name": "add",
"arguments": {"a": 1}}</tool_call>`."""

from fastovms.grammar_tree import MAYBE_LINE_BREAK
from fastovms.text.tools.calls.tagged_json import tagged_json

HERMES3 = tagged_json(
    "hermes3",
    "<tool_call>",
    "</tool_call>",
    is_list=False,
    line=MAYBE_LINE_BREAK,
    aliases=("hermes", "granite4", "ernie45"),
    marks=(("<tool_call>",),),
)
