"""The whole server with an engine that computes nothing.

`bench.http` starts it. By hand: `python -m bench.null_engine.null_server --port 8000`.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, replace
from itertools import cycle, islice

from fastovms.api.rendering import load_chat
from fastovms.api.served import ServedModel, ServedModels
from fastovms.app.serve import ServerConfig, run
from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats, EngineCounters
from fastovms.config import ChatConfig, HttpConfig
from fastovms.errors import InvalidField
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Grammar,
    ModelInfo,
    SamplingParams,
)
from fastovms.server_config import DEMO_MODEL, ServiceConfig, StateConfig
from fastovms.service.log_writer import LineWriter
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 1_000_000
TEXT = "Once upon a time a small fox lived at the edge of the forest."


@dataclass(slots=True)
class _Running:
    max_tokens: int
    on_output: OutputCallback
    num_done: int = 0


class NullBackend:
    """Gives every running request one token per iteration of the event loop, with the same text for
    all."""

    def __init__(self, model: ModelInfo, token_ids: list[int]) -> None:
        """
        Args:
            token_ids: repeated for as long as a request asks for more.
        """
        self._model = model
        self._token_ids = token_ids
        self._outputs: list[GenerationOutput] = []
        self._running: dict[str, _Running] = {}
        self._stepping = False
        self._counters = EngineCounters()
        self.failure: str | None = None

    @property
    def model(self) -> ModelInfo:
        return self._model

    def start(self) -> None:
        pass

    def check(self, params: SamplingParams) -> None:
        pass

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        raise InvalidField(f"{grammar.param} needs a model", param=grammar.param)

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        max_tokens = request.params.max_tokens or 1
        # Made beforehand: an engine makes them on a thread of its own.
        for token_id in islice(cycle(self._token_ids), len(self._outputs), max_tokens):
            self._outputs.append(GenerationOutput(0, [token_id], None, len(self._outputs) + 1))
        self._running[request.request_id] = _Running(max_tokens, on_output)
        self._schedule()

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._running.pop(request_id, None)

    def stats(self) -> BackendStats:
        return BackendStats(num_running=len(self._running), counters=replace(self._counters))

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._end_all(FinishReason.ERROR, reason)

    async def warmed_up(self) -> None:
        pass

    async def close(self) -> None:
        self._end_all(FinishReason.ABORT, None)

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        while self._running:
            _, request = self._running.popitem()
            request.on_output(GenerationOutput(0, (), reason, request.num_done, error=error))

    def _schedule(self) -> None:
        if self._running and not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._stepping = False
        self._counters.num_steps += 1
        for request_id, request in list(self._running.items()):
            output = self._outputs[request.num_done]
            request.num_done += 1
            if request.num_done == request.max_tokens:
                del self._running[request_id]
                output = replace(output, finish_reason=FinishReason.LENGTH)
            request.on_output(output)
        self._schedule()


class NullTokenizer(Tokenizer):
    """A tokenizer that encodes in no time: one token for every four characters, always the same
    ones."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * (1 + len(text) // 4)


def null_models(*, encodes: bool) -> ServedModels:
    """Returns one model with the demo model's chat template.

    Args:
        encodes: whether the demo model's tokenizer encodes prompts.
    """
    tokenizer = Tokenizer.load(DEMO_MODEL)
    token_ids = tokenizer.encode(TEXT)
    if not encodes:
        tokenizer = NullTokenizer.load(DEMO_MODEL)
    info = ModelInfo(
        name="null",
        created=0,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=frozenset(),
    )
    backend = NullBackend(info, token_ids)
    metrics = GenerationMetrics(info.name, backend.stats)
    chat = load_chat(DEMO_MODEL, ChatConfig())
    return ServedModels([ServedModel(backend, tokenizer, metrics, chat=chat)])


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.null_engine.null_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--null-tokenizer", action="store_true", help="prompts cost nothing either")
    chosen = parser.parse_args()
    config = ServerConfig(
        (),
        http=HttpConfig(host=chosen.host, port=chosen.port),
        state=StateConfig(state_dir=":memory:"),  # several may run at once
        service=ServiceConfig(access_log="off"),
    )
    encodes = not chosen.null_tokenizer
    run(config, LineWriter(), load=lambda: null_models(encodes=encodes))


if __name__ == "__main__":
    main()
