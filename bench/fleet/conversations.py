"""Conversations of several turns, each of which repeats or continues those before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import orjson

from bench.endurance.server import MODEL
from fastovms.parts.client.http_client import HttpClient

SYSTEM: Final = "You tell stories to children. They are short, and end well."
_WORDS: Final = (
    *("fox", "forest", "river", "little", "girl", "dog", "house", "big", "red", "ball", "tree"),
    *("sun", "happy", "friend", "day", "played", "went", "said", "mother", "garden", "bird"),
)
_WORDS_A_TURN: Final = 25
_TOKENS_AN_ANSWER: Final = 8

NextClient = Callable[[], HttpClient]
"""Says which server is asked next."""


async def converse(
    next_client: NextClient,
    *,
    num_conversations: int,
    num_turns: int,
    max_at_once: int,
    seed: str,
    resends: bool,
) -> None:
    """Holds all conversations at the same time.

    Args:
        max_at_once: turns that run at the same time at most.
        resends: each turn sends all messages before it as a chat; otherwise it names the response
            that it continues.
    """
    slots = asyncio.Semaphore(max_at_once)
    hold = _resend if resends else _continue
    async with asyncio.TaskGroup() as group:
        for number in range(num_conversations):
            random = Random(f"{seed} {number}")
            texts = [" ".join(random.choices(_WORDS, k=_WORDS_A_TURN)) for _ in range(num_turns)]
            group.create_task(hold(next_client, texts, slots))


async def _resend(next_client: NextClient, texts: Sequence[str], slots: asyncio.Semaphore) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    for text in texts:
        messages.append({"role": "user", "content": text})
        body = {"model": MODEL, "messages": messages, "max_tokens": _TOKENS_AN_ANSWER}
        async with slots:
            answer = await _ask(next_client(), "/v1/chat/completions", body)
        messages.append(
            {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        )


async def _continue(
    next_client: NextClient, texts: Sequence[str], slots: asyncio.Semaphore
) -> None:
    previous: dict[str, object] = {}
    for text in texts:
        body = {"model": MODEL, "instructions": SYSTEM, "input": text, **previous}
        body["max_output_tokens"] = _TOKENS_AN_ANSWER
        async with slots:
            answer = await _ask(next_client(), "/v1/responses", body)
        previous = {"previous_response_id": answer["id"]}


async def _ask(client: HttpClient, path: str, body: dict[str, object]) -> dict[str, Any]:
    answer = await client.ask("POST", path, orjson.dumps({**body, "temperature": 0}))
    found: dict[str, Any] = orjson.loads(answer)
    return found
