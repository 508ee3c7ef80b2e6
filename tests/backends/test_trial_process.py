"""Tests of the error for a grammar that has crashed its trial process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar, GrammarKind
from fastovms.parts.grammars.trial_process import fork_workers
from fastovms.parts.grammars.trials import Verdict

MUCH, SLOW = "it is too much for the compiler", "it takes too long to compile"


class Killed(GrammarCompiler):
    """Sends the signal that the grammar names to its own process."""

    def __init__(self) -> None:
        pass

    def compile(self, grammar: Grammar, *, num_bytes: int | None = None) -> None:  # type: ignore[override]
        signal.raise_signal(signal.Signals[grammar.source])


def run(connection: Connection[Any, Any]) -> None:
    fork_workers(connection, Killed(), 30)


@pytest.fixture(scope="module")
def process() -> Iterator[Connection[Any, Any]]:
    ours, theirs = Pipe()
    started = get_context("spawn").Process(target=run, args=(theirs,))
    started.start()
    theirs.close()
    with ours:
        yield ours
    started.join()


numbers = count(1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SIGSEGV", Verdict(MUCH, has_died=True)),
        ("SIGBUS", Verdict(MUCH, has_died=True)),
        ("SIGABRT", Verdict(MUCH, has_died=True)),
        ("SIGKILL", Verdict(MUCH, has_died=True, is_certain=False)),
        ("SIGPROF", Verdict(SLOW, is_slow=True)),
        ("SIGALRM", Verdict(SLOW, is_slow=True, is_certain=False)),
    ],
)
def test_verdict_is_certain_only_for_signals_that_repeat(
    process: Connection[Any, Any], name: str, expected: Verdict
) -> None:
    number = next(numbers)
    assert process.recv() is None
    process.send((number, Grammar(GrammarKind.REGEX, name)))
    assert process.recv() == (number, expected)
