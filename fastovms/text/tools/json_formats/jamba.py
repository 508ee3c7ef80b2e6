"""Reads and constrains the calls of Jamba, Hunyuan A13B and Apriel: `<tool_calls>[{"name": "add",
"arguments": {"a": 1}}, ...]</tool_calls>`."""

from fastovms.text.tools.calls.tagged_json import tagged_json

JAMBA = tagged_json(
    "jamba",
    "<tool_calls>",
    "</tool_calls>",
    aliases=("hunyuan_a13b", "apriel"),
    marks=(("<tool_calls>",),),
)
