"""Grammars that may take long are tried in another process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fastovms.backends.guarded_grammars import GuardedGrammars, is_plain
from fastovms.backends.process import Peer
from fastovms.engine.grammar import GrammarCompiler
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.params import Grammar, GrammarKind

TOKENIZER_JSON = (
    Path(__file__).parents[1] / "text" / "fixtures" / "byte_level" / "tokenizer.json"
).read_text()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER_JSON, vocab_size=None, eos_token_ids=[0])


@pytest.fixture
def guarded(compiler: GrammarCompiler) -> Iterator[GuardedGrammars]:
    grammars = GuardedGrammars(compiler)
    yield grammars
    grammars.close()


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


HOURS = [
    schema({"anyOf": [{"type": "integer", "multipleOf": 99991 + 2 * i} for i in range(6)]}),
    schema({"patternProperties": {f"^a{{{i}}}b*$": {"type": "integer"} for i in range(900)}}),
]


@pytest.mark.parametrize("grammar", HOURS)
def test_what_takes_for_ever_is_refused(guarded: GuardedGrammars, grammar: Grammar) -> None:
    started = time.process_time()
    with pytest.raises(InvalidField, match="it is too much for the compiler") as error:
        guarded.compile(grammar)
    assert error.value.param == "response_format"
    assert time.process_time() - started < 1  # of this process
    guarded.compile(Grammar(GrammarKind.REGEX, "a{2,5}"))


def test_what_is_wrong_is_told_by_the_compiler_here(guarded: GuardedGrammars) -> None:
    with pytest.raises(InvalidField, match="invalid regex"):
        guarded.compile(Grammar(GrammarKind.REGEX, "[a"))


def test_a_process_that_cannot_be_started(compiler: GrammarCompiler) -> None:
    def start() -> Peer:
        raise BlockingIOError("no more processes")

    with pytest.raises(BackendUnavailable, match="grammars cannot be compiled now"):
        GuardedGrammars(compiler, start=start).compile(Grammar(GrammarKind.REGEX, "a"))


def no_process() -> Peer:
    raise AssertionError("a process is started")


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "object", "properties": {"a": {"type": "integer", "minimum": 5}}}),
        Grammar(GrammarKind.JSON_OBJECT, ""),
        Grammar(GrammarKind.CHOICE, json.dumps(["a" * 100] * 300)),
        Grammar(GrammarKind.TAGGED_RULES, 'start: "a"'),
    ],
)
def test_what_is_plain_needs_no_process(compiler: GrammarCompiler, grammar: Grammar) -> None:
    GuardedGrammars(compiler, start=no_process).compile(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        *HOURS,
        schema({"type": "string", "pattern": "a"}),
        schema({"enum": ["a" * 100 for _ in range(200)]}),
        Grammar(GrammarKind.REGEX, "a"),
        Grammar(GrammarKind.GRAMMAR, 'start: "a"'),
        Grammar(GrammarKind.STRUCTURAL_TAG, '{"format": {"type": "any_text"}}'),
        Grammar(GrammarKind.TAGGED_RULES, 'start: %json {"multipleOf": 7}'),
        Grammar(GrammarKind.JSON_OBJECT, "", frame='start: %json {"multipleOf": 7}'),
    ],
)
def test_what_is_not_plain(grammar: Grammar) -> None:
    assert not is_plain(grammar)


class WaitingPeer:
    """Accepts every grammar; one with an x in it only once it may."""

    def __init__(self, may_answer: threading.Event) -> None:
        self.connection, self._theirs = Pipe()
        self._may_answer = may_answer
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        with suppress(EOFError, OSError):
            self._theirs.send(None)
            while True:
                grammar = self._theirs.recv()
                if "x" in grammar.source:
                    self._may_answer.wait()
                self._theirs.send("")

    def kill(self) -> None:
        self._may_answer.set()

    def wait(self) -> None:
        self._theirs.close()


def test_a_short_grammar_does_not_wait_for_a_long_one(compiler: GrammarCompiler) -> None:
    may_answer = threading.Event()
    guarded = GuardedGrammars(compiler, start=lambda: WaitingPeer(may_answer))
    long = Grammar(GrammarKind.REGEX, "x" * 5000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guarded.compile, long)
        guarded.compile(Grammar(GrammarKind.REGEX, "a"))
        assert not waiting.done()
        may_answer.set()
        waiting.result()
    guarded.close()
