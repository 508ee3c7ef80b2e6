from __future__ import annotations

import asyncio
import json

import pytest

from fastovms.client.http_client import HttpClient
from fastovms.client.target import Target
from fastovms.load_test.load_run import LoadRequest, run_load
from fastovms.load_test.timeline import Timeline
from tests.client.scripted_server import Script, scripted_server


def request(num_tokens: int = 3, due: float = 0.0) -> LoadRequest:
    body = json.dumps({"model": "scripted", "prompt": "a", "max_tokens": num_tokens}).encode()
    return LoadRequest("/v1/completions", body, due)


async def test_a_load_sums_its_streams() -> None:
    ended: list[Timeline] = []
    with scripted_server(Script()) as url:
        client = HttpClient(Target.from_url(url))
        load = await run_load(client, [request(), request(5)], on_end=ended.append)
        await client.close()
    assert [timeline.num_tokens for timeline in load.timelines] == [3, 5]
    assert (load.num_tokens, load.num_events) == (8, 8)
    assert 0 < load.seconds < 5
    assert sorted(map(id, ended)) == sorted(map(id, load.timelines))


async def test_requests_wait_until_they_are_due() -> None:
    with scripted_server(Script()) as url:
        client = HttpClient(Target.from_url(url))
        load = await run_load(client, [request(), request(due=0.2)])
        await client.close()
    first, second = load.timelines
    assert second.started - first.started >= 0.19


async def test_no_more_run_at_once_than_allowed() -> None:
    script = Script(pause=0.01)
    with scripted_server(script) as url:
        client = HttpClient(Target.from_url(url))
        load = await run_load(client, [request()] * 6, max_concurrency=2)
        await client.close()
    assert script.most_at_once == 2
    assert load.num_tokens == 18


async def test_failures_are_told_by_kind() -> None:
    script = Script(statuses=[429])
    with scripted_server(script) as url:
        client = HttpClient(Target.from_url(url))
        load = await run_load(client, [request()] * 3, max_concurrency=1)
        script.events = []
        empty = LoadRequest("/v1/chat/completions", b'{"messages": [], "max_tokens": 1}')
        [nothing] = (await run_load(client, [empty])).timelines
        await client.close()
    failures = [timeline.failure for timeline in load.timelines]
    assert [failure and failure.kind for failure in failures] == ["HTTP 429", None, None]
    assert nothing.failure is not None
    assert nothing.failure.kind == "no output"


async def test_a_request_that_takes_too_long_is_given_up() -> None:
    with scripted_server(Script(pause=0.5)) as url:
        client = HttpClient(Target.from_url(url))
        [timeline] = (await run_load(client, [request()], max_seconds=0.1)).timelines
    assert str(timeline.failure) == "timeout: no end after 0.1 s"


async def test_requests_that_time_out_count_towards_the_duration() -> None:
    with scripted_server(Script(pause=0.05)) as url:
        client = HttpClient(Target.from_url(url))
        load = await run_load(client, [request(), request(100)], max_seconds=1.0)
        await client.close()
    done, given_up = load.timelines
    assert done.failure is None
    assert given_up.failure is not None
    assert done.latency < 0.9
    assert load.seconds >= 0.99


async def test_when_it_is_cancelled_what_there_is_is_told() -> None:
    ended: list[Timeline] = []
    has_ended = asyncio.Event()

    def on_end(timeline: Timeline) -> None:
        ended.append(timeline)
        has_ended.set()

    with scripted_server(Script(pause=0.1)) as url:
        client = HttpClient(Target.from_url(url))
        requests = [request(1), request(100), request(due=60)]
        task = asyncio.create_task(run_load(client, requests, on_end=on_end))
        await asyncio.wait_for(has_ended.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()
    done, cut = ended
    assert done.failure is None
    assert cut.failure is not None
    assert cut.failure.kind == "cancelled"
