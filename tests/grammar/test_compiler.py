"""Tests of `fastovms/grammar/compiler.py`."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from fastovms.errors import InvalidField
from fastovms.grammar.compiler import GrammarCompiler, tree_rules, with_token_ids, without_names
from fastovms.grammar_tree import (
    Answer,
    FirstTag,
    Json,
    Literal,
    Node,
    OtherText,
    Regex,
    Repeat,
    Separated,
    Tag,
    TextBefore,
    TriggeredTag,
    Until,
    in_order,
    one_of,
    optional,
    several,
)
from fastovms.params import Grammar, GrammarKind
from tests.grammar.byte_level import SCHEMA, TOKENIZER_JSON, generate
from tests.vocabularies import vocabulary

# For any logits, the text follows the grammar.


GBNF = 'root ::= "x" ("1" | "2") end\nend ::= "."'

LARK = 'start: "x" ("1" | "2") "."'


@pytest.mark.parametrize("use_forced", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "source", "accepts"),
    [
        (GrammarKind.REGEX, "(ab){1,4}c?", lambda t: re.fullmatch("(ab){1,4}c?", t)),
        (GrammarKind.CHOICE, '["yes", "no", "\\"maybe\\""]', {"yes", "no", '"maybe"'}.__contains__),
        (GrammarKind.GRAMMAR, LARK, {"x1.", "x2."}.__contains__),
        (GrammarKind.GRAMMAR, GBNF, {"x1.", "x2."}.__contains__),
    ],
)
def test_generated_text_matches_its_grammar(
    compiler: GrammarCompiler,
    tokenizer: LLTokenizer,
    kind: GrammarKind,
    source: str,
    accepts: object,
    seed: int,
    use_forced: bool,
) -> None:
    text = generate(compiler, tokenizer, Grammar(kind, source), seed, use_forced)
    assert accepts(text)  # type: ignore[operator]


@pytest.mark.parametrize("use_forced", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_json_obeys_its_schema_and_is_compact(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, seed: int, use_forced: bool
) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    text = generate(compiler, tokenizer, grammar, seed, use_forced)
    assert json.dumps(json.loads(text), separators=(",", ":"))
    assert " " not in re.sub(r'"[^"]*"', "", text)
    value = json.loads(text)
    assert set(value) <= set(SCHEMA["properties"])  # type: ignore[arg-type, call-overload]
    assert 0 <= value["age"] <= 120


# Texts that look like special tokens, and special tokens that end a text.


NAMES = ("<call>", "[END]", "<|a|>b")
END = "<|endoftext|>"

SPELLED = [
    (GrammarKind.CHOICE, '["a NAME"]', "a NAME"),
    (GrammarKind.JSON_SCHEMA, '{"const": "NAME b"}', '"NAME b"'),
    (
        GrammarKind.JSON_SCHEMA,
        '{"type": "object", "properties": {"NAME": {"enum": ["NAME"]}}, "required": ["NAME"],'
        ' "additionalProperties": false}',
        '{"NAME":"NAME"}',
    ),
    (GrammarKind.REGEX, "[ab]RE[cd]", "[ab]RE[cd]"),
    (GrammarKind.GRAMMAR, 'start: "x" /[yz]/ "NAME" "y"', "x[yz]REy"),
    (
        GrammarKind.STRUCTURAL_TAG,
        '{"type": "json_schema", "json_schema": {"const": "NAME"}}',
        '"NAME"',
    ),
]


@pytest.mark.parametrize("name", [*NAMES, END, "<|im_end|>"])
@pytest.mark.parametrize(("kind", "source", "expected"), SPELLED)
def test_text_may_spell_a_special_token(
    name: str, kind: GrammarKind, source: str, expected: str
) -> None:
    grammar = Grammar(kind, source.replace("NAME", name).replace("RE", re.escape(name)))
    text = vocabulary(*NAMES).walk(grammar, [], seed=1)
    if "RE" in expected:
        assert re.fullmatch(expected.replace("RE", re.escape(name)), text)
    else:
        assert text == expected.replace("NAME", name)


def test_rules_refer_to_special_tokens_by_name() -> None:
    grammar = Grammar(GrammarKind.GRAMMAR, r'start: "<call>" <call> "b" // <call> "')
    accepts = vocabulary("<call>").accepts
    ids = with_token_ids(r'start: "\"<a>" /\/<a>/ <a> <b> // <a> "', {"<a>": 5})
    assert ids == r'start: "\"<a>" /\/<a>/ <[5]> <b> // <a> "'
    assert accepts(grammar, "<call><call>b") is False, "the first is not the token"
    assert vocabulary("<call>").walk(grammar, [], seed=1) == "<call><call>b"


ENDLESS = [
    (GrammarKind.CALLS, in_order(Until("<call>"), "b")),
    (GrammarKind.STRUCTURAL_TAG, {"type": "tag", "begin": "a", "content": {"type": "any_text"},
                                  "end": "</a>"}),
    (GrammarKind.STRUCTURAL_TAG, {"type": "sequence", "elements": [
        {"type": "any_text"}, {"type": "const_string", "value": "<call>"}]}),
]  # fmt: skip


@pytest.mark.parametrize("specials", [(), ("<call>",)], ids=str)
@pytest.mark.parametrize(("kind", "source"), ENDLESS)
def test_end_token_is_refused_before_a_required_part(
    kind: GrammarKind, source: Any, specials: tuple[str, ...]
) -> None:
    grammar = Grammar(kind, "", tree=source)
    if isinstance(source, dict):
        grammar = Grammar(kind, json.dumps(source))
    accepts = vocabulary(*specials).accepts
    start = "a" if "</a>" in grammar.source else ""
    assert accepts(grammar, f"{start} text<|im_start|>") is None
    assert accepts(grammar, f"{start} text{END}") is False


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"vocab": {"<a>": 0, "b": 1}, "unk_token": "<a>"},
         {"vocab": {"<\ue000a>": 0, "b": 1}, "unk_token": "<\ue000a>"}),
        ({"vocab": [["<a>", 0.0], ["b", -1.5]], "unk_id": 0},
         {"vocab": [["<\ue000a>", 0.0], ["b", -1.5]], "unk_id": 0}),
    ],
)  # fmt: skip
def test_special_names_are_hidden_in_every_kind_of_vocabulary(
    model: object, expected: object
) -> None:
    added = [
        {"id": 0, "content": "<a>", "special": False},
        {"id": 7, "content": "  ", "special": False},
        {"id": 8, "content": "[x]", "special": True},
    ]
    hidden, special_tokens = without_names(json.dumps({"added_tokens": added, "model": model}))
    assert special_tokens == {"<a>": 0, "[x]": 8}
    tokenizer = json.loads(hidden)
    assert [t["content"] for t in tokenizer["added_tokens"]] == ["<\ue000a>", "  ", "[\ue000x]"]
    assert tokenizer["model"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        "{}",
        '{"model": {}}',
        '{"model": {"vocab": 5}}',
        '{"model": {"vocab": {}}, "added_tokens": [{}]}',
    ],
)
def test_text_that_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the file does not describe a tokenizer"):
        without_names(text)


# Tags in grammars: special tokens in one vocabulary, text in another.


CALLS = TriggeredTag("<call>", in_order(TextBefore("</p>", Regex(r"[ab\n]*")), "!"), once=False)
THOUGHT = in_order(optional(in_order(Tag("<think>"), Until("</think>"), Regex(r"\n*"))), Answer())


def calls(tree: Node) -> Grammar:
    return Grammar(GrammarKind.CALLS, "", "tools", tree)


@pytest.mark.parametrize("specials", [(), ("<call>",), ("<call>", "</p>", "<other>")], ids=str)
@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("", True),
        ("plain <c", True),
        ("plain <other> text", True),
        ("so <call>ab\n</p>! and <call></p>! done", True),
        ("<call>ax", False),
        ("<call>a</p>?", False),
        ("so <other><call>x", False),
        ("<call>a", None),
    ],
)
def test_text_after_a_tag_is_constrained(
    specials: tuple[str, ...], text: str, is_accepted: bool | None
) -> None:
    assert vocabulary(*specials).accepts(calls(CALLS), text) is is_accepted


@pytest.mark.parametrize("specials", [(), ("<think>", "</think>")], ids=str)
@pytest.mark.parametrize(
    ("kind", "source", "answer"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "object"}', '{"a":1}'),
        (GrammarKind.JSON_OBJECT, "", '{"a":1}'),
        (GrammarKind.REGEX, "a+", "aa"),
        (GrammarKind.CHOICE, '["x", "y"]', "y"),
        (GrammarKind.GRAMMAR, 'start: "q" R\nR: /s+/', "qss"),
    ],
)
def test_answer_follows_reasoning(
    kind: GrammarKind, source: str, answer: str, specials: tuple[str, ...]
) -> None:
    accepts = vocabulary(*specials).accepts
    grammar = Grammar(kind, source, tree=THOUGHT)
    assert accepts(grammar, answer) is True
    assert accepts(grammar, f"<think>\nwhy {answer}?\n</think>\n\n{answer}") is True
    assert accepts(grammar, f"<think>why{answer}") is None
    assert accepts(grammar, "<think>why</think>?") is False


AB = Regex("[ab]+")


@pytest.mark.parametrize("specials", [(), ("<t>",), ("<t>", "<u>")], ids=str)
@pytest.mark.parametrize(
    ("tree", "accepted", "refused"),
    [
        (in_order("a", "", "/b"), ["a/b"], ["", "a"]),
        (in_order(), [""], ["a"]),
        (one_of("ü", "\"\n", ""), ["ü", "\"\n", ""], ["u"]),
        (in_order(Tag("<t>"), "a", Tag("<t>")), ["<t>a<t>"], ["a", "<t>a"]),
        (in_order(Until("<t>"), "a"), ["<t>a", "b\n<t>a"], ["a", "<t>b"]),
        (Repeat(one_of("a", "b")), ["", "a", "aba"], ["c"]),
        (several(one_of("a", "b"), ", "), ["a", "a, b", "b, b, a"], ["", "ab", "a, "]),
        (several(Literal("a"), ""), ["a", "aaa"], [""]),
        (Separated(((Literal("a"), False), (Literal("b"), True), (Literal("c"), False)), ","),
         ["a,b,c", "a,b", "b,c", "b"], ["", "a", "c", "a,c", "b,a", "ab", ",b"]),
        (Separated(((Literal("a"), False), (Literal("b"), False)), ","),
         ["", "a", "b", "a,b"], [",", ",a", "b,a"]),
        (Separated((), ","), [""], [","]),
        (in_order(AB, "!"), ["abab!"], ["!", "<t>!"]),
        (Regex("[ab]+", also=(".{2}",), unlike=("ba", "aa")), ["ab", "bb"], ["a", "ba", "aa"]),
        (Regex("a/b\n\\/\\\\/\\\n[\n/]"), ["a/b\n/\\/\n/", "a/b\n/\\/\n\n"], ["a/b/"]),
        (TextBefore("<t>", AB, gap="\n"), ["a\n<t>", "ba\n<t>"], ["a<t>", "\n<t>", "a\n<t>a"]),
        (TriggeredTag("<t>", AB, once=True), ["", "x", "x<t>ab"], ["x<t>", "<t>a<t>a", "<t>ax"]),
        (OtherText(("ab", "[x"), ("<t>",)), ["", "xab", "[", "b\n"], ["ab", " [xa", "a<t>"]),
        (FirstTag((("<t>", Literal("a")), ("<u>", Literal("b"))), must_come=True),
         ["x<t>a", "<u>b", "x\n<u>b"], ["", "x", "<t>b", "<u>a", "<t>a<u>b"]),
        (FirstTag((("<t>", AB), ("<u>", Literal("c"))), must_come=False),
         ["", "x<t>ab", "<u>c", "<v>"], ["<t>c", "x<u>a", "<t>a<u>c"]),
        (in_order(Until("<t>a"), "b"), ["x<t>ab"], ["<t>b"]),
        (in_order(Tag("<t>a"), "b"), ["<t>ab"], ["<t>b"]),
        (Json.of({"enum": [[1, {"a": 2}]], "x-guidance": {"key_separator": "="}}),
         ['[1,{"a":2}]', '[1, {"a": 2}]'], ['[1,  {"a":2}]', '[1,{"a"=2}]']),
        (Json("{}"), ["1", "[]"], ["x"]),
        (Json("true"), ["1", "[]"], ["x"]),
    ],
)  # fmt: skip
def test_part_of_a_grammar_tree_accepts_its_texts_only(
    tree: Node, accepted: list[str], refused: list[str], specials: tuple[str, ...]
) -> None:
    accepts = vocabulary(*specials).accepts
    assert {text: accepts(calls(tree), text) for text in accepted} == dict.fromkeys(accepted, True)
    assert not any(accepts(calls(tree), text) for text in refused)


def test_repeated_schema_is_written_once() -> None:
    schema = Json.of({"description": "// # /ü/ @answer"})
    rules = tree_rules(in_order(schema, one_of(schema, several(schema, schema))), {}, [])
    assert rules.count("%json") == 1


# Supported and refused grammars.


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "objec"}', "type must be one of null, boolean"),
        (GrammarKind.JSON_SCHEMA, "{", "JSON schema cannot be used"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/nope"}', "nope"),
        (
            GrammarKind.JSON_SCHEMA,
            '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
            "Unsatisfiable",
        ),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "nothing satisfies it"),
        (GrammarKind.GRAMMAR, "start: start", "no text matches the rule start"),
        (GrammarKind.GRAMMAR, "start: /a+/ b\nb: b", "no text matches the rule start"),
        (GrammarKind.GRAMMAR, "root ::= [a]+ b\nb ::= b", "no text matches the rule"),
        (GrammarKind.REGEX, "[a", "unclosed character class (at 1(8): invalid regex"),
        (GrammarKind.REGEX, r"(a)\1", "cannot be used: backreferences are not supported"),
        (
            GrammarKind.REGEX,
            "(?=a)b",
            "look-around, including look-ahead and look-behind, is not supported",
        ),
        (
            GrammarKind.JSON_SCHEMA,
            r'{"type": "string", "pattern": "(a)\\1"}',
            "used: pattern cannot be enforced (look-around, backreferences",
        ),
        (GrammarKind.GRAMMAR, 'start: "a" | foo', "foo"),
        (GrammarKind.GRAMMAR, "root ::= (", "grammar cannot be used"),
        (GrammarKind.CHOICE, "[]", "choice cannot be used"),
        (GrammarKind.STRUCTURAL_TAG, "{}", "structural tag cannot be used"),
        (
            GrammarKind.STRUCTURAL_TAG,
            '{"type": "triggered_tags", "triggers": ["<g"], "tags": [{"begin": "<f>", "content":'
            ' {"type": "json_schema", "json_schema": {}}, "end": ""}]}',
            "format.tags[0].begin must begin with exactly one trigger, not 0",
        ),
    ],
)
def test_unusable_grammar_is_refused_by_its_field(
    compiler: GrammarCompiler, kind: GrammarKind, source: str, message: str
) -> None:
    with pytest.raises(InvalidField, match=re.escape(message)) as error:
        compiler.compile(Grammar(kind, source, param="structured_outputs.json"))
    assert error.value.param == "structured_outputs.json"


@pytest.mark.parametrize(
    ("begins", "triggers", "accepted", "refused"),
    [
        (["<f>"], ["<f>"], ['say <f>{"a":1}</f> ok', "<g>", "plain"], "<f>[]</f>"),
        (["<f>"], ["<f"], ['<f>{"a":1}</f>'], "<f>[]</f>"),
        (["<f>", "<g>"], ["<f>", "<g>"], ['<g>{"a":1}</f>'], "<f>[]</f>"),
        (["<|endoftext|>"], ["<|endoftext|>"], ['x<|endoftext|>{"a":1}</f>'], "<|endoftext|>[]"),
    ],
)
def test_trigger_is_text_unless_it_is_a_special_token(
    begins: list[str], triggers: list[str], accepted: list[str], refused: str
) -> None:
    # A token other than the trigger must end the text.
    tokenizer = LLTokenizer(TOKENIZER_JSON, eos_token=100)
    compiler = GrammarCompiler(TOKENIZER_JSON, vocab_size=tokenizer.vocab_size, eos_token_ids=[100])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    content = {"type": "json_schema", "json_schema": schema}
    tags = [{"begin": begin, "content": content, "end": "</f>"} for begin in begins]
    source = json.dumps({"type": "triggered_tags", "triggers": triggers, "tags": tags})
    matcher = compiler.compile(Grammar(GrammarKind.STRUCTURAL_TAG, source)).matcher
    for text, is_accepted in (*((text, True) for text in accepted), (refused, False)):
        token_ids = tokenizer.tokenize_bytes(text.encode(), parse_special=True)
        copy = matcher.deep_copy()
        assert (copy.validate_tokens(token_ids) == len(token_ids)) is is_accepted, text


FORCED_ITEMS = {"type": "array", "items": {"const": 1}, "minItems": 9000, "maxItems": 9000}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.REGEX, "a{200000}"),
        (GrammarKind.REGEX, "((a{100}){100}){20}"),
        (GrammarKind.CHOICE, json.dumps(["x" * 200_000])),
        (GrammarKind.JSON_SCHEMA, json.dumps({"const": "x" * 200_000})),
        (GrammarKind.JSON_SCHEMA, json.dumps(FORCED_ITEMS)),
        (GrammarKind.GRAMMAR, 'start: a{1000}\na: b{1000}\nb: "x"'),
    ],
)
def test_long_text_without_a_choice_is_refused(
    compiler: GrammarCompiler, kind: GrammarKind, source: str
) -> None:
    """Each step would examine all of it."""
    with pytest.raises(InvalidField, match=r"would follow without a choice|Too many items"):
        compiler.compile(Grammar(kind, source))


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}},
        {"anyOf": [{"type": "array", "prefixItems": [{"const": i}]} for i in range(3000)]},
    ],
)
def test_too_complex_schema_is_refused_before_sampling(
    compiler: GrammarCompiler, schema: object
) -> None:
    with pytest.raises(InvalidField, match=r"max is 2000|Too many items"):
        compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


def test_end_token_may_close_a_tag() -> None:
    """`<|call|>` of gpt-oss ends a call and the answer: it is a special token."""
    end = vocabulary().eos
    compiler = GrammarCompiler(TOKENIZER_JSON, vocab_size=None, eos_token_ids=[end])
    [text] = [text for text, token_id in compiler.special_tokens.items() if token_id == end]
    matcher = compiler.compile(
        Grammar(GrammarKind.CALLS, "", tree=in_order("a", Tag(text)))
    ).matcher.deep_copy()
    [letter] = vocabulary().encode("a")
    assert matcher.consume_token(letter)
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    assert np.flatnonzero(mask).tolist() == [end]
    assert matcher.consume_token(end)
    assert matcher.is_accepting()
