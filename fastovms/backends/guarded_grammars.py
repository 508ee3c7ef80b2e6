"""Grammars for the paged engine. A few characters can keep their compiler busy for hours, or end
the process that it runs in: so each is tried in another process first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Final

from fastovms.backends.base import GrammarStats
from fastovms.backends.process import ChildProcess, Peer
from fastovms.backends.trials.lanes import TrialLanes
from fastovms.backends.trials.small_vocabulary import SmallVocabulary
from fastovms.backends.trials.trial import TakesLonger, Trial, Verdict
from fastovms.engine.grammar import GrammarCompiler, UnusableGrammar
from fastovms.engine.grammar_cache import CompiledGrammar
from fastovms.params import Grammar

LANE_SECONDS: Final = (0.05, 0.3, 1.5)
"""Of a processor that a grammar may take in each lane. Nearly all take less than 0.02, and what
takes the most is compiled here before its client has waited for 5 s."""

_PATIENCE: Final = 12.0
"""How much longer than that an answer may take where the machine is busy. The process itself gives
up a little sooner."""

_MIN_TIMEOUT: Final = 10.0
_MAX_REFUSED: Final = 256
_MAX_REASON: Final = 1000

StartTrial = Callable[[float], Peer]
"""Starts a process that tries grammars, and allows each so many seconds of a processor."""


class GuardedGrammars:
    """Compiles what a trial has passed, and remembers what it has refused."""

    def __init__(self, compiler: GrammarCompiler, *, start: StartTrial | None = None) -> None:
        self._compiler = compiler
        start = start or trial_starter(compiler)
        self._refused = RefusedGrammars()
        self._lanes = TrialLanes(
            [_Lane(start, seconds, compiler, self._refused) for seconds in LANE_SECONDS]
        )

    @property
    def stats(self) -> GrammarStats:
        return self._lanes.stats

    def start(self) -> None:
        """Makes a trial process ready, in the background."""
        self._lanes.start()

    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        """See `Backend.compile_grammar`."""
        compiled = self._compiler.cached(grammar)
        if compiled is None:
            self._refused.check(grammar)
            compiled = await self._lanes.run(grammar, client)
        return replace(grammar, compiled=compiled)

    def close(self) -> None:
        """Ends the processes."""
        self._lanes.close()


class RefusedGrammars:
    """Remembers why grammars were refused: a tool's schema comes again with every request, whether
    it can be used or not, and to find that out may take seconds. What another trial may see
    otherwise is not remembered. Thread-safe."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Raises UnusableGrammar for one that was refused before."""
        key = digest_of(grammar)
        with self._lock:
            reason = self._reasons.get(key)
            if reason is None:
                return
            self._reasons.move_to_end(key)
        raise UnusableGrammar(grammar, reason)

    @contextmanager
    def remembering(self, grammar: Grammar) -> Iterator[None]:
        """Remembers the grammar if it is refused for certain in the `with` statement."""
        try:
            yield
        except UnusableGrammar as error:
            if not error.is_certain:
                raise
            with self._lock:
                self._reasons[digest_of(grammar)] = error.reason[:_MAX_REASON]
                while len(self._reasons) > _MAX_REFUSED:
                    self._reasons.popitem(last=False)
            raise


def digest_of(grammar: Grammar) -> bytes:
    """What tells a grammar from others, in 32 bytes."""
    parts = (grammar.kind.name, grammar.source, grammar.frame)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()


class _Lane:
    """Tries a grammar, and compiles it in the server if it has passed."""

    def __init__(
        self,
        start: StartTrial,
        seconds: float,
        compiler: GrammarCompiler,
        refused: RefusedGrammars,
    ) -> None:
        self._trial = compiler_trial(start, seconds)
        self._compiler = compiler
        self._refused = refused

    @property
    def num_deaths(self) -> int:
        return self._trial.num_deaths

    def warm_up(self) -> None:
        self._trial.warm_up()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> CompiledGrammar:
        compiled = self._compiler.cached(grammar)  # for somebody else, meanwhile
        if compiled is not None:
            return compiled
        self._refused.check(grammar)
        with self._refused.remembering(grammar):
            verdict = passed(self._trial.ask(grammar), grammar, is_last=is_last)
            return self._compiler.compile(grammar, num_bytes=verdict.num_bytes)

    def kill(self) -> None:
        self._trial.kill()

    def close(self) -> None:
        self._trial.close()


def passed(verdict: Verdict, grammar: Grammar, *, is_last: bool) -> Verdict:
    """The verdict, if the grammar has passed.

    Raises:
        TakesLonger: there was not the time, and there is a lane with more.
        UnusableGrammar: something else is wrong with it.
    """
    if verdict.is_slow and not is_last:
        raise TakesLonger
    if verdict.fault:
        raise UnusableGrammar(grammar, verdict.fault, is_certain=verdict.is_certain)
    return verdict


def compiler_trial(start: StartTrial, seconds: float) -> Trial:
    """The trial of a lane that allows so many seconds of a processor."""
    timeout = max(_MIN_TIMEOUT, seconds * _PATIENCE)
    return Trial(lambda: start(seconds), timeout=timeout)


def trial_starter(compiler: GrammarCompiler) -> StartTrial:
    """Starts processes that try grammars as this compiler would compile them."""
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
