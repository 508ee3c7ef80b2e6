"""Calls written in every format are read back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.text.tools import TOOL_FORMATS, Tool
from fastovms.text.tools.written_call import written_call
from tests.text.tools.checks import calls_in

ARGUMENTS: dict[str, Any] = {
    "text": 'a "b" \\ü', "lines": "x\ny", "number": 2.5, "flag": True, "none": None,
    "list": [1, {"a": []}], "object": {"b": "c"},
}  # fmt: skip
PROPERTIES = {key: {} for key in ARGUMENTS} | {
    "text": {"type": "string"},
    "lines": {"type": "string"},
}
TOOLS = [Tool("f", {"properties": PROPERTIES}), Tool("g")]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_written_call_is_that_call(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    text = written_call(tool_format, "f", ARGUMENTS)
    assert calls_in(tool_format, text, TOOLS) == [("f", ARGUMENTS)], text
    assert calls_in(tool_format, written_call(tool_format, "g", {}), TOOLS) == [("g", {})]
