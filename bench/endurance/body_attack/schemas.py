"""`schemas`: hostile schemas, regular expressions and grammars for the trial process that protects
the server."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench.endurance.body_attack.grammar_stand_in import Outcome
from bench.endurance.body_attack.hostile_grammars import HostileGrammars
from bench.endurance.tally import Tally
from bench.figures.command import Command
from bench.figures.figure import Figure
from fastovms.backends.processes import ChildProcess

_BATCH: Final = 100
_PATIENCE: Final = 600.0
"""The seconds after which the process counts as hanging."""


class _Attack:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._grammars = HostileGrammars(seed)
        self._tally = Tally(seed)
        self._process: ChildProcess | None = None
        self._kinds: Counter[str] = Counter()
        self._num_deaths = 0

    def run(self, first: int, count: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        for start in range(first, first + count, _BATCH):
            if time.monotonic() > end:
                return
            indices = range(start, min(start + _BATCH, first + count))
            for outcome in self._outcomes(indices):
                self._count(outcome)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def figures(self, least: int) -> list[Figure]:
        kinds, tally = self._kinds, self._tally
        return [
            Figure("grammars", tally.num_sent, at_least=least),
            Figure("compiled and followed", kinds["followed"], at_least=1),
            Figure("refused", kinds["refused"]),
            Figure("refused as too slow", kinds["too slow"]),
            Figure("turned away, since too many waited", kinds["turned away"]),
            Figure("trial processes that died", kinds["died"]),
            Figure("errors that no client should see", kinds["failed"], at_most=0),
            Figure("slowest answer", tally.slowest, "s", at_most=5),
            Figure("servers that died", self._num_deaths, at_most=0),
        ]

    def _outcomes(self, indices: Sequence[int]) -> list[Outcome]:
        """Returns the outcomes of the indices. If one of them ends the process, each index is tried
        again alone."""
        if self._process is None:
            self._process = ChildProcess("bench.endurance.body_attack.grammar_stand_in")
            self._process.connection.send(self._seed)
        try:
            self._process.connection.send(indices)
            if self._process.connection.poll(_PATIENCE):
                return list(self._process.connection.recv())
            self._process.kill()
        except (EOFError, OSError):
            pass
        end = self._process.wait()
        self.close()
        if len(indices) > 1:
            return [outcome for index in indices for outcome in self._outcomes([index])]
        self._num_deaths += 1
        [index] = indices
        self._fail(index, f"the process that stands for the server {end}")
        return []

    def _count(self, outcome: Outcome) -> None:
        self._tally.num_sent += 1
        self._tally.slowest = max(self._tally.slowest, outcome.seconds)
        self._kinds[outcome.kind] += 1
        if outcome.kind in ("died", "failed"):
            self._fail(outcome.number, f"{outcome.kind}: {outcome.text}")

    def _fail(self, index: int, reason: str) -> None:
        grammar = self._grammars.make(index)
        text = f"{grammar.kind}\n{grammar.tree}\n{grammar.source}"
        self._tally.fail(index, reason, text.encode(errors="surrogatepass"))


def _run(options: argparse.Namespace) -> list[Figure]:
    attack = _Attack(options.seed)
    try:
        attack.run(options.first, options.count, options.seconds)
        return attack.figures(100 if options.short else options.count)
    finally:
        attack.close()


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200_000, help="grammars to try")
    parser.add_argument("--seconds", type=float, default=7200.0, help="after which it ends anyway")
    parser.add_argument("--first", type=int, default=0, help="index of the first grammar")


COMMAND: Final = Command(
    "tries hostile schemas, expressions and grammars, which must not end a server",
    _run,
    _add_arguments,
    {"count": 2000, "seconds": 10.0},
)
