"""Random operations on an engine with the fake model, and their expected results."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

from hypothesis import strategies as st

from fastovms.engine.engine import Engine
from fastovms.errors import RequestError
from fastovms.params import BeamSearch, FinishReason, GenerationRequest, SamplingParams
from tests.engine.fake_model import VOCAB_SIZE, continue_greedily

_DRAFTS: tuple[dict[str, float], ...] = (
    {},
    {"num_assistant_tokens": 0},
    {"num_assistant_tokens": 3},
    {"assistant_confidence_threshold": 0.5},
)

DRAFTING = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(12, 40),
        "draft_tokens": st.integers(8, 160),
        "max_num_batched_tokens": st.integers(4, 40),
        "enable_prefix_caching": st.booleans(),
        "enable_prompt_lookup": st.booleans(),
    }
)
"""Options of engines with a small cache and a small cache of the draft model."""


class RandomOperations:
    """Submits requests (with common prefixes, several samples, searches, priorities, salts), steps
    and aborts, and checks the engine's invariants after each operation. Greedy requests that were
    not aborted must end with the tokens that they get alone, and searches with a result."""

    def __init__(self, engine: Engine, rng: random.Random, *, max_requests: int = 10) -> None:
        self._engine = engine
        self._rng = rng
        self._max_requests = max_requests
        self._stems = [self._tokens(rng.randint(1, 20)) for _ in range(3)]
        self._expected: dict[tuple[str, int], list[int] | None] = {}
        self._got: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._num_submitted = 0

    def run(self, num_operations: int) -> None:
        engine, rng = self._engine, self._rng
        for _ in range(num_operations):
            choice = rng.random()
            if choice < 0.2 and len(engine._requests) < self._max_requests:
                self._submit()
            elif choice < 0.25 and engine._requests:
                self._abort()
            elif engine.has_work:
                self._step()
            engine.check()
        while engine.has_work:
            self._step()
            engine.check()
        assert not self._expected, "a request has not ended"
        assert engine.blocks.num_free_blocks == engine.blocks.num_blocks

    def _submit(self) -> None:
        rng = self._rng
        request_id = str(self._num_submitted)
        self._num_submitted += 1
        stem = rng.choice(self._stems)
        prompt = stem + self._tokens(rng.randint(0, 6))
        num_tokens, n = rng.randint(1, 15), rng.choice([1, 1, 1, 3])
        search = BeamSearch(num_beams=rng.randint(2, 3)) if rng.random() < 0.1 else None
        params = SamplingParams(
            temperature=0,
            max_tokens=num_tokens,
            n=1 if search else n,
            beam_search=search,
            prompt_logprobs=rng.choice([None, None, None, 0]),
            **rng.choice(_DRAFTS),  # type: ignore[arg-type]
        )
        request = GenerationRequest(
            request_id,
            prompt,
            params,
            priority=rng.choice([0, 0, -1, 1]),
            cache_salt=rng.choice([None, None, "salt"]),
        )
        try:
            self._engine.validate(request)
        except RequestError:
            assert search, "only searches may be too large"
            return
        self._engine.add(request)
        for index in range(params.n):
            tokens = None if search else self._continue(prompt, num_tokens)
            self._expected[request_id, index] = tokens

    def _continue(self, prompt: list[int], num_tokens: int) -> list[int]:
        switch_len = self._engine._model.rope_switch_len
        return continue_greedily(prompt, num_tokens, switch_len or sys.maxsize)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(VOCAB_SIZE) for _ in range(count)]

    def _abort(self) -> None:
        request_id = self._rng.choice(list(self._engine._requests))
        victim = self._rng.choice([None, 0, 1])
        self._engine.abort(request_id, victim)
        for key in [k for k in self._expected if k[0] == request_id and victim in (None, k[1])]:
            del self._expected[key]

    def _step(self) -> None:
        for request_id, output in self._engine.step():
            key = request_id, output.index
            self._got[key].extend(output.token_ids)
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH, output.error
                tokens, expected = self._got.pop(key), self._expected.pop(key)
                assert expected is None or tokens == expected
