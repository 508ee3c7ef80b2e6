"""DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.named_formats.deepseek import DEEPSEEK, DEEPSEEK_V31
from tests.text.tools.checks import SHOP, call, check_sample

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str) -> str:
    return f"{BEGIN}function{SEPARATOR}{name}\n```json\n{arguments}\n```{END}"


SAMPLES = {
    "fenced": (
        "Let me see.\n\n" + ALL + fenced("search", '{"query": "```"}') + ALL_END,
        [Content("Let me see."), *call(0, "search", '{"query": "```"}')],
    ),
    "several": (
        f"{ALL}{fenced('now', '{}')}\n{fenced('now', '{}')}{ALL_END}",
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
    "without a fence": (
        f'{ALL}{BEGIN}function{SEPARATOR}search{{"query": "a"}}{END}{ALL_END}',
        call(0, "search", '{"query": "a"}'),
    ),
    "without a list": (fenced("now", "{}"), call(0, "now", "{}")),
    "V3.1": (
        f'{ALL}{BEGIN}search{SEPARATOR}{{"query": "a"}}{END}'
        f"{BEGIN}now{SEPARATOR}{{}}{END}{ALL_END}",
        call(0, "search", '{"query": "a"}') + call(1, "now", "{}"),
    ),
    "V3.1, a function of that name": (
        f'{BEGIN}function{SEPARATOR}{{"a": 1}}{END}',
        call(0, "function", '{"a": 1}'),
    ),
    "no arguments": (f"{BEGIN}function{SEPARATOR}now\n{END}", call(0, "now", "{}")),
    "a tag alone": (f"{ALL}x", [Content(f"{ALL}x")]),
    "no separator": (f"{ALL}{BEGIN}now{END}", [Content(f"{ALL}{BEGIN}now{END}")]),
    "cut in the name": (f"{BEGIN}function{SEPARATOR}no", []),
    "no JSON": (
        f"{BEGIN}function{SEPARATOR}now\noops",
        [Content(f"{BEGIN}function{SEPARATOR}now\noops")],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    for tool_format in (DEEPSEEK, DEEPSEEK_V31):
        check_sample(tool_format, *SAMPLES[name], SHOP)
