"""Grammars for the pipeline are tried with its compiler, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastovms.backends.genai.grammars import guard_pipeline
from fastovms.backends.processes.process import ChildProcess
from fastovms.backends.trials.trial import Trial, Verdict
from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from tests.backends.trials.test_trial import FakeProcess


def grammar(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source, "guided_regex")


class Compiler:
    """One whose processes say of each grammar what `answer` returns."""

    def __init__(self, answer: Callable[[str], str] = lambda source: "") -> None:
        self._answer = answer
        self.seen: list[str] = []

    def __call__(self, _: float) -> FakeProcess:
        return FakeProcess(self._see)

    def _see(self, source: str) -> Verdict:
        self.seen.append(source)
        return Verdict(self._answer(source))


async def test_what_is_accepted_is_not_asked_again() -> None:
    ours, pipeline = Compiler(), Compiler()
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    for source in ("a", "b", "a"):
        assert await grammars.compile(grammar(source), "") == grammar(source)
    assert ours.seen == pipeline.seen == ["a", "b"]
    grammars.close()


async def test_what_our_compiler_refuses_does_not_come_to_the_pipeline() -> None:
    ours, pipeline = Compiler(lambda source: "Nonsense"), Compiler()
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    with pytest.raises(InvalidField, match="the regex cannot be used: Nonsense"):
        await grammars.compile(grammar("bad"), "")
    assert pipeline.seen == []
    grammars.close()


@pytest.mark.parametrize("ours", [None, Compiler()])
async def test_a_refusal_names_the_field(ours: Compiler | None) -> None:
    pipeline = Compiler(lambda source: "Unsupported" if source == "bad" else "")
    grammars = guard_pipeline(ours, start_pipeline=pipeline)
    for _ in range(2):
        with pytest.raises(InvalidField, match="the regex cannot be used: Unsupported") as e:
            await grammars.compile(grammar("bad"), "")
        assert e.value.param == "guided_regex"
    await grammars.compile(grammar("good"), "")
    assert pipeline.seen == ["bad", "good"]
    grammars.close()


async def test_one_that_crashes_the_pipelines_compiler_costs_only_itself() -> None:
    pipeline = Compiler(lambda source: str(1 // 0) if source == "bad" else "")
    grammars = guard_pipeline(None, start_pipeline=pipeline)
    with pytest.raises(InvalidField, match="too much for the compiler"):
        await grammars.compile(grammar("bad"), "")
    await grammars.compile(grammar("good"), "")
    assert grammars.stats.num_deaths == 1
    grammars.close()


def ask_process(seconds: float, grammar: Grammar) -> Verdict:
    trial = Trial(
        lambda: ChildProcess("fastovms.backends.genai.grammar_trial", str(seconds)), timeout=60
    )
    try:
        return trial.ask(grammar)
    finally:
        trial.close()
