"""The process that handles clients' grammars as a server does in the `schemas` test. It must
survive all of them."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np

from bench.endurance.body_attack.hostile_grammars import HostileGrammars
from fastovms.errors import Overloaded
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.state import UnusableGrammar
from fastovms.params import Grammar
from fastovms.parts.grammars.trials import TOO_MUCH, TOO_SLOW, guard_compiler
from fastovms.server_config import DEMO_MODEL

_TOKENIZER: Final = DEMO_MODEL / "tokenizer.json"
_END: Final = 0
_NUM_AT_A_TIME: Final = 6
_NUM_TOKENS: Final = 16
"""The number of tokens that a sample follows each grammar."""


class Outcome(NamedTuple):
    """The outcome of a grammar.

    Attributes:
        kind: "followed", "refused", "too slow", "died" (the trial process died), "turned away" (too
            many at once), or "failed" (an unexpected error).
        seconds: the time until the client had its answer.
        text: the client's error message; empty if there was none.
    """

    number: int
    kind: str
    seconds: float
    text: str = ""


class _StandIn:
    def __init__(self, compiler: GrammarCompiler, grammars: HostileGrammars) -> None:
        self._compiler = compiler
        self._guarded = guard_compiler(compiler)
        self._grammars = grammars
        self._turn = asyncio.Semaphore(_NUM_AT_A_TIME)

    async def run(self, indices: Sequence[int]) -> list[Outcome]:
        return await asyncio.gather(*map(self._compile, indices))

    async def _compile(self, index: int) -> Outcome:
        grammar = self._grammars.make(index)
        async with self._turn:
            start = time.perf_counter()
            kind, text, ready = "followed", "", None
            try:
                ready = await self._guarded.compile(grammar, str(index % _NUM_AT_A_TIME))
            except Overloaded as error:
                kind, text = "turned away", str(error)
            except UnusableGrammar as error:
                kinds = {TOO_MUCH: "died", TOO_SLOW: "too slow"}
                kind, text = kinds.get(error.reason, "refused"), error.message
            except Exception as error:
                kind, text = "failed", repr(error)
            seconds = time.perf_counter() - start
            if ready is not None:
                await asyncio.to_thread(self._follow, ready, index)
            return Outcome(index, kind, seconds, text[:300])

    def _follow(self, grammar: Grammar, index: int) -> None:
        """Samples text under the grammar as the engine does."""
        rng = Random(index)
        state = self._compiler.start(grammar, 0)
        token_ids: array[int] = array("q")
        while len(token_ids) < _NUM_TOKENS:
            token_ids.extend(state.forced_tokens(token_ids)[:_NUM_TOKENS])
            logits = np.zeros(self._compiler.vocab_size, np.float32)
            state(logits, token_ids)
            possible = np.flatnonzero(np.isfinite(logits))
            if state.error or not possible.size:
                return
            token_id = int(rng.choice(possible))
            if token_id == _END:
                return
            token_ids.append(token_id)


def serve(connection: Connection[Any, Any]) -> None:
    compiler = GrammarCompiler(
        _TOKENIZER.read_text(encoding="utf-8"), vocab_size=None, eos_token_ids=[_END]
    )
    stand_in = _StandIn(compiler, HostileGrammars(connection.recv()))
    with asyncio.Runner() as runner:
        while True:
            connection.send(runner.run(stand_in.run(connection.recv())))
