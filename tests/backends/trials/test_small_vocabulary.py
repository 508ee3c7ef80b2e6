"""Trials know every id and every special token of the model."""

from __future__ import annotations

import json

import pytest

from fastovms.backends.trials.small_vocabulary import SmallVocabulary
from fastovms.config.model_config import DEMO_MODEL
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.grammar_tree import Tag, in_order
from fastovms.params import Grammar, GrammarKind

SPECIAL = {"</s>": 2, "<call>": 700, "<deep>": 99_999, "[INST]": 5}


@pytest.mark.parametrize("vocab_size", [100_000, 300])
def test_grammars_are_compiled_as_for_the_model(vocab_size: int) -> None:
    special = {text: token_id for text, token_id in SPECIAL.items() if token_id < vocab_size}
    small = SmallVocabulary(vocab_size, (2,), special)
    compiler = GrammarCompiler(
        small.tokenizer_json(), vocab_size=small.vocab_size, eos_token_ids=small.eos_token_ids
    )
    assert compiler.vocab_size == vocab_size
    assert compiler.special_tokens == special
    last = vocab_size - 1
    for source in (f"start: <[{last}]>", 'start: "grün" <[5]>', f"start: <[10-{last}]> /[a-z]+/"):
        compiler.compile(Grammar(GrammarKind.GRAMMAR, source))
    compiler.compile(Grammar(GrammarKind.CALLS, "", tree=in_order(Tag("<call>"), "x")))
    with pytest.raises(UnusableGrammar, match="too large"):
        compiler.compile(Grammar(GrammarKind.GRAMMAR, f"start: <[{vocab_size}]>"))


def test_it_has_the_texts_of_the_demo_model() -> None:
    demo = DEMO_MODEL / "tokenizer.json"
    texts = json.loads(demo.read_text())["model"]["vocab"]
    small = json.loads(SmallVocabulary(50_000, (2,), SPECIAL).tokenizer_json())["model"]["vocab"]
    assert len(texts) - 20 < len(small) <= len(texts)
    assert not set(small.values()) & set(SPECIAL.values())
