"""What can be compiled, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from llguidance import LLTokenizer

from fastovms.errors import InvalidField
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar_tree import MAYBE_LINE_BREAK, Answer, Tag, in_order
from fastovms.params import Grammar, GrammarKind
from tests.grammar.byte_level import TOKENIZER_JSON
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "objec"}', "Invalid type: objec"),
        (GrammarKind.JSON_SCHEMA, "{", "JSON schema cannot be used"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/nope"}', "nope"),
        (
            GrammarKind.JSON_SCHEMA,
            '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
            "Unsatisfiable",
        ),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "nothing satisfies it"),
        (GrammarKind.GRAMMAR, "start: start", "nothing matches the rule start"),
        (GrammarKind.GRAMMAR, "start: /a+/ b\nb: b", "nothing matches the rule start"),
        (GrammarKind.GRAMMAR, "root ::= [a]+ b\nb ::= b", "nothing matches the rule"),
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
def test_bad_grammars_name_the_field(
    compiler: GrammarCompiler, kind: GrammarKind, source: str, message: str
) -> None:
    with pytest.raises(InvalidField, match=re.escape(message)) as error:
        compiler.compile(Grammar(kind, source, param="structured_outputs.json"))
    assert error.value.param == "structured_outputs.json"


def test_an_answer_that_nothing_satisfies_is_refused_in_a_tree_too(
    compiler: GrammarCompiler,
) -> None:
    tree = in_order(MAYBE_LINE_BREAK, Answer())
    grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', tree=tree)
    with pytest.raises(InvalidField, match="nothing satisfies it"):
        compiler.compile(grammar)


@pytest.mark.parametrize(
    ("begins", "triggers", "accepted", "refused"),
    [
        (["<f>"], ["<f>"], ['say <f>{"a":1}</f> ok', "<g>", "plain"], "<f>[]</f>"),
        (["<f>"], ["<f"], ['<f>{"a":1}</f>'], "<f>[]</f>"),
        (["<f>", "<g>"], ["<f>", "<g>"], ['<g>{"a":1}</f>'], "<f>[]</f>"),
        (["<|endoftext|>"], ["<|endoftext|>"], ['x<|endoftext|>{"a":1}</f>'], "<|endoftext|>[]"),
    ],
)
def test_a_trigger_is_text_unless_it_is_a_special_token(
    begins: list[str], triggers: list[str], accepted: list[str], refused: str
) -> None:
    # Another token than the trigger must end the text.
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
def test_text_without_a_choice_is_limited(
    compiler: GrammarCompiler, kind: GrammarKind, source: str
) -> None:
    """Each step would look at all of it."""
    with pytest.raises(InvalidField, match=r"would follow without a choice|Too many items"):
        compiler.compile(Grammar(kind, source))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}},
        {"anyOf": [{"type": "array", "prefixItems": [{"const": i}]} for i in range(3000)]},
    ],
)
def test_what_is_too_complex_is_refused_before_a_sample_is_begun(
    compiler: GrammarCompiler, schema: object
) -> None:
    with pytest.raises(InvalidField, match=r"max is 2000|Too many items"):
        compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


def test_an_end_token_may_close_a_tag() -> None:
    """`<|call|>` of gpt-oss ends a call and the answer: it is not spelled in letters."""
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
