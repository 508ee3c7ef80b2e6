"""Reads and constrains InternLM's calls: `<|action_start|><|plugin|>{"name": "add", "parameters":
{"a": 1}}<|action_end|>`."""

from fastovms.grammar_tree import MAYBE_LINE_BREAK
from fastovms.text.tools.calls.tagged_json import tagged_json

INTERNLM = tagged_json(
    "internlm",
    "<|action_start|>",
    "<|action_end|>",
    is_list=False,
    keys=("name", "parameters"),
    kind="<|plugin|>",
    line=MAYBE_LINE_BREAK,
    marks=(("<|action_start|>",),),
)
