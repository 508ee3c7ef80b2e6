"""Tests of `fastovms/parts/drafts/drafting.py`."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import numpy as np
import pytest
from llguidance import LLTokenizer
from numpy.typing import NDArray

from fastovms.backend_stats import EngineCounters
from fastovms.config import EngineConfig
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.sequence import DrawState
from fastovms.engine.sequence import Sequence as EngineSequence
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import GenerationRequest, Grammar, GrammarKind, SamplingParams
from fastovms.parts.drafts.draft_model import DraftModel
from fastovms.parts.drafts.draft_policy import SequenceDrafters
from fastovms.parts.drafts.drafting import TextGuesser
from fastovms.parts.drafts.suffix_index import SuffixIndex
from fastovms.parts.drafts.suffix_layout import MAX_MATCH
from tests.engine.engines import Texts, fake_engine, full_engine, greedy, run, text, texts
from tests.engine.fake_model import FakeModel, continue_greedily
from tests.engine.test_draft_model import FakeDraft
from tests.engine.test_draft_model import make_engine as make_draft_engine
from tests.paths import BYTE_LEVEL_TOKENIZER

# Guesses along a real grammar, and their outcome in the engine.


VOCAB_SIZE = 512
EOS = 0
TEXT = BYTE_LEVEL_TOKENIZER.read_text()
TOKENIZER = LLTokenizer(TEXT, eos_token=EOS)
RECORD = "name: Ada Lovelace\nreference: 7f93-AA-2210\n"
GRAMMAR = Grammar(
    GrammarKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "reference": {"type": "string", "pattern": "^[0-9a-f]{4}-[A-Z]{2}-[0-9]{4}$"},
            },
            "required": ["name", "reference"],
            "additionalProperties": False,
        }
    ),
)


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.tokenize_str(text))


def text_of(token_ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode_str(list(token_ids)))


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TEXT, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


@pytest.mark.parametrize(
    ("so_far", "num_tokens", "looks_up", "expected"),
    [
        ("", None, True, '{"name":'),  # the string may be empty, which is another token
        ('{"name":"Ada Love', None, True, "lace"),  # the line break is not allowed
        ('{"name":"Ada Love', None, False, ""),
        ('{"name":"Ada Love', 1, True, "l"),
        (
            '{"name":"Ada","reference":"7f9',
            None,
            True,
            '3-AA-2210"}',
        ),  # found by lookup, and then forced
        ('{"name":"Ada","reference":"7f93-', None, True, 'AA-2210"}'),
    ],
)
def test_forced_and_looked_up_drafts_join_within_the_grammar(
    compiler: GrammarCompiler,
    so_far: str,
    num_tokens: int | None,
    looks_up: bool,
    expected: str,
) -> None:
    prompt = tokens(RECORD)
    params = SamplingParams(grammar=GRAMMAR)
    sequence = EngineSequence(
        0,
        GenerationRequest("r", prompt, params),
        0,
        token_limit=1000,
        drawing=DrawState(grammar=compiler.start(GRAMMAR, len(prompt))),
    )
    sequence.token_ids.extend(tokens(so_far))
    index = SuffixIndex(1000)
    drafters = SequenceDrafters(
        index.new_text(None), looks_up=looks_up, num_tokens=num_tokens, max_match=MAX_MATCH
    )
    drafters.text.odds[:] = 500  # all guesses were right
    guess = TextGuesser(index).guess(sequence, drafters, 32)
    assert text_of(guess.token_ids.tolist()) == expected
    assert np.all(np.diff(guess.chances) <= 0)


class CopyingModel(FakeModel):
    """Mostly repeats the token after an earlier occurrence of the last token."""

    vocab_size = VOCAB_SIZE

    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        checksum = int(np.dot(context, np.arange(1, len(context) + 1))) + len(context)
        logits = np.random.default_rng(checksum).standard_normal(VOCAB_SIZE).astype(np.float32)
        logits[EOS] += 3
        for end in range(1, len(context)):
            if context[end - 1] == context[-1]:
                logits[context[end]] = 9
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("has_model", [False, True])
def test_drafts_under_a_grammar_save_steps_without_changing_texts(
    compiler: GrammarCompiler, temperature: float, has_model: bool
) -> None:
    def generate(drafts: bool) -> tuple[Texts, EngineCounters]:
        model, draft_model = CopyingModel(), None
        model.allocate_cache(256)
        if drafts and has_model:
            draft_model = DraftModel(
                CopyingModel(),
                num_token_ids=VOCAB_SIZE,
                max_model_len=512,
                max_num_batched_tokens=64,
            )
            draft_model.allocate_cache(1024)
        engine = full_engine(
            model,
            EngineConfig(enable_prompt_lookup=drafts and not has_model, suffix_index_tokens=1000),
            num_blocks=256,
            max_model_len=512,
            grammars=compiler,
            draft_model=draft_model,
            clock=lambda: 0.0,
        )
        params = {"temperature": temperature, "seed": 3, "n": 2, "max_tokens": 120}
        asked = partial(greedy, grammar=GRAMMAR, eos_token_ids=frozenset([EOS]), **params)
        prompt = tokens(RECORD)
        return texts(engine, asked("a", prompt)) | texts(
            engine, asked("b", prompt)
        ), engine.counters

    plain, without = generate(drafts=False)
    drafted, counters = generate(drafts=True)
    assert drafted == plain
    for token_ids in plain.values():
        assert json.loads(text_of(token_ids)).keys() == {"name", "reference"}
    # The engine without lookup drafts the forced tokens.
    assert counters.num_accepted_tokens > without.num_accepted_tokens > 0
    assert counters.num_steps < without.num_steps


# Drafts save steps and do not change texts.


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("temperature", [0, 5])
def test_prompt_lookup_saves_steps_without_changing_texts(
    automatic: bool, temperature: float
) -> None:
    def generate(lookup: bool) -> tuple[Texts, EngineCounters]:
        engine = fake_engine(
            num_blocks=256, max_model_len=512, enable_prompt_lookup=lookup and automatic
        )
        drafts = {"num_assistant_tokens": 4} if lookup and not automatic else {}
        params = {"temperature": temperature, "seed": 1, "max_tokens": 150, **drafts}
        outputs = run(engine, *(greedy(str(i), [i, 1, 2, 3, 4, 5, 6, 7], **params) for i in (0, 1)))
        told = sum(output.num_accepted_tokens for of in outputs.values() for output in of)
        assert told == engine.counters.num_accepted_tokens
        return {key: text(of) for key, of in outputs.items()}, engine.counters

    plain, without = generate(lookup=False)
    drafted, counters = generate(lookup=True)
    assert drafted == plain
    assert without.num_draft_tokens == 0
    assert counters.num_steps < 0.9 * without.num_steps
    assert 0 < counters.num_accepted_tokens < counters.num_draft_tokens
    assert 0 < counters.num_drafts < counters.num_draft_tokens
    assert counters.num_generated_tokens == without.num_generated_tokens == 300


class FaultyGrammar:
    """Allows every token, and fails when drafts are requested.

    Attributes:
        forces: whether it returns forced tokens.
    """

    error = ""

    def __init__(self, *, forces: bool) -> None:
        self.forces = forces

    def __call__(self, logits: NDArray[np.float32], token_ids: array[int]) -> None: ...

    def give_up(self) -> None: ...

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        if self.forces:
            return []
        raise RuntimeError("no forced tokens")

    def scout(self, token_ids: array[int]) -> NoReturn:
        raise RuntimeError("no scout")


PROMPTS = {str(i): [i, 1, 2, 3, 4, 5, 6, 7] for i in range(2)}


def ask(name: str = "") -> list[GenerationRequest]:
    return [greedy(name + key, prompt, max_tokens=60) for key, prompt in PROMPTS.items()]


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("lookup", [True, False])
def test_fault_in_a_draft_disables_drafts_of_that_sequence_only(
    forces: bool, lookup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = make_draft_engine(FakeDraft(), enable_prompt_lookup=lookup)
    for request in ask():
        engine.add(request)
    (faulty,) = engine._requests["0"]
    faulty.grammar = FaultyGrammar(forces=forces)
    outputs = run(engine)
    for name, prompt in PROMPTS.items():
        assert text(outputs[name, 0]) == continue_greedily(prompt, 60)
    assert len(outputs["0", 0]) == 60
    assert len(outputs["1", 0]) < 60
    assert caplog.text.count("request 0 continues without drafts") == 1
    assert "request 1" not in caplog.text


class BrokenDraft(FakeDraft):
    """Fails after some steps."""

    num_steps = 0

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.num_steps += 1
        if self.num_steps > 12:
            raise RuntimeError("the device is gone")
        return super().infer(inputs)


@pytest.mark.parametrize("lookup", [True, False])
def test_a_draft_model_that_fails_is_switched_off(
    lookup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    draft = BrokenDraft()
    engine, _ = make_draft_engine(draft, enable_prompt_lookup=lookup)
    for name in "ab":
        said = texts(engine, *ask(name))
        for key, prompt in PROMPTS.items():
            assert said[name + key, 0] == continue_greedily(prompt, 60)
    assert draft.num_steps == 13
    assert caplog.text.count("the draft model failed") == 1
