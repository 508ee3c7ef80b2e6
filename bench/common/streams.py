"""Concurrent streams of completions, all of which must succeed."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fastovms.parts.client.http_client import HttpClient, Target
from fastovms.parts.load_test.command import LoadRequest, run_load
from fastovms.parts.load_test.report import Load


def completion(model: str, prompt_token_ids: list[int], num_output_tokens: int) -> LoadRequest:
    """Returns a greedy request that ignores end tokens."""
    body = {
        "model": model,
        "prompt": prompt_token_ids,
        "max_tokens": num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return LoadRequest("/completions", orjson.dumps(body))


async def run_streams(target: Target, requests: Sequence[LoadRequest]) -> Load:
    """Sends all requests at once, each over its own connection, and reads the streams to their
    ends.

    Args:
        requests: their paths are relative to the target.

    Raises:
        RequestFailed: a stream did not end correctly; the first one is reported.
    """
    client = HttpClient(target)
    try:
        load = await run_load(
            client, [request._replace(path=target.path + request.path) for request in requests]
        )
    finally:
        await client.close()
    for timeline in load.timelines:
        if timeline.failure is not None:
            raise timeline.failure
    return load
