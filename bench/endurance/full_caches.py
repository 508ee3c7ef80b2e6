"""Fills the server's caches to their limits, so that later growth of memory has another cause."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from bench.endurance.completions import Completion, complete_all
from bench.endurance.json_client import LOST, JsonClient
from bench.endurance.server import MODEL

_CROWD: Final = 48
_NUM_CROWDS: Final = 40
_LONGEST_PROMPT: Final = 240
_LARGEST_TOKEN: Final = 500

_NUM_GRAMMARS: Final = 240
_NUM_ASKING: Final = 8
_CHOICES: Final = 300


def fill_caches(url: str) -> None:
    """Fills the KV cache and sends more grammars than the server caches. Takes one to two minutes.

    Raises:
        SystemExit: the server answers with an error.
    """
    fill_kv_cache(url)
    with ThreadPoolExecutor(_NUM_ASKING) as pool:
        list(pool.map(lambda number: _follow_schema(url, number), range(_NUM_GRAMMARS)))


def fill_kv_cache(url: str) -> None:
    """Sends prompts in batches of every size, so that each block of a KV cache of 0.1 GB is used
    and OpenVINO caches as many kernels as it may.

    Raises:
        SystemExit: the server answers with an error.
    """
    rng = Random(0)
    for _ in range(_NUM_CROWDS):
        crowd = [_completion(rng) for _ in range(rng.randint(1, _CROWD))]
        endings = complete_all(url, MODEL, crowd)
        if not all(ending.is_good for ending in endings):
            raise SystemExit(f"the caches could not be filled: {endings}")


def _completion(rng: Random) -> Completion:
    length = rng.randint(1, _LONGEST_PROMPT)
    prompt = [rng.randint(3, _LARGEST_TOKEN) for _ in range(length)]
    return Completion(prompt, max_tokens=rng.randint(1, 4))


def _follow_schema(url: str, number: int) -> None:
    """Requests an answer with a schema that no other request has."""
    choices = [f"choice {number} {position}" for position in range(_CHOICES)]
    schema = {"type": "object", "properties": {f"p{number}": {"enum": choices}}}
    body = {
        "model": MODEL,
        "prompt": "a",
        "max_tokens": 8,
        "guided_json": json.dumps(schema),
    }
    client = JsonClient(url)
    try:
        status, answer = client.ask("POST", "/v1/completions", body)
    except LOST as error:
        raise SystemExit(f"the caches could not be filled: {error!r}") from None
    else:
        if status != 200:
            raise SystemExit(f"the caches could not be filled: {answer}")
    finally:
        client.close()
