"""Grammars are tried in a process of their own, which may refuse, crash or never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

from fastovms.backends.genai.grammars import TriedGrammars
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.params import Grammar, GrammarKind


class Trial:
    """Says None when it is ready, then what `answer` returns; an exception ends it."""

    def __init__(self, answer: Callable[[Grammar], str], *, is_ready: bool = True) -> None:
        self.connection, self._theirs = Pipe()
        self._answer = answer
        self._is_ready = is_ready
        self.killed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self) -> str:
        return ""

    def kill(self) -> None:
        self.killed.set()

    def _run(self) -> None:
        theirs: Connection[Any, Any] = self._theirs
        with suppress(EOFError, OSError, ZeroDivisionError), theirs:
            while self._is_ready:
                theirs.send(None)
                fault = ""
                while not fault:
                    fault = self._answer(theirs.recv())
                    theirs.send(fault)


def grammar(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source, "guided_regex")


class Trials:
    """Starts one whenever it is asked for."""

    def __init__(self, answer: Callable[[Grammar], str], *, is_ready: bool = True) -> None:
        self._answer = answer
        self._is_ready = is_ready
        self.started: list[Trial] = []
        self.seen: list[str] = []

    def __call__(self) -> Trial:
        self.started.append(Trial(self._see, is_ready=self._is_ready))
        return self.started[-1]

    def _see(self, grammar: Grammar) -> str:
        self.seen.append(grammar.source)
        return self._answer(grammar)


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


def test_what_is_accepted_is_not_asked_again():
    trials = Trials(lambda grammar: "")
    grammars = TriedGrammars(None, start=trials)
    for source in ("a", "b", "a"):
        grammars.compile(grammar(source))
    assert trials.seen == ["a", "b"]
    assert len(trials.started) == 1
    grammars.close()
    assert trials.started[0].killed.is_set()
    grammars.close()


def test_what_is_accepted_does_not_wait_for_what_is_tried(hung):
    asked = threading.Event()

    def answer(grammar):
        if grammar.source != "slow":
            return ""
        asked.set()
        return str(hung.wait())

    grammars = TriedGrammars(None, start=Trials(answer))
    grammars.compile(grammar("known"))

    def try_slow():
        with suppress(InvalidField):
            grammars.compile(grammar("slow"))

    slow = threading.Thread(target=try_slow)
    slow.start()
    assert asked.wait(10)
    again = threading.Thread(target=grammars.compile, args=[grammar("known")])
    again.start()
    again.join(2)
    assert not again.is_alive()
    assert slow.is_alive()
    hung.set()
    slow.join(10)


def test_a_refusal_names_the_field_and_the_reason():
    trials = Trials(lambda grammar: "Unsupported" if grammar.source == "bad" else "")
    grammars = TriedGrammars(None, start=trials)
    for _ in range(2):
        with pytest.raises(InvalidField, match=r"regex cannot be used by the genai.*: Unsupp") as e:
            grammars.compile(grammar("bad"))
        assert e.value.param == "guided_regex"
    grammars.compile(grammar("good"))
    assert len(trials.started) == 1


def test_one_that_crashes_the_compiler_costs_only_itself():
    trials = Trials(lambda grammar: str(1 // 0) if grammar.source == "bad" else "")
    grammars = TriedGrammars(None, start=trials)
    with pytest.raises(InvalidField, match="too much for the compiler"):
        grammars.compile(grammar("bad"))
    grammars.compile(grammar("good"))
    assert len(trials.started) == 2


def test_one_that_takes_for_ever_is_given_up(hung):
    trials = Trials(lambda grammar: str(hung.wait()) if grammar.source == "bad" else "")
    grammars = TriedGrammars(None, start=trials, timeout=0.05)
    with pytest.raises(InvalidField, match="takes too long to compile"):
        grammars.compile(grammar("bad"))
    assert trials.started[0].killed.is_set()
    grammars.compile(grammar("good"))
    assert len(trials.started) == 2


def test_a_process_that_does_not_come_up_is_no_fault_of_the_client():
    trials = Trials(lambda grammar: "", is_ready=False)
    grammars = TriedGrammars(None, start=trials)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            grammars.compile(grammar("a"))
    assert len(trials.started) == 2
