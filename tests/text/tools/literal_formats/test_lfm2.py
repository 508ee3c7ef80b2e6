"""LFM 2."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.literal_formats.lfm2 import LFM2
from tests.text.tools.checks import SHOP, call, check_sample


def calls(text: str) -> str:
    return f"<|tool_call_start|>[{text}]<|tool_call_end|>"


SAMPLES = {
    "one": (
        calls('search(query="data1, data2", limit=42)'),
        call(0, "search", '{"query":"data1, data2","limit":42}'),
    ),
    "several, content around": (
        f"A {calls('now(), now( )')} B",
        [Content("A"), *call(0, "now", "{}"), *call(1, "now", "{}"), Content("  B")],
    ),
    "containers": (
        calls("order(items=[{'sku': 'x', 'count': 9,}, {}], t=(1, 2), e=[])"),
        call(0, "order", '{"items":[{"sku":"x","count":9},{}],"t":[1,2],"e":[]}'),
    ),
    "literals": (
        calls("now(a=True, b=False, c=None, d=-1.50, e=+.5, f=1_000, g=007, h=1e3, i=null)"),
        call(
            0,
            "now",
            '{"a":true,"b":false,"c":null,"d":-1.50,"e":0.5,"f":1000,"g":7,"h":1e3,"i":null}',
        ),
    ),
    "strings": (
        calls(r"""now(a='it\'s "q" \x41\u00e9\n', b="\d\/ü", c="😀\U0001F600")"""),
        call(0, "now", r'{"a":"it' + "'" + r's \"q\" A\u00e9\n","b":"\\d/ü","c":"😀\ud83d\ude00"}'),
    ),
    "a line break in a string": (calls("now(a='x\ny')"), call(0, "now", r'{"a":"x\ny"}')),
    "JSON": (calls('{"name": "now", "arguments": {"a": 1}}'), call(0, "now", '{"a": 1}')),
    "one without a list": (
        '<|tool_call_start|>{"name": "now", "arguments": {}}<|tool_call_end|>',
        call(0, "now", "{}"),
    ),
    "a comma at the end": (calls("now(a=1,)"), call(0, "now", '{"a":1}')),
    "arguments without names": (calls("now(1)"), [Content(calls("now(1)"))]),
    "no call": (calls("now"), [Content(calls("now"))]),
    "nothing": (calls(""), [Content(calls(""))]),
    "an unknown word": (
        calls("now(a=1, b=celsius)"),
        [
            *call(0, "now", '{"a":1,"b":', complete=False),
            Content("celsius)]<|tool_call_end|>"),
        ],
    ),
    "no comma": (
        calls("now(a=1 b=2)"),
        [*call(0, "now", '{"a":1', complete=False), Content("b=2)]<|tool_call_end|>")],
    ),
    "cut": (
        "<|tool_call_start|>[now(a=Tr",
        call(0, "now", '{"a":tr', complete=False),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(LFM2, *SAMPLES[name], SHOP)
