"""Grammars over a byte-level tokenizer: whatever the logits say, the text obeys."""

from __future__ import annotations

import json
import re
from array import array
from copy import copy
from itertools import count

import numpy as np
import pytest
from llguidance import LLTokenizer

from fastovms.engine.sampling.logits_processors import logits_processors
from fastovms.engine.sampling.sampler import Sampler
from fastovms.engine.scheduling.batch import SampledTokens
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.errors import InvalidField
from fastovms.grammar.grammar import MAX_FORCED_TOKENS, GrammarCompiler, GrammarState
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget
from fastovms.grammar_tree import MAYBE_LINE_BREAK, Answer, in_order
from fastovms.params import GenerationRequest, Grammar, GrammarKind, SamplingParams
from tests.paths import BYTE_LEVEL_TOKENIZER

TOKENIZER_JSON = BYTE_LEVEL_TOKENIZER.read_text()
EOS = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = [5, 6]


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TOKENIZER_JSON, eos_token=EOS)


@pytest.fixture(scope="module")
def compiler(tokenizer: LLTokenizer) -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER_JSON, vocab_size=tokenizer.vocab_size + 3, eos_token_ids=[EOS])


def generate(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, grammar: Grammar, seed: int, use_forced: bool
) -> str:
    """Follows random logits until the end, taking forced tokens where wanted."""
    rng = np.random.default_rng(seed)
    state = compiler.start(grammar, len(PROMPT))
    token_ids = array("q", PROMPT)
    for _ in range(300):
        if use_forced:
            token_ids.extend(state.forced_tokens(token_ids))
        logits = rng.standard_normal(tokenizer.vocab_size + 3).astype(np.float32)
        logits[-3:] = 100  # ids beyond the tokenizer's are never possible
        state(logits, token_ids)
        assert not state.error
        token_id = int(logits.argmax())
        if token_id == EOS:
            return str(tokenizer.decode_str(token_ids[len(PROMPT) :].tolist()))
        token_ids.append(token_id)
    raise AssertionError("the grammar never ended")


def is_valid(text: str) -> bool:
    value = json.loads(text)
    return (
        text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        and set(value) <= {"name", "age", "tags"}
        and len(value["name"]) <= 5
        and 0 <= value["age"] <= 120
        and set(value.get("tags", [])) <= {"a", "b"}
    )


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
def test_text_obeys(
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


def test_forced_tokens_spell_the_only_continuation(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    state = compiler.start(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), len(PROMPT))
    forced = state.forced_tokens(array("q", PROMPT))
    assert tokenizer.decode_str(forced).startswith('{"name')


def test_samples_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.CHOICE, '["ab", "cd"]')
    first, second = compiler.start(grammar, 0), compiler.start(grammar, 0)

    def possible(state: GrammarState, token_ids: array[int]) -> list[int]:
        logits = np.zeros(300, np.float32)
        state(logits, token_ids)
        return np.flatnonzero(np.isfinite(logits)).tolist()

    at_start = possible(first, array("q"))
    assert possible(first, array("q", at_start[:1])) != at_start
    assert possible(second, array("q")) == at_start


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
            "used: backreferences are not supported (invalid regex)",
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


def test_a_dead_end_is_told_in_one_line(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    source = 'start: /[a-z]{20}/ NOTHING\nNOTHING: "c" & "d"'
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, source), 0)
    state(np.zeros(300, np.float32), array("q", tokenizer.tokenize_str("ab" * 10)))
    assert state.error == "NoExtensionBias"


@pytest.mark.parametrize(
    ("said", "banned", "error"),
    [
        ("", "y", "other fields of the request rule out every token that may follow"),
        ("", "n", ""),
        ("y", "", ""),  # complete: it may end, though `min_tokens` would have it go on
    ],
)
def test_a_request_that_leaves_a_grammar_no_way_on(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, said: str, banned: str, error: str
) -> None:
    params = SamplingParams(
        temperature=0,
        min_tokens=5,
        eos_token_ids=frozenset({EOS}),
        bad_words_token_ids=tuple((i,) for i in tokenizer.tokenize_str(banned)),
    )
    state = compiler.start(Grammar(GrammarKind.REGEX, "y" if banned == "y" else "[yn]"), 1)
    sequence = Sequence(
        0,
        GenerationRequest("a", [1], params),
        0,
        token_limit=9,
        processors=logits_processors(params, array("q", [1])),
        grammar=state,
    )
    for token_id in tokenizer.tokenize_str(said):
        sequence.append(token_id)
    logits = np.zeros((1, tokenizer.vocab_size), np.float32)
    (token_id,) = Sampler(1).draw([SampledTokens(sequence, 0)], logits)
    assert (token_id == EOS) is (bool(error) or bool(said))
    assert state.error == error


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


def test_text_without_a_choice_is_limited_where_it_comes_late(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    state = compiler.start(Grammar(GrammarKind.REGEX, "[a-z]{20}b{100000}"), 0)
    state.forced_tokens(array("q", tokenizer.tokenize_str("az" * 10)))
    assert state.error.startswith(f"more than {MAX_FORCED_TOKENS} tokens would follow")
    assert copy(state).error == state.error


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


def test_a_grammar_that_is_too_ambiguous_ends(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    sums = " | ".join(" ".join(["e"] * n) for n in range(2, 12))
    state = compiler.start(Grammar(GrammarKind.GRAMMAR, f'start: e\ne: {sums} | /[a-z]/ | ""'), 0)
    token_ids = array("q")
    while not state.error and len(token_ids) < 100:
        token_ids.extend(tokenizer.tokenize_str("a"))
        state(np.zeros(tokenizer.vocab_size, np.float32), token_ids)
    assert "Too many items" in state.error


def test_the_samples_of_a_request_share_what_its_grammar_may_take(
    compiler: GrammarCompiler, tokenizer: LLTokenizer
) -> None:
    seconds = count()
    time_budget = GrammarTimeBudget(lambda: next(seconds))
    grammar = Grammar(GrammarKind.REGEX, "a*")
    first, second = (compiler.start(grammar, 0, time_budget) for _ in range(2))
    other = compiler.start(grammar, 0)
    logits, token_ids = np.zeros(tokenizer.vocab_size, np.float32), array("q")
    for _ in range(2):
        first(logits, token_ids)
        second.forced_tokens(token_ids)
    assert not first.error
    for _ in range(2):
        copy(first)(logits, token_ids)
    assert first.error == second.error == "it takes too long"
    assert second.forced_tokens(token_ids) == []
    assert not other.error


def test_many_choices(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    source = json.dumps([f"v{i}" for i in range(10_000)])
    text = generate(compiler, tokenizer, Grammar(GrammarKind.CHOICE, source), 0, use_forced=True)
    assert text in json.loads(source)


def test_one_of_is_any_of(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    kinds = [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"],
              "additionalProperties": False} for k in "ab"]  # fmt: skip
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"oneOf": kinds}))
    text = generate(compiler, tokenizer, grammar, 0, use_forced=True)
    assert json.loads(text) in ({"k": "a"}, {"k": "b"})
