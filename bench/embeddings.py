"""Measures the throughput of embeddings and reranking in documents per second, beside the pipelines
of openvino_genai and beside chats, and the gaps between the chats' tokens meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import openvino_genai

from bench.common.report import machine, ratio
from bench.encoder_models import write_encoder
from bench.random_models.encoder_graph import ENCODER_SHAPES
from bench.random_models.random_texts import make_texts
from fastovms.app.paged import TunedCores, compile_paged
from fastovms.backends.model_files import read_model_info
from fastovms.backends.paged.backend import PagedBackend
from fastovms.config import EncoderConfig, EngineConfig
from fastovms.engine.model.devices import available_memory
from fastovms.params import GenerationOutput, GenerationRequest, SamplingParams
from fastovms.parts.embeddings.encoder import EncoderText
from fastovms.parts.embeddings.encoder_backend import ThreadedEncoder, load_encoder
from fastovms.parts.embeddings.served import read_info
from fastovms.setting import integer
from fastovms.text.text_encoder import TextEncoder

SHAPES = [name for name, shape in ENCODER_SHAPES.items() if shape.max_position_embeddings >= 512]
"""The batch size in tokens."""

NUM_CHATS = 8
PER_REQUEST = 32
"""The number of documents of each pipeline call. The pipeline pads all of them to the longest."""

QUERY = "the house by the river in the old city with the red light"
"""The query for which documents are scored."""


class Chats:
    """Streams that run until they are stopped, and the gaps between their tokens."""

    def __init__(self, backend: PagedBackend) -> None:
        self._backend = backend
        self._last: dict[str, float] = {}
        self.gaps: list[float] = []
        self.begun = asyncio.Event()  # = each has said something

    def start(self) -> None:
        for number in range(NUM_CHATS):
            name = f"chat-{number}"
            params = SamplingParams(max_tokens=1500, ignore_eos=True, seed=number)
            prompt = list(range(5 + number, 37 + number))
            request = GenerationRequest(name, prompt, params)
            self._backend.submit(request, partial(self._note, name))

    def _note(self, name: str, output: GenerationOutput) -> None:
        now = time.perf_counter()
        if name in self._last:
            self.gaps.append(now - self._last[name])
        self._last[name] = now
        if len(self._last) == NUM_CHATS:
            self.begun.set()

    def stop(self) -> None:
        for name in self._last:
            self._backend.abort(name)

    def take(self) -> tuple[float, float]:
        """Returns the median and the 99th percentile of the gaps since the last call, in
        milliseconds."""
        gaps, self.gaps = self.gaps, []
        return statistics.median(gaps) * 1e3, float(np.quantile(gaps, 0.99)) * 1e3


def encoder_texts(texts: TextEncoder, given: Sequence[str], query: str | None) -> list[EncoderText]:
    """Returns the encoder's input texts: each document, alone or after the query."""
    found = texts.encode(given)
    if query is None:
        return [EncoderText(texts.enclosed(each)) for each in found]
    assert texts.pair is not None
    [asked] = texts.encode([query])
    return [EncoderText(*texts.pair.join(asked, each)) for each in found]


async def encode(
    backend: ThreadedEncoder, texts: TextEncoder, given: Sequence[str], query: str | None
) -> float:
    """Returns documents per second, including tokenization."""
    start = time.perf_counter()
    await backend.encode(encoder_texts(texts, given, query), "bench")
    return len(given) / (time.perf_counter() - start)


def load_pipeline(directory: Path, query: str | None) -> Callable[[list[str]], object]:
    """Returns a function that calls genai's pipeline, which embeds documents or scores them for the
    query."""
    if query is None:
        embed: Callable[[list[str]], object] = openvino_genai.TextEmbeddingPipeline(
            directory, "CPU"
        ).embed_documents
        return embed
    return partial(openvino_genai.TextRerankPipeline(directory, "CPU").rerank, query)


def by_pipeline(call: Callable[[list[str]], object], given: Sequence[str]) -> float:
    """Returns documents per second of the pipeline, which pads the texts of a call."""
    start = time.perf_counter()
    for position in range(0, len(given), PER_REQUEST):
        call(list(given[position : position + PER_REQUEST]))
    return len(given) / (time.perf_counter() - start)


async def measure(options: argparse.Namespace, directory: Path) -> None:
    shape = ENCODER_SHAPES[options.shape]
    given = make_texts(options.documents, shape.vocab_size)
    query = QUERY if options.rerank else None
    cores = TunedCores.share()
    info = read_info(directory, name=options.shape)
    backend, texts = load_encoder(directory, info, EngineConfig(), EncoderConfig(), cores.turn)
    backend.start()
    # Memory is reserved, and costs are learned.
    await encode(backend, texts, given[: len(given) // 4], query)
    pipeline = load_pipeline(directory, query)
    pipeline(given[:PER_REQUEST])
    theirs, ours = [], []
    for _ in range(options.rounds):
        theirs.append(by_pipeline(pipeline, given))
        ours.append(await encode(backend, texts, given, query))
    alone = statistics.median(ours)
    print(machine())
    print(
        f"alone: {alone:.1f} documents/s, genai's pipeline {statistics.median(theirs):.1f}: "
        f"{ratio(ours, theirs)} x"
    )
    if options.chat is not None:
        await beside_chats(options, backend, texts, given, query, alone, cores)
    await backend.close()


async def beside_chats(
    options: argparse.Namespace,
    backend: ThreadedEncoder,
    texts: TextEncoder,
    given: Sequence[str],
    query: str | None,
    alone: float,
    cores: TunedCores,
) -> None:
    config = EngineConfig(cache_size=1, tune=False, enable_prompt_lookup=False)
    model = read_model_info(options.chat)
    engine = compile_paged(options.chat, model, config)(available_memory(), cores=cores)
    engine.start()
    chats = Chats(engine)
    chats.start()
    await chats.begun.wait()
    await asyncio.sleep(options.seconds / 3)
    chats.gaps.clear()
    await asyncio.sleep(options.seconds)
    before = chats.take()
    found = await encode(backend, texts, given, query)
    median_then, worst_then = chats.take()
    await asyncio.sleep(options.seconds)  # the chats have grown, and with them their gaps
    median, worst = (statistics.mean(pair) for pair in zip(before, chats.take(), strict=True))
    chats.stop()
    print(
        f"beside {NUM_CHATS} chats: {found:.1f} documents/s, {found / alone:.2f} x; gaps "
        f"{median:.1f} ms -> {median_then:.1f}: {median_then / median:.2f} x, p99 {worst:.1f} -> "
        f"{worst_then:.1f}: {worst_then / worst:.2f} x"
    )
    await engine.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.embeddings", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="bge-small")
    parser.add_argument("--documents", type=integer(4), default=400)
    parser.add_argument("--chat", type=Path, help="directory of a model that chats (default: none)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of chats alone, before and after"
    )
    parser.add_argument("--rerank", action="store_true", help="score documents for a query")
    parser.add_argument("--rounds", type=integer(1), default=1, help="with the pipeline in turn")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(0.0005)  # as the server does
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / options.shape
        shape = replace(ENCODER_SHAPES[options.shape], num_labels=int(options.rerank))
        write_encoder(shape, directory)
        asyncio.run(measure(options, directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
