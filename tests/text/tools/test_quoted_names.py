"""Names of functions and parameters in quotes, in every format with elements."""

from __future__ import annotations

import json
import re

import pytest

from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS
from tests.text.tools.checks import SHOP, call, check_sample

FORMATS = (
    "deepseek_v32", "functionary_v31", "glm45", "hunyuan_v3", "minicpm5", "minimax_m2",
    "minimax_m3", "onyx", "qwen3coder", "seed_oss", "step3",
)  # fmt: skip
ARGUMENTS = {"query": "tea", "limit": 3}
NAME = re.compile(r"""(?<=[=>])(?<!to=)"?\b(search|query|limit)\b"?(?=[><\s])""")
ELEMENTS_ARE_NAMES = ("minimax_m3",)


@pytest.mark.parametrize("quoted", ["{}", '"{}"', "'{}'", ' "{}" ', " {} ", "' {} '"])
@pytest.mark.parametrize("name", FORMATS)
def test_names_are_read_in_any_quotes(name: str, quoted: str) -> None:
    tool_format = TOOL_FORMATS[name]
    text = written_call(tool_format, "search", ARGUMENTS)
    if name == "functionary_v31":
        text = text.replace("=search", f"={quoted.format('search')}")
    else:
        pattern = re.compile(NAME.pattern.replace("search|query|limit", "search"))
        pattern = pattern if name in ELEMENTS_ARE_NAMES else NAME
        text, number = pattern.subn(lambda match: quoted.format(match[1]), text)
        assert number >= (1 if name in ELEMENTS_ARE_NAMES else 3), text
    separators = (", ", ": ") if name == "functionary_v31" else (",", ":")
    arguments = json.dumps(ARGUMENTS, separators=separators)
    check_sample(tool_format, text, call(0, "search", arguments), SHOP)
