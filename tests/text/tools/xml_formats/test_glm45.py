"""GLM 4.5 and later."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.xml_formats.glm45 import GLM45
from tests.text.tools.checks import SHOP, call, check_sample


def element(name: str, *arguments: tuple[str, str], line: str = "\n") -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in arguments
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


SAMPLES = {
    "types by the schema": (
        element("search", ("query", "12"), ("limit", "5"), ("exact", "true")),
        call(0, "search", '{"query":"12","limit":5,"exact":true}'),
    ),
    "no line breaks": (
        element("search", ("query", " a\n"), line=""),
        call(0, "search", '{"query":" a\\n"}'),
    ),
    "several, content around": (
        f"Look:\n{element('now')}\n{element('now')}\nDone.",
        [Content("Look:"), *call(0, "now", "{}"), *call(1, "now", "{}"), Content("\n\n\nDone.")],
    ),
    "no value": (
        "<tool_call>search\n<arg_key>query</arg_key>\nx</tool_call>",
        [*call(0, "search", "", complete=False), Content("x</tool_call>")],
    ),
    "cut": (
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>ab",
        call(0, "search", '{"query":"ab', complete=False),
    ),
    "no name": (
        "<tool_call>\n<arg_key>query</arg_key>",
        [Content("<tool_call>\n<arg_key>query</arg_key>")],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    text, pieces = SAMPLES[name]
    check_sample(GLM45, text, pieces, SHOP)
