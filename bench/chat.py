"""From the end of the model's step to the delta on the wire, at the beginning of a long answer and
at its end.

    python -m bench.chat        # content, reasoning and the arguments of a call, 4,000 tokens each

The backend is played by hand, one token a step; everything between its outputs and the transport
is real: detokenizer, stop strings, output parser, frames.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable
from itertools import count, cycle, islice
from typing import Final

from bench.common.report import machine, median, table
from fastovms.api.body import BodyReader
from fastovms.api.chat import ChatCompletions
from fastovms.api.context import ApiContext
from fastovms.api.dialect import OPENAI
from fastovms.api.rendering import load_chat
from fastovms.api.served import ChatModel, ServedModel, ServedModels
from fastovms.backend import OutputCallback
from fastovms.backend_stats import BackendStats
from fastovms.config import ApiConfig, ChatConfig
from fastovms.http.messages import HeaderPairs, Request, Stream, StreamHead
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Grammar,
    ModelInfo,
    SamplingParams,
)
from fastovms.server_config import DEMO_MODEL
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokenizer import Tokenizer

WORDS: Final = ("the ", "fox ", "runs ", "to ", "Paris, ", "London ", "and ", "Oslo. ")
TOOL: Final = {"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}
MAX_MODEL_LEN: Final = 1_000_000


def shapes(num_words: int) -> dict[str, str]:
    """Answers of about so many tokens: text, a thought, and a call whose arguments nest objects
    and escape characters."""
    words = list(islice(cycle(WORDS), num_words))
    text = "".join(words)
    lines = [{"line": number, "text": f'"{word}"\n\\'} for number, word in enumerate(words[::12])]
    arguments = json.dumps({"lines": lines})
    call = f'<tool_call>\n{{"name": "write", "arguments": {arguments}}}\n</tool_call>'
    return {"content": text, "reasoning": f"<think>\n{text}\n</think>\n\nDone.", "arguments": call}


class HandBackend:
    """Takes one request and leaves its outputs to whoever waits for `received`."""

    def __init__(self, model: ModelInfo) -> None:
        self.model = model
        self.failure: str | None = None
        self.received: asyncio.Future[OutputCallback] = asyncio.Future()

    def start(self) -> None:
        pass

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        return grammar

    def check(self, params: SamplingParams) -> None:
        pass

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        self.received.set_result(on_output)

    def abort(self, request_id: str, index: int | None = None) -> None:
        pass

    def stats(self) -> BackendStats:
        return BackendStats()

    def fail(self, reason: str) -> None:
        self.failure = reason

    async def warmed_up(self) -> None:
        pass

    async def close(self) -> None:
        pass


class CountingStream:
    """Counts what would be written."""

    started = True
    closed = False
    writable = True
    buffered = 0
    on_writable: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.num_events = 0

    def set_headers(self, headers: HeaderPairs) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.num_events += data.count(b"data: ")

    def finish(self, data: bytes = b"") -> None:
        self.send(data)

    def abort(self) -> None:
        pass


async def seconds_a_token(
    text: str, tokenizer: Tokenizer, chat: ChatModel
) -> tuple[list[float], int]:
    """How long each token of an answer took, and how many events told of it."""
    backend = HandBackend(
        ModelInfo("demo", 0, MAX_MODEL_LEN, tokenizer.vocab_size, eos_token_ids=frozenset())
    )
    model = ServedModel(
        backend,
        tokenizer,
        GenerationMetrics("demo", backend.stats),
        chat=chat,
    )
    ids = count()
    context = ApiContext(
        ServedModels([model]),
        ApiConfig(),
        lambda: f"{next(ids):032x}",
        time.time,
        BodyReader(),
    )
    stream = CountingStream()

    def open_stream(request: Request, head: StreamHead, ping: bool) -> Stream:
        return stream

    body = {"messages": [{"role": "user", "content": "Go."}], "tools": [TOOL], "stream": True}
    request = Request("POST", "/v1/chat/completions", body=json.dumps(body).encode())
    request.open_stream = open_stream
    answer = asyncio.ensure_future(ChatCompletions(context)(request, OPENAI))
    await asyncio.wait((answer, backend.received), return_when=asyncio.FIRST_COMPLETED)
    if answer.done():
        await answer  # raises
    on_output = backend.received.result()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    outputs = [
        GenerationOutput(0, [token_id], None, number)
        for number, token_id in enumerate(token_ids, 1)
    ]
    seconds = []
    gc.collect()
    gc.disable()
    try:
        for output in outputs:
            start = time.perf_counter()
            on_output(output)
            seconds.append(time.perf_counter() - start)
    finally:
        gc.enable()
    on_output(GenerationOutput(0, [], FinishReason.STOP, len(outputs) + 1))
    await answer
    return seconds, stream.num_events


def measure(num_words: int, num_runs: int) -> None:
    tokenizer, chat = Tokenizer.load(DEMO_MODEL), load_chat(DEMO_MODEL, ChatConfig())
    rows = []
    for name, text in shapes(num_words).items():
        starts, ends, num_events = [], [], 0
        for number in range(-1, num_runs):
            seconds, num_events = asyncio.run(seconds_a_token(text, tokenizer, chat))
            if number >= 0:
                part = len(seconds) // 8
                starts.append(median(seconds[part : 2 * part]) * 1e6)
                ends.append(median(seconds[-2 * part : -part]) * 1e6)
        slowdown = median([end / start for start, end in zip(starts, ends, strict=True)])
        rows.append([name, len(seconds), num_events, median(starts), median(ends), slowdown])
    header = ("of", "tokens", "events", "us a token, 2nd eighth", "7th eighth", "ratio")
    print(table(header, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.chat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-w", "--words", type=int, default=1700, help="of each answer")
    parser.add_argument("-r", "--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    measure(arguments.words, arguments.runs)


if __name__ == "__main__":
    main()
