"""Tests of the formats in `fastovms/text/tools/python_calls.py`."""

from __future__ import annotations

import pytest

from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.scanning import Content, Piece
from fastovms.text.tools import CallChoice, Tool, ToolFormat
from fastovms.text.tools.json_formats import LLAMA3
from fastovms.text.tools.python_calls import GEMMA4, LFM2, OLMO3, PYTHONIC, pythonic_calls
from tests.text.tools.checks import SHOP, call, check_sample, samples
from tests.vocabularies import vocabulary

# Gemma 4.


def calls(text: str) -> str:
    return f"<|tool_call>{text}<tool_call|>"


GEMMA4_SAMPLES = {
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
    "escapes": (
        calls('call:now{a:<|"|>"q" \\ \n{x:1}<|"|>,b:"JSON\\n"}'),
        call(0, "now", r'{"a":"\"q\" \\ \n{x:1}","b":"JSON\n"}'),
    ),
    "a comma between calls": (
        calls("call:now{}, call:now{}"),
        call(0, "now", "{}") + call(1, "now", "{}"),
    ),
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


# LFM 2.


def lfm2_calls(text: str) -> str:
    return f"<|tool_call_start|>[{text}]<|tool_call_end|>"


LFM2_SAMPLES = {
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
    "JSON": (lfm2_calls('{"name": "now", "arguments": {"a": 1}}'), call(0, "now", '{"a": 1}')),
    "one without a list": (
        '<|tool_call_start|>{"name": "now", "arguments": {}}<|tool_call_end|>',
        call(0, "now", "{}"),
    ),
    "a comma at the end": (lfm2_calls("now(a=1,)"), call(0, "now", '{"a":1}')),
    "arguments without names": (lfm2_calls("now(1)"), [Content(lfm2_calls("now(1)"))]),
    "no call": (lfm2_calls("now"), [Content(lfm2_calls("now"))]),
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


# OLMo 3.


SEARCH = call(0, "search", '{"query":"a"}')
NOW = call(0, "now", "{}")


OLMO3_SAMPLES = [
    ('<function_calls>\nsearch(query="a")\n</function_calls>', SEARCH),
    ("<function_calls>search(query='a')\nnow()</function_calls> ok",
     [*SEARCH, *call(1, "now", "{}"), Content("ok")]),
    ("I look.\n<function_calls>\nnow()\n</function_calls>", [Content("I look."), *NOW]),
    ("<function_calls>\nnow()\n</functi", NOW),
    ("<function_calls>\nnow", []),
]  # fmt: skip


# Calls of Llama 3 and 4, in JSON and pythonic.


LLAMA_SAMPLES = {
    "JSON with a tag": (
        'Wait. <|python_tag|>{"name": "now", "parameters": {}}',
        [Content("Wait."), *call(0, "now", "{}")],
    ),
    "pythonic with tags": ("<|python_start|>[now()]<|python_end|>", call(0, "now", "{}")),
    "JSON in a list": ('[{"name": "now", "parameters": {}}]', call(0, "now", "{}")),
    "an unknown name": (
        '{"name": "Ann", "parameters": {"age": 7}}',
        [Content('{"name": "Ann", "parameters": {"age": 7}}')],
    ),
    "an unknown name behind a tag": (
        '<|python_tag|>{"name": "ann", "parameters": {}}',
        call(0, "ann", "{}"),
    ),
    "an unknown name in a list": ("[ann(age=7)]", [Content("[ann(age=7)]")]),
    "JSON that is no call": ('{"answer": 42} ', [Content('{"answer": 42} ')]),
    "brackets that are no calls": ("[1] says so", [Content("[1] says so")]),
    "code": ("<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")]),
    "text behind": (
        '{"name": "now", "parameters": {}} and more',
        [*call(0, "now", "{}"), Content("and more")],
    ),
    "cut": (
        '{"name": "search", "parameters": {"query": "\\u00e',
        call(0, "search", '{"query": "\\u00e', complete=False),
    ),
}


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


@pytest.mark.parametrize(
    ("tool_format", "text", "pieces"),
    samples(
        (GEMMA4, GEMMA4_SAMPLES),
        (LFM2, LFM2_SAMPLES),
        ((LLAMA3, PYTHONIC), LLAMA_SAMPLES),
        (OLMO3, OLMO3_SAMPLES),
    ),
)
def test_sample_of_a_python_format_gives_its_pieces_however_cut(
    tool_format: ToolFormat, text: str, pieces: list[Piece]
) -> None:
    check_sample(tool_format, text, pieces, SHOP)


# Calls that are written as in Python.


F = Tool("f", {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]})


@pytest.mark.parametrize(
    ("parallel", "right", "wrong"),
    [
        (True, ["[f(a=1)]", '[f(a=1, b="x"), g()]'], ["[]", "[f()]", "[f(b=1, a=1)]", "[h()]"]),
        (False, ["[g()]"], ["[g(), g()]"]),
    ],
)
def test_pythonic_grammar_accepts_only_well_formed_calls_of_its_tools(
    parallel: bool, right: list[str], wrong: list[str]
) -> None:
    tree = pythonic_calls(CallChoice([F, Tool("g")], parallel=parallel))
    grammar = Grammar(GrammarKind.CALLS, "", "tools", tree)
    accepts = vocabulary().accepts
    assert {text: accepts(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text) for text in wrong)


def test_schema_of_the_whole_object_is_refused() -> None:
    with pytest.raises(InvalidField, match="'anyOf'"):
        pythonic_calls(CallChoice([Tool("f", {"anyOf": [{"required": ["a"]}]})]))
