"""Measures how many documents a second servers embed over HTTP: the same texts to each side in turn
(A B A B), of which one is idle while another works. Sides are any servers with `/v1/embeddings`.

    python -m bench.embedding_servers URL --side llama.cpp http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.common.report import machine, median, ratio, table
from bench.random_models.encoder_graph import ENCODER_SHAPES
from bench.random_models.random_texts import make_texts
from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client.http_client import HttpClient, Target
from fastovms.setting import integer

FIRST_SIDE: Final = "server"
"""The name of the side that the others are compared with."""

_SIZE: Final = ENCODER_SHAPES["bge-small"].vocab_size


class EmbeddingSide:
    """A server, and the model that it is asked for.

    Attributes:
        rates: documents a second of each round.
        num_tokens: of the texts of the last round, as the server has counted them.
    """

    def __init__(self, target: Target, model: str | None) -> None:
        self._target = target
        self._client = HttpClient(target)
        self._model = model
        self.rates: list[float] = []
        self.num_tokens = 0

    async def start(self) -> None:
        """Finds out the name of the model where none is given. Raises RequestFailed."""
        if self._model is None:
            answer = await self._ask("GET", "/models")
            self._model = answer["data"][0]["id"]

    async def embed(self, texts: Sequence[str], num_per_request: int, num_at_once: int) -> None:
        """Runs a round. Raises RequestFailed."""
        requests = [
            texts[position : position + num_per_request]
            for position in range(0, len(texts), num_per_request)
        ]
        slots = asyncio.Semaphore(num_at_once)
        start = time.perf_counter()
        counts = await asyncio.gather(*(self._one(each, slots) for each in requests))
        self.rates.append(len(texts) / (time.perf_counter() - start))
        self.num_tokens = sum(counts)

    async def close(self) -> None:
        await self._client.close()

    async def _one(self, texts: Sequence[str], slots: asyncio.Semaphore) -> int:
        async with slots:
            body = {"model": self._model, "input": texts}
            answer = await self._ask("POST", "/embeddings", json.dumps(body).encode())
        num_tokens: int = answer["usage"]["prompt_tokens"]
        return num_tokens

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Any:
        return json.loads(await self._client.ask(method, self._target.path + path, body))


async def run(options: argparse.Namespace, sides: Mapping[str, EmbeddingSide]) -> None:
    """Prints a table. Raises RequestFailed."""
    try:
        for side in sides.values():
            await side.start()
            warm_up = make_texts(options.per_request, _SIZE, seed=-1)
            await side.embed(warm_up, options.per_request, 1)
            side.rates.clear()
        for number in range(options.rounds):
            texts = make_texts(options.documents, _SIZE, seed=number)
            for side in sides.values():
                await side.embed(texts, options.per_request, options.at_once)
    finally:
        for side in sides.values():
            await side.close()
    first = sides[FIRST_SIDE]
    print(machine())
    rows = [
        (
            name,
            median(side.rates),
            side.num_tokens / options.documents,
            ratio(first.rates, side.rates),
        )
        for name, side in sides.items()
    ]
    print(table(("side", "documents/s", "tokens each", f"{FIRST_SIDE} over it"), rows))


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.embedding_servers", description=__doc__)
    add = parser.add_argument
    add("url", metavar="URL", help="of the server that others are compared with")
    add("--side", nargs=2, action="append", default=[], metavar=("NAME", "URL"))
    add("--model", help="name that all are asked for (default: the first that each lists)")
    add("--documents", type=integer(1), default=200)
    add("--per-request", type=integer(1), default=32, help="texts of a request")
    add("--at-once", type=integer(1), default=1, help="requests at the same time")
    add("--rounds", type=integer(1), default=3)
    options = parser.parse_args(arguments)
    try:
        sides = {FIRST_SIDE: Target.from_url(options.url)}
        for name, url in options.side:
            if name in sides:
                parser.error(f"--side: the name {name} is taken")
            sides[name] = Target.from_url(url, "--side")
    except ConfigurationError as error:
        parser.error(str(error))
    options.sides = sides
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_arguments(arguments)
    sides = {name: EmbeddingSide(target, options.model) for name, target in options.sides.items()}
    try:
        asyncio.run(run(options, sides))
    except RequestFailed as error:
        raise SystemExit(f"the servers cannot be compared: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
