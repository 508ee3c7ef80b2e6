"""Tests of the formats in `fastovms/text/tools/python_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.text.output import call_grammar
from fastovms.text.scanning import Content, Piece
from fastovms.text.tools import CallChoice
from fastovms.text.tools.python_calls import GEMMA4, LFM2, OLMO3, PYTHONIC
from tests.text.tools.checks import SHOP, call, check_sample
from tests.vocabularies import vocabulary

# Gemma 4.


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
def test_gemma4_sample_gives_its_pieces_however_cut(name: str) -> None:
    check_sample(GEMMA4, *SAMPLES[name], SHOP)


# LFM 2.


def lfm2_calls(text: str) -> str:
    return f"<|tool_call_start|>[{text}]<|tool_call_end|>"


LFM2_SAMPLES = {
    "one": (
        lfm2_calls('search(query="data1, data2", limit=42)'),
        call(0, "search", '{"query":"data1, data2","limit":42}'),
    ),
    "several, content around": (
        f"A {lfm2_calls('now(), now( )')} B",
        [Content("A"), *call(0, "now", "{}"), *call(1, "now", "{}"), Content("  B")],
    ),
    "containers": (
        lfm2_calls("order(items=[{'sku': 'x', 'count': 9,}, {}], t=(1, 2), e=[])"),
        call(0, "order", '{"items":[{"sku":"x","count":9},{}],"t":[1,2],"e":[]}'),
    ),
    "literals": (
        lfm2_calls("now(a=True, b=False, c=None, d=-1.50, e=+.5, f=1_000, g=007, h=1e3, i=null)"),
        call(
            0,
            "now",
            '{"a":true,"b":false,"c":null,"d":-1.50,"e":"+.5","f":"1_000","g":"007","h":1e3,'
            '"i":null}',
        ),
    ),
    "strings": (
        lfm2_calls(r"""now(a='it\'s "q" \x41\u00e9\n', b="\d\/ü", c="😀\U0001F600")"""),
        call(0, "now", r'{"a":"it' + "'" + r's \"q\" A\u00e9\n","b":"\\d/ü","c":"😀\ud83d\ude00"}'),
    ),
    "a line break in a string": (lfm2_calls("now(a='x\ny')"), call(0, "now", r'{"a":"x\ny"}')),
    "JSON": (lfm2_calls('{"name": "now", "arguments": {"a": 1}}'), call(0, "now", '{"a": 1}')),
    "one without a list": (
        '<|tool_call_start|>{"name": "now", "arguments": {}}<|tool_call_end|>',
        call(0, "now", "{}"),
    ),
    "a comma at the end": (lfm2_calls("now(a=1,)"), call(0, "now", '{"a":1}')),
    "arguments without names": (lfm2_calls("now(1)"), [Content(lfm2_calls("now(1)"))]),
    "no call": (lfm2_calls("now"), [Content(lfm2_calls("now"))]),
    "nothing": (lfm2_calls(""), [Content(lfm2_calls(""))]),
    "an unknown word": (
        lfm2_calls("now(a=1, b=celsius)"),
        [
            *call(0, "now", '{"a":1,"b":', complete=False),
            Content("celsius)]<|tool_call_end|>"),
        ],
    ),
    "no comma": (
        lfm2_calls("now(a=1 b=2)"),
        [*call(0, "now", '{"a":1', complete=False), Content("b=2)]<|tool_call_end|>")],
    ),
    "cut": (
        "<|tool_call_start|>[now(a=Tr",
        call(0, "now", '{"a":tr', complete=False),
    ),
}


@pytest.mark.parametrize("name", LFM2_SAMPLES)
def test_lfm2_sample_gives_its_pieces_however_cut(name: str) -> None:
    check_sample(LFM2, *LFM2_SAMPLES[name], SHOP)


# OLMo 3.


SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('<function_calls>\nsearch(query="a")\n</function_calls>', SEARCH),
        ("<function_calls>search(query='a')\nnow()</function_calls> ok",
         [*SEARCH, *call(1, "now", "{}"), Content("ok")]),
        ("I look.\n<function_calls>\nnow()\n</function_calls>", [Content("I look."), *NOW]),
        ("<function_calls>\nnow()\n</functi", NOW),
        ("<function_calls>\nnow", []),
    ],
)  # fmt: skip
def test_olmo3_sample_gives_its_pieces_however_cut(text: str, pieces: list[Piece]) -> None:
    check_sample(OLMO3, text, pieces, SHOP)


# Calls as in Python: which text is a call, and has to follow its schema.


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("plain", True),
        ("[1](a)", True),
        ("[note(a)]", True),
        ("so [now(1)]", True),
        ("[now()]", True),
        ('[search(query="a"), now()]', True),
        ("[now(1)]", False),
        (" [now()] text", False),
    ],
)
def test_text_that_begins_as_a_call_is_constrained(text: str, is_accepted: bool) -> None:
    grammar = call_grammar(PYTHONIC, None, CallChoice(SHOP), prompt="")
    assert vocabulary().accepts(grammar, text) is is_accepted
