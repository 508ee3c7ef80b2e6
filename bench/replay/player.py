"""Replays sessions on an engine, several at once, and counts the results of its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from typing import Final, NamedTuple

from bench.replay.forced_model import ForcedModel
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import END_TOKEN_ID
from fastovms.backend_stats import EngineCounters
from fastovms.config import EngineConfig
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.engines import full_engine

_END_TOKEN_IDS: Final = frozenset((END_TOKEN_ID,))


@dataclass(frozen=True)
class Played:
    """The sum over the steps of some sessions, whose prompts were mostly not computed."""

    seconds: float = 0.0
    num_steps: int = 0
    num_generated_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.num_generated_tokens / self.seconds

    def __add__(self, other: Played) -> Played:
        ours, theirs = asdict(self), asdict(other)
        return Played(**{name: ours[name] + theirs[name] for name in ours})


_COUNTED: Final = [field.name for field in fields(Played) if field.name != "seconds"]
"""The counters of the engine."""


class Player:
    """Replays sessions on one engine, which keeps its caches between sessions."""

    def __init__(
        self,
        model: ForcedModel,
        config: EngineConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        grammars: GrammarCompiler | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        """
        Args:
            params: what all requests have in common; None = the defaults.
        """
        self._model = model
        self._params = params or SamplingParams()
        self._engine = full_engine(
            model,
            config,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            grammars=grammars,
            clock=model.clock,
        )
        self._playing: dict[str, _Playing] = {}
        self._numbers = count()

    def play(self, sessions: Iterable[Session]) -> Played:
        """Replays the sessions at once, the turns of each one after another.

        Raises:
            RuntimeError: an answer differs from the known one because its grammar does not allow
                it.
        """
        engine, model = self._engine, self._model
        model.running = engine.scheduler.running
        total = Played()
        for session in sessions:
            self._start(iter(session.turns))
        while engine.has_work:
            before = _counts(engine.counters)
            start = time.perf_counter()
            outputs = engine.step()
            seconds = time.perf_counter() - start
            counts = _counts(engine.counters)
            new = {name: count - before[name] for name, count in counts.items()}
            total += Played(seconds, **new)
            for request_id, output in outputs:
                self._playing[request_id].said.extend(output.token_ids)
                if output.finish_reason is not None:
                    self._finish(request_id)
        return total

    def _start(self, turns: Iterator[Turn]) -> None:
        """Starts the next turn of a session, if there is one."""
        turn = next(turns, None)
        if turn is None:
            return
        request_id = str(next(self._numbers))
        self._playing[request_id] = _Playing(turn, turns, [])
        self._model.texts[request_id] = turn.prompt + turn.answer
        params = replace(
            self._params,
            temperature=0.0,
            max_tokens=len(turn.answer),
            ignore_eos=True,
            eos_token_ids=_END_TOKEN_IDS,
            grammar=turn.grammar,
        )
        self._engine.add(GenerationRequest(request_id, turn.prompt, params))

    def _finish(self, request_id: str) -> None:
        turn, turns, said = self._playing.pop(request_id)
        del self._model.texts[request_id]
        known = [token_id for token_id in turn.answer if token_id not in _END_TOKEN_IDS]
        if said != known and said != list(turn.answer):
            raise RuntimeError(f"the grammar does not allow the answer: it became {said}")
        self._start(turns)


class _Playing(NamedTuple):
    """A turn that is being replayed, the turns after it, and the tokens so far."""

    turn: Turn
    following: Iterator[Turn]
    said: list[int]


def _counts(counters: EngineCounters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in _COUNTED}
