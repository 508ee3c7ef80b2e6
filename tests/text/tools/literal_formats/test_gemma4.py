"""Gemma 4."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.literal_formats.gemma4 import GEMMA4
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
    "a missing value": (calls("call:now{a:}"), call(0, "now", '{"a":""}')),
    "words without quotes": (
        calls("call:order{items:[a b,{sku:x-1}],priority:high,note:12,x:007 A}"),
        call(
            0, "order", '{"items":["a b",{"sku":"x-1"}],"priority":"high","note":"12","x":"007 A"}'
        ),
    ),
    "no number where the schema wants text": (
        calls("call:search{query:1.50,limit:108.}"),
        call(0, "search", '{"query":"1.50","limit":108.0}'),
    ),
    "text before numbers in quotes": (
        calls('call:search{<|"|>query<|"|>:<|"|>1<|"|>,limit:3,}'),
        call(0, "search", '{"query":"1","limit":3}'),
    ),
    "a space before the name": (
        calls("call: search{query:a}call:  now{}"),
        call(0, "search", '{"query":"a"}') + call(1, "now", "{}"),
    ),
    "a missing brace": (
        calls("call:now{a:b"),
        [*call(0, "now", '{"a":"b"', complete=False), Content("<tool_call|>")],
    ),
    "a cut word": (
        "<|tool_call>call:now{a:some wo",
        call(0, "now", '{"a":"some wo', complete=False),
    ),
    "a cut number": ("<|tool_call>call:now{a:12", call(0, "now", '{"a":12', complete=False)),
    "cut": (
        '<|tool_call>call:now{a:<|"|>te<|"',
        call(0, "now", '{"a":"te', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(GEMMA4, *SAMPLES[name], SHOP)
