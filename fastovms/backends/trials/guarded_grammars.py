"""Has every grammar tried in another process before the server's own compiler gets it.

A few characters can keep a compiler busy for hours, or end the process that it runs in: so each
grammar is tried in another process first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from fastovms.backend_stats import GrammarStats
from fastovms.backends.processes.process import ChildProcess, Peer
from fastovms.backends.trials.lanes import TrialLanes
from fastovms.backends.trials.refused_grammars import RefusedGrammars
from fastovms.backends.trials.small_vocabulary import SmallVocabulary
from fastovms.backends.trials.trial import TakesLonger, Trial, Verdict
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.params import Grammar

LANE_SECONDS: Final = (0.05, 0.3, 1.5)
"""Seconds of a processor that a grammar may take in each lane. Nearly all take less than 0.02, and
what takes the most is compiled here before its client has waited for 5 s."""

_PATIENCE: Final = 12.0
"""How many times as long an answer may take where the machine is busy. The process itself gives up
a little sooner."""

_MIN_TIMEOUT: Final = 10.0

StartTrial = Callable[[float], Peer]
"""Starts a process that tries grammars, and allows each so many seconds of a processor."""


class PassedGrammars(Protocol):
    """Keeps the grammars that have passed their trial. Implementations are thread-safe."""

    def find(self, grammar: Grammar) -> Grammar | None:
        """Returns the grammar as a backend takes it, if it is kept."""

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        """Returns a grammar that has passed as a backend takes it. Raises UnusableGrammar."""


class GuardedGrammars:
    """Has each grammar tried, and remembers what comes of it.

    Args:
        passed: keeps what has passed.
        lanes: the trials of each lane, all of which a grammar has to pass.
    """

    def __init__(self, passed: PassedGrammars, lanes: Sequence[Sequence[Trial]]) -> None:
        self._passed = passed
        self._refused = RefusedGrammars()
        self._lanes = TrialLanes([_Lane(trials, passed, self._refused) for trials in lanes])

    @property
    def stats(self) -> GrammarStats:
        return self._lanes.stats

    def start(self) -> None:
        """Starts the first trial processes, in the background."""
        self._lanes.start()

    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        """Compiles a grammar; see `GenerationBackend.compile_grammar`."""
        found = self._passed.find(grammar)
        if found is not None:
            return found
        self._refused.check(grammar)
        return await self._lanes.run(grammar, client)

    def close(self) -> None:
        """Ends the processes."""
        self._lanes.close()


class _Lane:
    """A lane in which a grammar is tried with one compiler after the other."""

    def __init__(
        self, trials: Sequence[Trial], passed: PassedGrammars, refused: RefusedGrammars
    ) -> None:
        self._trials = trials
        self._passed = passed
        self._refused = refused

    @property
    def num_deaths(self) -> int:
        return sum(trial.num_deaths for trial in self._trials)

    def warm_up(self) -> None:
        for trial in self._trials:
            trial.warm_up()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> Grammar:
        found = self._passed.find(grammar)  # for somebody else, meanwhile
        if found is not None:
            return found
        self._refused.check(grammar)
        verdict = Verdict()
        with self._refused.remembering(grammar):
            for trial in self._trials:
                verdict = _checked(trial.ask(grammar), grammar, is_last=is_last)
            return self._passed.keep(grammar, verdict)

    def kill(self) -> None:
        for trial in self._trials:
            trial.kill()

    def close(self) -> None:
        for trial in self._trials:
            trial.close()


def _checked(verdict: Verdict, grammar: Grammar, *, is_last: bool) -> Verdict:
    """Returns the verdict, if the grammar has passed.

    Raises:
        TakesLonger: there was not the time, and there is a lane with more.
        UnusableGrammar: something else is wrong with it.
    """
    if verdict.is_slow and not is_last:
        raise TakesLonger
    if verdict.fault:
        raise UnusableGrammar(grammar, verdict.fault, is_certain=verdict.is_certain)
    return verdict


class _CompiledGrammars:
    """Keeps grammars where the paged engine's compiler does."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def find(self, grammar: Grammar) -> Grammar | None:
        compiled = self._compiler.cached(grammar)
        return None if compiled is None else replace(grammar, compiled=compiled)

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        compiled = self._compiler.compile(grammar, num_bytes=verdict.num_bytes)
        return replace(grammar, compiled=compiled)


def guard_compiler(
    compiler: GrammarCompiler, *, start: StartTrial | None = None
) -> GuardedGrammars:
    """Guards the paged engine's compiler. `start` starts the processes, unless they are to be those
    of `trial_starter`."""
    start = start or trial_starter(compiler)
    return GuardedGrammars(
        _CompiledGrammars(compiler), [[lane_trial(start, seconds)] for seconds in LANE_SECONDS]
    )


def lane_trial(start: StartTrial, seconds: float) -> Trial:
    """Returns the trial of a lane that allows so many seconds of a processor."""
    timeout = max(_MIN_TIMEOUT, seconds * _PATIENCE)
    return Trial(lambda: start(seconds), timeout=timeout)


def trial_starter(compiler: GrammarCompiler) -> StartTrial:
    """Returns what starts processes that try grammars as this compiler would compile them."""
    vocabulary = SmallVocabulary(
        compiler.vocab_size, tuple(sorted(compiler.eos_token_ids)), compiler.special_tokens
    )

    def start(seconds: float) -> Peer:
        # What takes long must not take it from the engine.
        niceness = 0 if seconds == LANE_SECONDS[0] else 5
        module = "fastovms.backends.trials.trial_process"
        process = ChildProcess(module, str(seconds), str(niceness))
        process.connection.send(vocabulary)
        return process

    return start
