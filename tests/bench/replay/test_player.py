"""Sessions played on a tiny model: it says the given texts, with drafts and without."""

from __future__ import annotations

import json

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from bench.replay.forced_model import ForcedModel
from bench.replay.player import Player
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import END_TOKEN_ID, Vocabulary
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar, GrammarKind, SamplingParams

NUM_BLOCKS = 64
REPEATING = Session((Turn(tuple(range(5, 70)), (9, 8, 7, 6, 5) * 4 + (9, 8, 1, 2, 3) * 4),))
TWO_TURNS = Session((Turn((3, 4), (5, 6)), Turn((3, 4, 5, 6, 7), (8, 9, 3, 4, 5))))
WITHOUT = SamplingParams(num_assistant_tokens=0)
FIXED = SamplingParams(num_assistant_tokens=4, max_ngram_size=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ForcedModel:
    directory = tmp_path_factory.mktemp("model")
    write_model(SHAPES["tiny"], directory)
    forced = ForcedModel(load_model(directory))
    forced.allocate_cache(NUM_BLOCKS)
    return forced


def player(
    model: ForcedModel, params: SamplingParams, grammars: GrammarCompiler | None = None
) -> Player:
    max_model_len = NUM_BLOCKS * model.block_size
    return Player(
        model,
        EngineConfig(),
        num_blocks=NUM_BLOCKS,
        max_model_len=max_model_len,
        grammars=grammars,
        params=params,
    )


def test_without_drafts_each_step_brings_a_token(model: ForcedModel) -> None:
    played = player(model, WITHOUT).play([REPEATING])
    assert played.num_steps == played.num_generated_tokens == 40
    assert played.num_drafts == 0
    assert played.seconds > 0


def test_drafts_are_right_as_long_as_the_text_repeats_itself(model: ForcedModel) -> None:
    played = player(model, FIXED).play([REPEATING])
    assert played.num_generated_tokens == 40
    assert played.num_steps < 20
    assert played.num_accepted_tokens == 40 - played.num_steps
    assert played.num_draft_tokens > played.num_accepted_tokens  # at the turn of the text


def test_parallel_sessions_generate_their_own_answers(model: ForcedModel) -> None:
    """Each says its own text, or the player would fail."""
    playing = player(model, FIXED)
    total = playing.play([REPEATING, TWO_TURNS, REPEATING]) + playing.play([TWO_TURNS])
    assert total.num_generated_tokens > 40


def test_answer_that_the_grammar_does_not_allow_is_an_error(model: ForcedModel) -> None:
    vocabulary = Vocabulary.trained(['{"a":true}'], num_token_ids=300)
    grammars = GrammarCompiler(
        vocabulary.tokenizer_json, vocab_size=512, eos_token_ids=[END_TOKEN_ID]
    )
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    prompt, answer = vocabulary.encode("?"), (*vocabulary.encode('{"a":true}'), END_TOKEN_ID)
    playing = player(model, WITHOUT, grammars)
    playing.play([Session((Turn(prompt, answer, grammar),))])
    wrong = vocabulary.encode('{"b":true}')
    with pytest.raises(RuntimeError, match="does not allow"):
        playing.play([Session((Turn(prompt, wrong, grammar),))])
