"""Grammars for the pipeline, which is handed none that has not been tried."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from fastovms.backends.base import GrammarStats
from fastovms.backends.guarded_grammars import (
    LANE_SECONDS,
    RefusedGrammars,
    StartTrial,
    compiler_trial,
    digest_of,
    passed,
)
from fastovms.backends.process import ChildProcess, Peer
from fastovms.backends.trials.lanes import TrialLanes
from fastovms.backends.trials.trial import Trial
from fastovms.params import Grammar

_LANE_TIMEOUTS: Final = (0.5, 1.0, 2.0)
"""Seconds that the pipeline's compiler may take for a grammar in each lane."""

_WHOSE: Final = "by the compiler of the genai backend, which runs this model"
_MAX_ACCEPTED: Final = 4096
"""Of which 32 bytes each are remembered."""


def _start_pipeline(_: float) -> Peer:
    return ChildProcess("fastovms.backends.genai.grammar_trial")


class TriedGrammars:
    """Has each grammar tried, and lets pass those that every compiler accepts.

    Args:
        start_compiler: starts the processes that try each grammar first, as they do for the paged
            engine: its compiler says what is wrong in better words, and has limits for what is
            nested. None = there are none.
        start_pipeline: starts the processes that try it with the pipeline's compiler.
    """

    def __init__(
        self,
        start_compiler: StartTrial | None,
        *,
        start_pipeline: StartTrial = _start_pipeline,
        timeouts: tuple[float, ...] = _LANE_TIMEOUTS,
    ) -> None:
        self._known = _KnownGrammars()
        lanes = [
            _Lane(
                None if start_compiler is None else compiler_trial(start_compiler, seconds),
                Trial(lambda: start_pipeline(0), timeout=timeout),
                self._known,
            )
            for seconds, timeout in zip(LANE_SECONDS, timeouts, strict=True)
        ]
        self._lanes = TrialLanes(lanes)

    @property
    def stats(self) -> GrammarStats:
        return self._lanes.stats

    def start(self) -> None:
        """Makes the first trial processes ready, in the background."""
        self._lanes.start()

    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        """See `Backend.compile_grammar`."""
        if not self._known.is_accepted(grammar):
            await self._lanes.run(grammar, client)
        return grammar

    def close(self) -> None:
        """Ends the processes."""
        self._lanes.close()


class _KnownGrammars:
    """Remembers what was accepted, and what was refused. Thread-safe."""

    def __init__(self) -> None:
        self.refused = RefusedGrammars()
        self._accepted: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def is_accepted(self, grammar: Grammar) -> bool:
        """Raises UnusableGrammar: it was refused."""
        key = digest_of(grammar)
        with self._lock:
            if key in self._accepted:
                self._accepted.move_to_end(key)
                return True
        self.refused.check(grammar)
        return False

    def accept(self, grammar: Grammar) -> None:
        with self._lock:
            self._accepted[digest_of(grammar)] = None
            if len(self._accepted) > _MAX_ACCEPTED:
                self._accepted.popitem(last=False)


class _Lane:
    """Tries a grammar with llguidance's compiler, and then with the pipeline's."""

    def __init__(self, compiler: Trial | None, pipeline: Trial, known: _KnownGrammars) -> None:
        self._trials = [trial for trial in (compiler, pipeline) if trial is not None]
        self._known = known

    @property
    def num_deaths(self) -> int:
        return sum(trial.num_deaths for trial in self._trials)

    def warm_up(self) -> None:
        for trial in self._trials:
            trial.warm_up()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> None:
        if not self._known.is_accepted(grammar):
            with self._known.refused.remembering(grammar):
                self._try(grammar, is_last=is_last)
            self._known.accept(grammar)

    def _try(self, grammar: Grammar, *, is_last: bool) -> None:
        *_, pipeline = self._trials
        for trial in self._trials:
            verdict = trial.ask(grammar)
            if trial is pipeline and verdict.fault:
                verdict = verdict._replace(fault=f"{_WHOSE}: {verdict.fault}")
            passed(verdict, grammar, is_last=is_last)

    def kill(self) -> None:
        for trial in self._trials:
            trial.kill()

    def close(self) -> None:
        for trial in self._trials:
            trial.close()
