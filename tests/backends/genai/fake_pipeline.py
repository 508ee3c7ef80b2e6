"""A fake of openvino_genai's pipeline that generates the texts of the engine tests' fake model, and
a fake process that is a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino_genai as genai

from fastovms.config import EngineConfig
from fastovms.params import ModelInfo
from fastovms.parts.genai.backend import GenaiBackend, guard_pipeline
from fastovms.parts.genai.pipeline import CacheCapacity
from fastovms.parts.genai.worker import PipelineEngine, run
from tests.engine.fake_model import next_token

Status = genai.GenerationStatus
Reason = genai.GenerationFinishReason

NUM_IMAGE_TOKENS = 5


class ByteTokenizer:
    """One token per byte after a first one that begins every text."""

    START = 96

    def encode(self, text: str) -> Any:
        ids = np.array([[self.START, *text.encode()]])
        return SimpleNamespace(input_ids=SimpleNamespace(data=ids))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join("<s>" if i == self.START else chr(i) for i in token_ids)


class FakeHandle:
    def __init__(self, context: list[int], config: Any) -> None:
        self.context = context
        self.config = config
        self.num_prompt_tokens = len(context)
        self.status = Status.RUNNING
        self._parts: list[dict[int, Any]] = []

    def can_read(self) -> bool:
        return bool(self._parts)

    def read(self) -> dict[int, Any]:
        return self._parts.pop(0)

    def get_status(self) -> Any:
        return self.status

    def cancel(self) -> None:
        self.status = Status.CANCEL

    def get_perf_metrics(self) -> Any:
        assert self.status == Status.FINISHED, "not before"
        return SimpleNamespace(get_num_input_tokens=lambda: self.num_prompt_tokens)

    def advance(self) -> None:
        config = self.config
        token = next_token(self.context)
        self.context.append(token)
        generated = self.context[self.num_prompt_tokens :]
        limit = config.max_new_tokens
        if limit == 2**64 - 1:
            limit = config.max_length - self.num_prompt_tokens
        reason = Reason.NONE
        if not config.ignore_eos and token in config.stop_token_ids:
            reason = Reason.STOP
        elif len(generated) >= limit:
            reason = Reason.LENGTH
        if reason != Reason.NONE:
            self.status = Status.FINISHED
        if config.num_beams == 1:
            self._parts.append({0: _part([token], reason)})
        elif reason != Reason.NONE:
            self._parts.append(
                {beam: _part(generated, reason, -float(beam)) for beam in range(config.num_beams)}
            )


def _part(token_ids: list[int], reason: Any, score: float = 0.0) -> Any:
    return SimpleNamespace(
        generated_ids=list(token_ids),
        generated_log_probs=[-0.5] * len(token_ids),
        finish_reason=reason,
        score=score,
    )


class FakePipeline:
    """A fake pipeline.

    Attributes:
        before_step: called with the number of steps before each step, which raises its exceptions.
        added: the arguments of every request.
        refused: raised for the next request, or None.
    """

    def __init__(self, before_step: Callable[[int], None] = lambda num_steps: None) -> None:
        self.before_step = before_step
        self.added: list[tuple[Any, ...]] = []
        self.refused: Exception | None = None
        self.num_steps = 0
        self._handles: list[FakeHandle] = []

    def add_request(self, request_id: int, *arguments: Any) -> FakeHandle:
        *prompt, config = arguments
        config.validate()
        self.added.append((*prompt, config))
        if self.refused is not None:
            refused, self.refused = self.refused, None
            raise refused
        context = self._context(prompt)
        if len(context) >= config.max_length:
            raise RuntimeError("trace\n'max_length' must be greater than the number of tokens")
        handle = FakeHandle(context, config)
        self._handles.append(handle)
        return handle

    def step(self) -> None:
        self.before_step(self.num_steps)
        self.num_steps += 1
        for handle in self._handles:
            if handle.status == Status.RUNNING:
                handle.advance()
        self._handles = [h for h in self._handles if h.status == Status.RUNNING]

    def has_non_finished_requests(self) -> bool:
        return bool(self._handles)

    def get_metrics(self) -> Any:
        return SimpleNamespace(cache_usage=50.0)

    def get_tokenizer(self) -> Any:
        return ByteTokenizer()

    @staticmethod
    def _context(prompt: list[Any]) -> list[int]:
        if isinstance(prompt[0], str):
            text, images = prompt
            return [
                *ByteTokenizer().encode(text).input_ids.data[0].tolist(),
                *[1] * (NUM_IMAGE_TOKENS * len(images)),
            ]
        return [int(token) for token in prompt[0].data[0]]


class ThreadPeer:
    def __init__(self, engine: PipelineEngine, clock: Callable[[], float]) -> None:
        self.connection, self._theirs = Pipe()
        self._clock = clock
        self._thread = threading.Thread(target=self._run, args=[engine], daemon=True)
        self._thread.start()

    def wait(self) -> str:
        return "has ended"

    def kill(self) -> None:
        self._theirs.close()

    def _run(self, engine: PipelineEngine) -> None:
        with suppress(OSError), self._theirs:
            run(engine, self._theirs, self._clock)


def genai_backend(
    model: ModelInfo,
    config: EngineConfig,
    pipeline: FakePipeline | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> GenaiBackend:
    engine = PipelineEngine(
        pipeline or FakePipeline(), model, config, CacheCapacity(num_blocks=100, block_size=32)
    )
    peer = ThreadPeer(engine, clock)
    return GenaiBackend(peer, model, config, guard_pipeline(None), clock)
