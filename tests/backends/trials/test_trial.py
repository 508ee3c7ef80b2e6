"""A process that tries grammars may refuse one, die of it, or never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Pipe

import pytest

from fastovms.backends.trials.trial import Trial, Verdict
from fastovms.errors import BackendUnavailable
from fastovms.params import Grammar, GrammarKind


class FakeProcess:
    """Answers what `answer` returns; an exception ends it, and its message is what `wait` says."""

    def __init__(self, answer: Callable[[str], Verdict], *, is_ready: bool = True) -> None:
        self.connection, self._theirs = Pipe()
        self._fate = ""
        self._answer = answer
        self._is_ready = is_ready
        self.killed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(EOFError, OSError), self._theirs:
            while self._is_ready:
                self._theirs.send(None)
                number, grammar = self._theirs.recv()
                self._theirs.send((number - 1, Verdict("an answer on which nobody waits")))
                try:
                    answer = self._answer(grammar.source)
                except ArithmeticError as error:
                    self._fate = str(error)
                    return
                self._theirs.send((number, answer))

    def wait(self) -> str:
        return self._fate

    def kill(self) -> None:
        self.killed.set()


class Starter:
    def __init__(self, answer: Callable[[str], Verdict], *, is_ready: bool = True) -> None:
        self._answer = answer
        self._is_ready = is_ready
        self.started: list[FakeProcess] = []

    def __call__(self) -> FakeProcess:
        self.started.append(FakeProcess(self._answer, is_ready=self._is_ready))
        return self.started[-1]


def ask(trial: Trial, source: str) -> Verdict:
    return trial.ask(Grammar(GrammarKind.REGEX, source))


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


def test_one_process_answers_one_grammar_after_another() -> None:
    start = Starter(lambda source: Verdict(num_bytes=len(source)))
    trial = Trial(start, timeout=10)
    trial.warm_up()
    assert len(start.started) == 1
    for source in ("a", "bb", "ccc"):
        assert ask(trial, source) == Verdict(num_bytes=len(source))
    assert len(start.started) == 1
    trial.close()
    assert start.started[0].killed.is_set()


def ending(fate: str) -> Callable[[str], Verdict]:
    """Ends by what is bad."""

    def answer(source: str) -> Verdict:
        if source == "bad":
            raise ArithmeticError(fate)
        return Verdict()

    return answer


@pytest.mark.parametrize(
    ("fate", "is_certain"),
    [
        ("was ended by SIGSEGV", True),
        ("was ended by SIGABRT", True),
        ("was ended by SIGKILL", False),  # by a system that is out of memory
        ("has ended with code 1", False),  # it cannot fork
    ],
)
def test_a_process_that_dies_is_replaced_at_once(fate: str, is_certain: bool) -> None:
    start = Starter(ending(fate))
    trial = Trial(start, timeout=10)
    assert ask(trial, "bad") == Verdict(
        "it is too much for the compiler", has_died=True, is_certain=is_certain
    )
    assert len(start.started) == 2
    assert ask(trial, "good") == Verdict()
    assert len(start.started) == 2
    assert trial.num_deaths == 1
    trial.close()


@pytest.mark.parametrize(("fate", "is_certain"), [("SIGPROF", True), ("SIGALRM", False)])
def test_a_process_whose_time_is_up(fate: str, is_certain: bool) -> None:
    """By the time of a processor, or, on a busy machine, by the clock."""
    trial = Trial(Starter(ending(f"was ended by {fate}")), timeout=10)
    assert ask(trial, "bad") == Verdict(
        "it takes too long to compile", is_slow=True, is_certain=is_certain
    )
    assert ask(trial, "good") == Verdict()
    assert trial.num_deaths == 0
    trial.close()


def test_a_process_that_hangs_is_replaced_at_once(hung: threading.Event) -> None:
    start = Starter(lambda source: Verdict(str(hung.wait()) if source == "bad" else ""))
    trial = Trial(start, timeout=0.05)
    assert ask(trial, "bad") == Verdict(
        "it takes too long to compile", is_slow=True, is_certain=False
    )
    assert start.started[0].killed.is_set()
    assert len(start.started) == 2
    assert ask(trial, "good") == Verdict()
    trial.close()


def test_a_process_that_does_not_come_up_is_no_fault_of_the_grammar() -> None:
    start = Starter(lambda source: Verdict(), is_ready=False)
    trial = Trial(start, timeout=10)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="cannot be compiled now"):
            ask(trial, "a")
    assert len(start.started) == 2


def test_one_that_was_killed_starts_no_other(hung: threading.Event) -> None:
    start = Starter(lambda source: Verdict())
    trial = Trial(start, timeout=10)
    trial.warm_up()
    trial.kill()
    trial.close()
    with pytest.raises(BackendUnavailable, match="shutting down"):
        ask(trial, "a")
    assert len(start.started) == 1
