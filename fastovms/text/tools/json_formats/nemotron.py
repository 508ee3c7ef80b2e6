"""Reads and constrains the calls of Nemotron Nano 2: `<TOOLCALL>[{"name": "add", "arguments":
{"a": 1}}, ...]</TOOLCALL>`."""

from fastovms.text.tools.calls.tagged_json import tagged_json

NEMOTRON = tagged_json(
    "nemotron",
    "<TOOLCALL>",
    "</TOOLCALL>",
    aliases=("nemotron_json", "nemotron_nano_v2"),
    marks=(("<TOOLCALL>",),),
)
