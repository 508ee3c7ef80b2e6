"""Reads and constrains the calls of Granite 20B for function calling: `<function_call> {"name":
"add", "arguments": {"a": 1}}`, once for each."""

from fastovms.text.tools.calls.tagged_json import tagged_json

GRANITE_20B = tagged_json(
    "granite_20b_fc",
    "<function_call>",
    "",
    is_list=False,
    line=" ",
    aliases=("granite-20b-fc",),
    marks=(("<function_call>",),),
)
