"""Gemma 4."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.gemma4 import GEMMA4
from tests.text.tools.checks import SHOP, call, check_sample


def calls(text: str) -> str:
    return f"<|tool_call>{text}<tool_call|>"


SAMPLES = {
    "one": (
        calls('call:search{query:<|"|>data1,data2<|"|>,limit:42}'),
        call(0, "search", '{"query":"data1,data2","limit":42}'),
    ),
    "several in a block and content around": (
        f"A {calls('call:now{}call:now{a:true}')} B {calls('call:now{}')}",
        [
            Content("A"),
            *call(0, "now", "{}"),
            *call(1, "now", '{"a":true}'),
            Content("  B"),
            *call(2, "now", "{}"),
        ],
    ),
    "containers": (
        calls(
            'call:order{items:[{sku:<|"|>x<|"|>,count:9},{}],a:[42,-1.5],<|"|>b c<|"|>:{d:null}}'
        ),
        call(0, "order", '{"items":[{"sku":"x","count":9},{}],"a":[42,-1.5],"b c":{"d":null}}'),
    ),
    "escapes": (
        calls('call:now{a:<|"|>"q" \\ \n{x:1}<|"|>,b:"JSON\\n"}'),
        call(0, "now", r'{"a":"\"q\" \\ \n{x:1}","b":"JSON\n"}'),
    ),
    "an empty block": (calls(""), [Content(calls(""))]),
    "no call": (calls("oops"), [Content(calls("oops"))]),
    "no arguments": (calls("call:now"), [Content(calls("call:now"))]),
    "a missing value": (
        calls("call:now{a:}"),
        [*call(0, "now", '{"a":', complete=False), Content("}<tool_call|>")],
    ),
    "cut": (
        '<|tool_call>call:now{a:<|"|>te<|"',
        call(0, "now", '{"a":"te<|\\"', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(GEMMA4, *SAMPLES[name], SHOP)
