"""Reads and constrains FunctionGemma's calls:
`<start_function_call>call:add{a:1,s:<escape>x<escape>}<end_function_call>`."""

from fastovms.text.tools.calls.braced_call import braced_calls

FUNCTIONGEMMA = braced_calls(
    "functiongemma",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    marks=(("<start_function_call>",),),
)
