"""Tests of `fastovms/grammar/structural_tag.py`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.errors import InvalidField
from fastovms.grammar.structural_tag import (
    MAX_DEPTH,
    MAX_FORMATS,
    lark_rules,
)
from fastovms.grammar_tree import Answer, Until, in_order
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import Vocabulary, vocabulary

# XGrammar's structural tags: the accepted and refused texts of each format, in
# vocabularies in which tags are special tokens, and in which they are text.


Format = dict[str, Any]

TEXT = vocabulary()
SPECIAL = vocabulary("<think>", "</think>", "<f>", "</f>", "<other>")
VOCABULARIES = pytest.mark.parametrize("words", [TEXT, SPECIAL], ids=["text", "special tokens"])

ANY: Format = {"type": "any_text"}
STRUCTURAL_TAG_SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
JSON: Format = {"type": "json_schema", "json_schema": STRUCTURAL_TAG_SCHEMA}
CALL: Format = {"type": "tag", "begin": "<f>", "content": JSON, "end": "</f>"}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def tag(begin: str, content: Format, end: str | list[str]) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Format) -> Format:
    return {"type": "or", "elements": list(elements)}


def calls(**fields: Any) -> Format:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], **fields}


def structural_tag_grammar(format_: object) -> Grammar:
    return Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(format_))


XML_SCHEMA = {
    "type": "object",
    "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": [1, "x"]}},
    "required": ["s"],
}
XML_CASES = (
    ["<parameter=s>a < b</parameter>", "<parameter=s></parameter><parameter=n>5</parameter>",
     '\n<parameter=s>\n"\n</parameter><parameter=n> 5 </parameter>\n<parameter=e>"x"</parameter>'],
    ["<parameter=n>5</parameter>", "<parameter=s>a</parameter><parameter=n>b</parameter>",
     "<parameter=s>a</parameter><parameter=z>b</parameter>"],
)  # fmt: skip

CASES: dict[str, tuple[Format, list[str], list[str]]] = {
    "const_string": (const('a"\\<é\n😀'), ['a"\\<é\n😀'], ["a", "b", ""]),
    "const_string with a tag": (const("x<f>y"), ["x<f>y"], ["xy", "x<f>"]),
    "json_schema": (JSON, ['{"n":-5}'], ["[]", '{"n": "a"}', "{}"]),
    "json_schema true": ({"type": "json_schema", "json_schema": True}, ["5", "[]"], ["x"]),
    "regex": ({"type": "regex", "pattern": r"[A-Z]{3}/\d+"}, ["ABC/12"], ["AB/1", "ABC/"]),
    "grammar": ({"type": "grammar", "grammar": 'root ::= ("yes" | "no") end\nend ::= "."'},
                ["yes.", "no."], ["yes", "maybe."]),
    "lark": ({"type": "grammar", "grammar": 'start: "a" b\nb: "(" b ")" | "c"'},
             ["ac", "a((c))"], ["a(c"]),
    "any_text": (ANY, ["", "a\n<f>b", "<think>😀"], []),
    "any_text excludes": ({**ANY, "excludes": ["qq", "</f>"]}, ["aq", "<f>"], ["aqqb", "</f>"]),
    "sequence": (sequence(const("a"), JSON, const("b")), ['a{"n":1}b'], ['{"n":1}b', 'a{"n":1}']),
    "sequence of what overlaps": (sequence({"type": "regex", "pattern": "a*"}, const("ab")),
                                  ["aaab", "ab"], ["aaa", "b"]),
    "text, then a string": (sequence(ANY, const("</f>!"), const("?")),
                            ["a<f>b</f>!?", "</f>!?"], ["a", "a</f>!", "a</f>!?b"]),
    "text, then a tag": (sequence({**ANY, "excludes": ["z"]}, CALL, const(".")),
                         ['a<f>{"n":1}</f>.'], ['az<f>{"n":1}</f>.', "a<f>.", "a."]),
    "or": (either(const("yes"), const("yesterday"), JSON), ["yes", "yesterday", '{"n":1}'], ["no"]),
    "or of text": (either(const("{}"), sequence(const("say "), ANY)), ["{}", "say it"], ["it"]),
    "optional": (sequence({"type": "optional", "content": const("a")}, JSON),
                 ['{"n":1}', 'a{"n":1}'], ['aa{"n":1}']),
    "star": ({"type": "star", "content": const("ab")}, ["", "ab", "abab"], ["aba"]),
    "plus": ({"type": "plus", "content": JSON}, ['{"n":1}', '{"n":1}{"n":2}'], [""]),
    "repeat": ({"type": "repeat", "min": 1, "max": 2, "content": const("a")},
               ["a", "aa"], ["", "aaa"]),
    "repeat without a limit": ({"type": "repeat", "min": 2, "max": -1, "content": CALL},
                               ['<f>{"n":1}</f>' * 2, '<f>{"n":1}</f>' * 5], ['<f>{"n":1}</f>']),
    "tag": (tag("<f>", JSON, ["</f>", "."]), ['<f>{"n":1}</f>', '<f>{"n":1}.'], ['<f>{"n":1}']),
    "tag around text": (tag("<think>", ANY, "</think>"), ["<think>a<f>b</think>"],
                        ["<think>a", "a</think>", "<think>a</think>b"]),
    "tag with line breaks": (tag("<think>\n", ANY, "\n</think>\n"), ["<think>\na\nb\n</think>\n"],
                             ["<think>a\n</think>\n", "<think>\na</think>\n"]),
    "tag with several ends": (tag("<f>", ANY, ["</f>", "END"]), ["<f>aEND", "<f>a</f>"], ["<f>a"]),
    "tag with a sequence": (tag("<f>", sequence(JSON, ANY), "</f>"), ['<f>{"n":1} a</f>'],
                            ["<f>a</f>"]),
    "tag with alternatives": (tag("<f>", either(const("x"), ANY), "</f>"),
                              ["<f>x</f>", "<f>a</f>"], ["<f>a"]),
    "triggered_tags": (calls(), ["", "a", 'a<f>{"n":1}</f>b<f>{"n":2}</f>', "a<think>b"],
                       ["a<f>b", "<f>[]"]),
    "triggered_tags at_least_one": (calls(at_least_one=True), ['<f>{"n":1}</f>a'], ["", "a"]),
    "triggered_tags stop_after_first": (calls(stop_after_first=True), ['a<f>{"n":1}</f>', "a"],
                                        ['a<f>{"n":1}</f>b']),
    "triggered_tags both": (sequence(calls(at_least_one=True, stop_after_first=True), const("!")),
                            ['<f>{"n":1}</f>!'], ["!", 'a<f>{"n":1}</f>!']),
    "triggered_tags excludes": (calls(excludes=["</think>", "q"]), ['a<f>{"n":1}</f>b'],
                                ["aq", 'a<f>{"n":1}</f>q', "</think>"]),
    "triggered_tags in a tag": (tag("<think>", calls(), "</think>"),
                                ["<think></think>", '<think>a<f>{"n":1}</f>b</think>'],
                                ["<think>a", "<think>a<f></think>"]),
    "triggered_tags, then a string": (sequence(calls(), const("END")),
                                      ["aEND", 'a<f>{"n":1}</f>END'], ["a", "aENDb"]),
    "tags of one trigger": (
        calls(tags=[CALL, {"begin": "<fg>", "content": const("x"), "end": ["!", "?"]}]),
        ["a<fg>x!b", "<fg>x?", 'a<f>{"n":1}</f>'], ["<fh", "<fg>y"]),
    "tags of several triggers": (
        calls(triggers=["<f>", "call:"], tags=[CALL, tag("call:", const("x"), "")]),
        ['a call:x<f>{"n":1}</f>'], ["call:y"]),
    "tags_with_separator": ({"type": "tags_with_separator", "tags": [CALL], "separator": ", "},
                            ["", '<f>{"n":1}</f>', '<f>{"n":1}</f>, <f>{"n":2}</f>'],
                            ['<f>{"n":1}</f>,', "a"]),
    "tags_with_separator at_least_one": (
        {"type": "tags_with_separator", "tags": [CALL], "separator": "", "at_least_one": True},
        ['<f>{"n":1}</f>', '<f>{"n":1}</f><f>{"n":2}</f>'], [""]),
    "tags_with_separator stop_after_first": (
        {"type": "tags_with_separator", "tags": [CALL], "separator": ",", "stop_after_first": True},
        ["", '<f>{"n":1}</f>'], ['<f>{"n":1}</f>,']),
    "qwen_xml_parameter": ({"type": "qwen_xml_parameter", "json_schema": XML_SCHEMA}, *XML_CASES),
    "style": ({"type": "json_schema", "style": "qwen_xml", "json_schema": XML_SCHEMA}, *XML_CASES),
    "xml choices": ({"type": "qwen_xml_parameter", "json_schema":
                     {"properties": {"s": {"type": "string", "enum": ["a", "b\n"]}}}},
                    ["", "<parameter=s>b\n</parameter>"], ["<parameter=s>c</parameter>"]),
    "xml closed": ({"type": "qwen_xml_parameter", "json_schema":
                    {"properties": {"o": {"properties": {"a": {"type": "integer"}}}}}},
                   ['<parameter=o>{"a":1}</parameter>'],
                   ['<parameter=o>{"b":1}</parameter>', '<parameter=p>1</parameter>',
                    '<parameter=o>{}</parameter><parameter=o>{}</parameter>']),
    "json closed": ({"type": "json_schema", "json_schema": {"properties": {"a": {}}}}, ['{"a":1}'],
                    ['{"b":1}', '{"a":1,"a":2}']),
    "reasoning, then calls": (sequence(tag("<think>", ANY, "</think>"), calls()),
                              ['<think>a</think>b<f>{"n":1}</f>', "<think></think>"],
                              ["a", '<think>a</think><f>[]</f>']),
}  # fmt: skip


@VOCABULARIES
@pytest.mark.parametrize(("format_", "accepted", "refused"), CASES.values(), ids=CASES)
def test_structural_tag_accepts_texts_of_its_format_only(
    words: Vocabulary, format_: Format, accepted: list[str], refused: list[str]
) -> None:
    wanted = structural_tag_grammar(format_)
    found = {text: words.accepts(wanted, text) for text in (*accepted, *refused)}
    assert {text for text, is_accepted in found.items() if is_accepted} == set(accepted)


@VOCABULARIES
@pytest.mark.parametrize(("format_", "accepted", "refused"), CASES.values(), ids=CASES)
def test_text_generated_from_a_format_is_accepted_by_it(
    words: Vocabulary, format_: Format, accepted: list[str], refused: list[str]
) -> None:
    """And it is complete, for any choices."""
    wanted = structural_tag_grammar(format_)
    for seed in range(3):
        hints = ["</f>", "</think>", "END", "<f>", '"}', "</parameter>", *accepted]
        text = words.walk(wanted, hints, seed)
        if "�" not in text:
            assert words.accepts(wanted, text), text


@VOCABULARIES
def test_structural_tag_may_follow_reasoning(words: Vocabulary) -> None:
    tree = in_order(Until("</think>"), Answer())
    wanted = Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(sequence(CALL, JSON)), tree=tree)
    assert words.accepts(wanted, 'a<f></think><f>{"n":1}</f>{"n":2}')
    assert not words.accepts(wanted, '<f>{"n":1}</f>{"n":2}')


LEAVES = st.one_of(
    st.text("ab", min_size=1, max_size=3).map(lambda text: (const(text), re.escape(text))),
    st.sampled_from(["a*", "[ab]+c", "a?b?"]).map(lambda p: ({"type": "regex", "pattern": p}, p)),
)


def combine(inner: st.SearchStrategy[tuple[Format, str]]) -> st.SearchStrategy[tuple[Format, str]]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda e: (sequence(*(f for f, _ in e)), "".join(f"(?:{p})" for _, p in e))),
        several.map(lambda e: (either(*(f for f, _ in e)), "|".join(f"(?:{p})" for _, p in e))),
        inner.map(lambda e: ({"type": "optional", "content": e[0]}, f"(?:{e[1]})?")),
        inner.map(lambda e: (tag("b", e[0], ["c", "ca"]), f"b(?:{e[1]})(?:c|ca)")),
    )


@pytest.mark.slow
@settings(max_examples=80)
@given(st.recursive(LEAVES, combine, max_leaves=6), st.lists(st.text("abc", max_size=8)))
def test_regular_format_accepts_what_its_expression_matches(
    written: tuple[Format, str], texts: list[str]
) -> None:
    """For any split of the text between formats."""
    wanted, expression = structural_tag_grammar(written[0]), re.compile(written[1])
    samples = [TEXT.walk(wanted, [], seed, num_tokens=10) for seed in range(2)]
    for text in (*samples, *texts):
        assert bool(TEXT.accepts(wanted, text)) is bool(expression.fullmatch(text)), text


def nested(levels: int) -> Format:
    found = const("x")
    for _ in range(levels):
        found = {"type": "optional", "content": found}
    return found


BAD: dict[str, tuple[object, str]] = {
    "no object": (5, "format must be an object"),
    "no type": ({}, "format.type must be one of const_string"),
    "type": ({"type": ["or"]}, "format.type must be one of"),
    "unknown type": ({"type": "token", "token": 5}, "format.type must be one of"),
    "const_string": (const(""), "format.value must not be empty"),
    "const_string type": ({"type": "const_string", "value": 5}, "format.value must be a string"),
    "json_schema": ({"type": "json_schema"}, "format.json_schema must be an object or true"),
    "json_schema false": ({"type": "json_schema", "json_schema": False}, "nothing satisfies it"),
    "schema": ({"type": "json_schema", "json_schema": {"type": "objec"}}, "Invalid type: objec"),
    "style": ({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}, "format.style must"),
    "any_order": ({**JSON, "any_order": True}, "format.any_order can only be false"),
    "grammar": ({"type": "grammar", "grammar": "start: start"}, "no text matches the rule start"),
    "regex": ({"type": "regex", "pattern": "[a"}, "invalid regex"),
    "regex type": ({"type": "regex", "pattern": None}, "format.pattern must be a string"),
    "excludes": ({**ANY, "excludes": [""]}, "format.excludes must be a list of strings"),
    "excludes type": ({**ANY, "excludes": "a"}, "format.excludes must be a list"),
    "max_tokens": ({**ANY, "max_tokens": 5}, "format.max_tokens is not supported"),
    "sequence": (sequence(), "format.elements must not be empty"),
    "sequence type": ({"type": "sequence", "elements": {}}, "format.elements must be a list"),
    "element": (sequence(const("a"), either(const(""))),
                "format.elements[1].elements[0].value must not be empty"),
    "text without an end": (sequence(ANY, JSON), "format.elements[0] has no end"),
    "calls without an end": (sequence(const("x"), calls(), ANY), "format.elements[1] has no end"),
    "repeated": ({"type": "star", "content": ANY}, "format.content must have an end"),
    "content": ({"type": "optional"}, "format.content must be an object"),
    "repeat": ({"type": "repeat", "content": CALL, "min": 2, "max": 1}, "format.max must be -1 or"),
    "repeat type": ({"type": "repeat", "content": CALL, "min": True, "max": 1}, "format.min must"),
    "repeat much": ({"type": "repeat", "content": CALL, "min": 0, "max": 10**9}, "format.max must"),
    "begin": ({**CALL, "begin": 5}, "format.begin must be a string"),
    "end": ({**CALL, "end": []}, "format.end must be a string or a list"),
    "end type": ({**CALL, "end": ["a", 5]}, "format.end must be a string or a list"),
    "no end": (tag("a", ANY, ""), "format.end must not be empty"),
    "triggers": (calls(triggers=[]), "format.triggers must be a list of strings"),
    "trigger": (calls(triggers=["<g"]), "format.tags[0].begin must begin with exactly one trigger"),
    "two triggers": (calls(triggers=["<", "<f"]), "exactly one trigger, not 2"),
    "unused trigger": (calls(triggers=["<f", "<g"]), "no tag begins with '<g'"),
    "tags": (calls(tags=[]), "format.tags must not be empty"),
    "tags type": (calls(tags=[const("<f")]), "format.tags[0] must be a tag"),
    "flag": (calls(at_least_one="yes"), "format.at_least_one must be true or false"),
    "separator": ({"type": "tags_with_separator", "tags": [CALL]}, "format.separator must be a"),
    "depth": (nested(MAX_DEPTH + 1), f"nested at most {MAX_DEPTH} deep"),
    "number": (sequence(*[const("a")] * MAX_FORMATS), f"at most {MAX_FORMATS} formats"),
    "xml": ({"type": "qwen_xml_parameter", "json_schema": {"anyOf": []}}, "has 'anyOf'"),
    "xml type": ({"type": "qwen_xml_parameter", "json_schema": {"type": "array"}}, "type object"),
    "xml required": ({"type": "qwen_xml_parameter", "json_schema": {"required": ["a"]}}, "'a'"),
    "xml pattern": ({"type": "qwen_xml_parameter", "json_schema":
                     {"properties": {"a": {"type": "string", "pattern": "b"}}}}, "'pattern'"),
    "xml properties": ({"type": "qwen_xml_parameter", "json_schema":
                        {"properties": {"a": 5}}}, "an object as the schema of each"),
}  # fmt: skip


@pytest.mark.parametrize(("format_", "message"), BAD.values(), ids=BAD)
def test_invalid_format_is_refused_with_its_path(format_: object, message: str) -> None:
    with pytest.raises(InvalidField, match=re.escape(message)) as error:
        TEXT.matcher(structural_tag_grammar(format_))
    assert error.value.param == "response_format"


# Grammars in the style of llama.cpp's users.


LIST = r"""root ::= item+

# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
PERSON = r"""age ::= ("-"? integral-part) space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
integral-part ::= [0] | [1-9] [0-9]{0,15}
name ::= "\"" char* "\"" space
name-kv ::= "\"name\"" space ":" space name
age-kv ::= "\"age\"" space ":" space age
root ::= "{" space name-kv "," space age-kv "}" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("rules", "allowed", "refused"),
    [
        (LIST, ["- a\n- b c\n"], ["a\n", "- a\u2028\n"]),
        (PERSON, ['{"name":"a","age":3}', '{ "name": "a\\n", "age": -3 }'], ['{"name":"a"}']),
        ('root ::= "yes" | "no" "."?', ["yes", "no."], ["maybe"]),
        ('root ::= first-part second_part\nfirst-part ::= "a" | "A"\nsecond_part ::= [^abc]{2,3}',
         ["axx", "Axyz"], ["ax", "axb"]),
        ('root ::= "a" x\nx ::= "b" | ', ["a", "ab"], ["b"]),
        (r'root ::= "\u00e9" [\u0041-\u0043] "\x41" "\U0001F600" "\\u0041" .', [r"éBA😀\u0041z"],
         [r"éDA😀\u0041z"]),
        ('start: "a" /b+/', ["ab"], ["a"]),
    ],
)  # fmt: skip
def test_lark_rules_accept_and_refuse_texts(
    rules: str, allowed: list[str], refused: list[str]
) -> None:
    grammar = Grammar(GrammarKind.GRAMMAR, rules)
    for text in allowed:
        assert vocabulary().accepts(grammar, text) is True, text
    for text in refused:
        assert vocabulary().accepts(grammar, text) is not True, text


@pytest.mark.parametrize(
    "rules", [r'root ::= "\ud800"', r'root ::= "\UFFFFFFFF"', "root ::= [", "a ::= b", "root ::= b"]
)
def test_malformed_grammar_is_refused(rules: str) -> None:
    with pytest.raises(InvalidField, match="the grammar cannot be used"):
        vocabulary().matcher(Grammar(GrammarKind.GRAMMAR, rules))


def test_lark_rules_are_unchanged() -> None:
    assert lark_rules(r'start: "\u0041"') == r'start: "\u0041"'
