"""Reads and constrains Gemma 4's calls: `<|tool_call>call:add{a:1,s:<|"|>x<|"|>}<tool_call|>`."""

from fastovms.text.tools.calls.braced_call import braced_calls

GEMMA4 = braced_calls(
    "gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', marks=(("<|tool_call>call:",),)
)
