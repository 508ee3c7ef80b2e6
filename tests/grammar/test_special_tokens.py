"""Texts that spell special tokens, and special tokens that end a text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fastovms.grammar.special_tokens import with_token_ids, without_names
from fastovms.grammar_tree import Until, in_order
from fastovms.params import Grammar, GrammarKind
from tests.vocabularies import vocabulary

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
def test_a_text_may_spell_a_special_token(
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
def test_nothing_ends_a_text_before_what_must_come(
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
def test_names_are_hidden_wherever_they_stand(model: object, expected: object) -> None:
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
def test_what_is_no_tokenizer(text: str) -> None:
    with pytest.raises(ValueError, match="it describes no tokenizer"):
        without_names(text)
