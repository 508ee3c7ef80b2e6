from __future__ import annotations

import pytest

from fastovms.client.request_failed import RequestFailed
from fastovms.client.target import Target
from fastovms.errors import ConfigurationError
from fastovms.load_test.load_config import DataConfig, LoadConfig
from fastovms.load_test.load_rounds import LoadedServer, run_rounds
from tests.client.scripted_server import Script, scripted_server

DATA = DataConfig(random_input_len=4, random_output_len=2)


async def run(config: LoadConfig, *urls: str, num_rounds: int = 1) -> list[LoadedServer]:
    servers = [LoadedServer(url, Target.from_url(url), config) for url in urls]
    try:
        await run_rounds(servers, config, DATA, num_rounds, lambda timeline: None)
    finally:
        for server in servers:
            await server.client.close()
    return servers


async def test_bodies_ask_for_what_the_flags_say() -> None:
    script = Script()
    config = LoadConfig(
        num_prompts=1, num_warmups=0, api_key="k", headers=(("X-A", "b"),), ignore_eos=True,
        temperature=0.5, extra_body={"top_k": 3},
    )  # fmt: skip
    with scripted_server(script) as url:
        [server] = await run(config, url)
    [(headers, body)] = script.received
    assert headers["Authorization"] == "Bearer k"
    assert headers["X-A"] == "b"
    assert len(body.pop("prompt")) == 4
    assert body == {
        "model": "scripted", "max_tokens": 2, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0.5,
        "top_k": 3,
    }  # fmt: skip
    assert server.load.num_tokens == 2


async def test_chats_are_texts() -> None:
    script = Script()
    with scripted_server(script) as url:
        config = LoadConfig(backend="openai-chat", num_prompts=3, num_warmups=0, model="m")
        [server] = await run(config, url)
    assert [body["messages"][0]["role"] for _, body in script.received] == ["user"] * 3
    assert {body["model"] for _, body in script.received} == {"m"}
    assert all(timeline.failure is None for timeline in server.load.timelines)


async def test_two_servers_get_the_same_prompts_and_every_round_new_ones() -> None:
    ours, theirs = Script(), Script()
    with scripted_server(ours) as url, scripted_server(theirs) as other:
        config = LoadConfig(num_prompts=2, num_warmups=1, max_concurrency=1)
        servers = await run(config, url, other, num_rounds=3)
    assert [len(server.loads) for server in servers] == [3, 3]
    assert all(len(server.load.timelines) == 6 for server in servers)
    prompts = [tuple(body["prompt"]) for _, body in ours.received]
    assert prompts == [tuple(body["prompt"]) for _, body in theirs.received]
    assert len(set(prompts)) == 7


async def test_a_failed_request_ends_no_round() -> None:
    with scripted_server(Script(statuses=[503])) as url:
        [server] = await run(LoadConfig(num_prompts=2, num_warmups=0, max_concurrency=1), url)
    failures = [timeline.failure for timeline in server.load.timelines]
    assert [failure and failure.kind for failure in failures] == ["HTTP 503", None]


async def test_what_json_lacks_is_refused() -> None:
    with (
        scripted_server(Script()) as url,
        pytest.raises(ConfigurationError, match="cannot be written as JSON: Integer exceeds"),
    ):
        await run(LoadConfig(extra_body={"seed": 2**64}), url)


async def test_a_server_without_a_model() -> None:
    with (
        scripted_server(Script(models=[])) as url,
        pytest.raises(RequestFailed, match="name one with --model"),
    ):
        await run(LoadConfig(), url)
