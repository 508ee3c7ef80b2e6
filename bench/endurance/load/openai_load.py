"""Sends requests through openai clients in many tasks until standard input is closed. Pauses
between requests leave some connections of the pool idle.

Prints one line after the first answer, and at the end the outcome as JSON. The clients do not
retry, so that every failure is counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Final

import openai

CLIENTS: Final = 4
TASKS_OF_A_CLIENT: Final = 8
TIMEOUT: Final = 120.0
PROMPT: Final = "Once upon a time"
"""The prompt. Each task sends a variant of it, so that a balancer can distinguish them."""
MAX_TOKENS: Final = 4
SHARE_OF_STREAMS: Final = 0.3

PAUSES: Final = ((0.8, 0.05), (0.98, 1.0), (1.0, 8.0))
"""The upper ends of the pauses in seconds by cumulative probability. The client itself closes
connections that were idle for five seconds."""


@dataclass(slots=True)
class Outcome:
    """The outcome of the requests.

    Attributes:
        num_answers: complete answers.
        longest: the longest latency in seconds.
        failures: the errors of the other requests.
    """

    num_answers: int = 0
    longest: float = 0.0
    failures: list[str] = field(default_factory=list)


@contextmanager
def openai_load(url: str, model: str, seed: int) -> Iterator[Outcome]:
    """Sends requests until the end of the block, which begins after the first answer. The outcome
    is filled in at the end."""
    outcome = Outcome()
    command = [sys.executable, "-m", "bench.endurance.load.openai_load", url, model, str(seed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield outcome
        output, _ = process.communicate(timeout=2 * TIMEOUT)
        for name, value in json.loads(output).items():
            setattr(outcome, name, value)
    finally:
        process.kill()
        process.wait()


async def _ask_on(
    client: openai.AsyncOpenAI,
    model: str,
    prompt: str,
    rng: random.Random,
    ended: asyncio.Event,
    outcome: Outcome,
) -> None:
    while not ended.is_set():
        start = time.perf_counter()
        try:
            await _ask(client, model, prompt, is_stream=rng.random() < SHARE_OF_STREAMS)
            outcome.num_answers += 1
        except openai.APIError as error:
            outcome.failures.append(f"{error!r} of {error.__cause__!r}")
        outcome.longest = max(outcome.longest, time.perf_counter() - start)
        draw = rng.random()
        longest = next(seconds for share, seconds in PAUSES if draw <= share)
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.random() * longest):
                await ended.wait()


async def _ask(client: openai.AsyncOpenAI, model: str, prompt: str, *, is_stream: bool) -> None:
    """Raises openai.APIError."""
    if is_stream:
        async for _ in await client.completions.create(
            model=model, prompt=prompt, max_tokens=MAX_TOKENS, stream=True
        ):
            pass
    else:
        await client.completions.create(model=model, prompt=prompt, max_tokens=MAX_TOKENS)


async def _ask_until_told(url: str, model: str, seed: int) -> Outcome:
    outcome = Outcome()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(None, sys.stdin.read)
    reading.add_done_callback(lambda _: ended.set())
    clients = [
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
        for _ in range(CLIENTS)
    ]
    await _ask(clients[0], model, PROMPT, is_stream=False)
    print("asking", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS * TASKS_OF_A_CLIENT):
            rng = random.Random(f"{seed} {number}")
            client, prompt = clients[number % CLIENTS], f"{PROMPT}, for the {number}th time"
            tasks.create_task(_ask_on(client, model, prompt, rng, ended, outcome))
    for client in clients:
        await client.close()
    return outcome


def main() -> None:
    url, model, seed = sys.argv[1:]
    print(json.dumps(asdict(asyncio.run(_ask_until_told(url, model, int(seed))))))


if __name__ == "__main__":
    main()
