"""Tests of `fastovms/parts/load_test/command.py`."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fastovms.cli.main import main
from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client.http_client import HttpClient, Target
from fastovms.parts.load_test.command import (
    RANDOM_TOKEN_IDS,
    LoadedServer,
    LoadRequest,
    Sample,
    draw_samples,
    run_load,
    run_rounds,
)
from fastovms.parts.load_test.config import DEFAULT_OUTPUT_LEN, DataConfig, LoadConfig
from fastovms.parts.load_test.report import Timeline
from tests.client.scripted_server import Script, scripted_server


def draw(config: DataConfig, number: int = 20, *, as_text: bool = False) -> list[Sample]:
    return draw_samples(config, number, random.Random(0), as_text=as_text)


def test_random_prompts_have_their_length_and_differ() -> None:
    samples = draw(DataConfig(random_input_len=30, random_output_len=7))
    assert all(len(sample.prompt) == 30 and sample.output_len == 7 for sample in samples)
    assert all(set(sample.prompt) <= set(RANDOM_TOKEN_IDS) for sample in samples)
    assert len({tuple(sample.prompt) for sample in samples}) == 20
    assert samples == draw(DataConfig(random_input_len=30, random_output_len=7)), "the seed's"


def test_random_prompt_as_text_has_a_word_for_each_token() -> None:
    [sample] = draw(DataConfig(random_input_len=30), 1, as_text=True)
    assert isinstance(sample.prompt, str)
    assert len(sample.prompt.split()) == 30


def test_random_lengths_vary_by_the_ratio() -> None:
    samples = draw(DataConfig(random_input_len=100, random_range_ratio=0.5), 300)
    lengths = [len(sample.prompt) for sample in samples]
    assert 50 <= min(lengths) < 60
    assert 140 < max(lengths) <= 150
    assert len({sample.output_len for sample in samples}) > 20


@pytest.mark.parametrize("as_text", [False, True])
def test_prefix_repetition_repeats_its_prefixes(as_text: bool) -> None:
    config = DataConfig(
        dataset_name="prefix_repetition",
        prefix_repetition_prefix_len=5,
        prefix_repetition_suffix_len=4,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=9,
    )
    samples = draw(config, as_text=as_text)
    prompts = [p.split() if isinstance(p, str) else p for p, _ in samples]
    assert {len(prompt) for prompt in prompts} == {9}
    assert sorted(Counter(tuple(prompt[:5]) for prompt in prompts).values()) == [6, 7, 7]
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert {sample.output_len for sample in samples} == {9}


def test_custom_data_set_is_read_by_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b"}\n')
    config = DataConfig(dataset_name="custom", dataset_path=str(path))
    assert sorted(draw(config, 2)) == [("a", 3), ("b", DEFAULT_OUTPUT_LEN)]
    assert len(draw(config, 5)) == 5, "again from the start"
    assert len(draw(config, 1)) == 1
    config = DataConfig(dataset_name="custom", dataset_path=str(path), output_len=8)
    assert {sample.output_len for sample in draw(config, 2)} == {8}


def test_custom_data_set_ends_lines_with_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompt = "a\u2028b\u2029c\x85d"
    line = json.dumps({"prompt": prompt, "output_tokens": 3}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n{line}".encode())
    assert draw(DataConfig(dataset_name="custom", dataset_path=str(path)), 2) == [(prompt, 3)] * 2


@pytest.mark.parametrize("name", ["custom", "sharegpt"])
def test_lone_surrogate_of_a_data_set_is_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    content = {
        "custom": {"prompt": "a\ud83d!\U0001f600"},
        "sharegpt": [{"conversations": [{"value": "a\ud83d!\U0001f600"}, {"value": "b"}]}],
    }
    path.write_text(json.dumps(content[name]))
    [sample] = draw(DataConfig(dataset_name=name, dataset_path=str(path)), 1)
    assert sample.prompt == "a\ufffd!\U0001f600"


def test_sharegpt_prompt_is_the_first_turn(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "x" * 40}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    config = DataConfig(dataset_name="sharegpt", dataset_path=str(path))
    assert draw(config, 1) == [("Who?", 10)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("custom", None, "--dataset-name custom needs --dataset-path"),
        ("custom", "", "has no prompt"),
        ("custom", "{", "must have lines of JSON"),
        ("custom", '{"prompt": 5}', "must have lines of JSON"),
        ("custom", '{"prompt": "a", "output_tokens": 0}', "an integer of at least 1"),
        ("custom", '{"prompt": "a", "output_tokens": true}', "an integer of at least 1"),
        ("sharegpt", '[{"conversations": [{"value": 5}, {"value": "a"}]}]', "a JSON list"),
        ("sharegpt", "{}", "has no prompt"),
        ("sharegpt", '[{"a": 1}]', "must have a JSON list"),
        ("sharegpt", b"\xff", "cannot read --dataset-path .*not UTF-8"),
    ],
)
def test_invalid_data_set_is_refused(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    config = DataConfig(dataset_name=name, dataset_path=None if content is None else str(path))
    with pytest.raises(ConfigurationError, match=message):
        draw(config)


@asynccontextmanager
async def client_of(script: Script) -> AsyncIterator[HttpClient]:
    with scripted_server(script) as url:
        client = HttpClient(Target.from_url(url))
        yield client
        await client.close()


def request(num_tokens: int = 3, due: float = 0.0) -> LoadRequest:
    body = json.dumps({"model": "scripted", "prompt": "a", "max_tokens": num_tokens}).encode()
    return LoadRequest("/v1/completions", body, due)


async def test_load_sums_its_streams() -> None:
    ended: list[Timeline] = []
    async with client_of(Script()) as client:
        load = await run_load(client, [request(), request(5)], on_end=ended.append)
    assert [timeline.num_tokens for timeline in load.timelines] == [3, 5]
    assert (load.num_tokens, load.num_events) == (8, 8)
    assert load.seconds > 0
    assert sorted(map(id, ended)) == sorted(map(id, load.timelines))


async def test_requests_wait_until_they_are_due() -> None:
    async with client_of(Script()) as client:
        load = await run_load(client, [request(), request(due=0.2)])
    first, second = load.timelines
    assert second.started - first.started >= 0.19


async def test_requests_at_once_are_limited() -> None:
    script = Script(pause=0.01)
    async with client_of(script) as client:
        load = await run_load(client, [request()] * 6, max_concurrency=2)
    assert script.most_at_once == 2
    assert load.num_tokens == 18


async def test_failures_have_their_kind() -> None:
    script = Script(statuses=[429])
    async with client_of(script) as client:
        load = await run_load(client, [request()] * 3, max_concurrency=1)
        script.events = []
        empty = LoadRequest("/v1/chat/completions", b'{"messages": [], "max_tokens": 1}')
        [nothing] = (await run_load(client, [empty])).timelines
    failures = [timeline.failure for timeline in load.timelines]
    assert [failure and failure.kind for failure in failures] == ["HTTP 429", None, None]
    assert nothing.failure is not None
    assert nothing.failure.kind == "no output"


async def test_request_that_takes_too_long_times_out() -> None:
    async with client_of(Script(pause=0.5)) as client:
        [timeline] = (await run_load(client, [request()], max_seconds=0.1)).timelines
    assert str(timeline.failure) == "timeout: no end after 0.1 s"


async def test_cancelled_load_returns_timelines_so_far() -> None:
    ended: list[Timeline] = []
    has_ended = asyncio.Event()

    def on_end(timeline: Timeline) -> None:
        ended.append(timeline)
        has_ended.set()

    async with client_of(Script(pause=0.1)) as client:
        requests = [request(1), request(100), request(due=60)]
        task = asyncio.create_task(run_load(client, requests, on_end=on_end))
        await asyncio.wait_for(has_ended.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    done, cut = ended
    assert done.failure is None
    assert cut.failure is not None
    assert cut.failure.kind == "cancelled"


DATA = DataConfig(random_input_len=4, random_output_len=2)


async def run(config: LoadConfig, *urls: str, num_rounds: int = 1) -> list[LoadedServer]:
    servers = [LoadedServer(url, Target.from_url(url), config) for url in urls]
    try:
        await run_rounds(servers, config, DATA, num_rounds, lambda timeline: None)
    finally:
        for server in servers:
            await server.client.close()
    return servers


async def test_request_bodies_follow_the_flags() -> None:
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


async def test_chat_backend_sends_messages() -> None:
    script = Script()
    with scripted_server(script) as url:
        config = LoadConfig(backend="openai-chat", num_prompts=3, num_warmups=0, model="m")
        [server] = await run(config, url)
    assert [body["messages"][0]["role"] for _, body in script.received] == ["user"] * 3
    assert {body["model"] for _, body in script.received} == {"m"}
    assert all(timeline.failure is None for timeline in server.load.timelines)


async def test_servers_get_the_same_prompts_and_rounds_new_ones() -> None:
    ours, theirs = Script(), Script()
    with scripted_server(ours) as url, scripted_server(theirs) as other:
        config = LoadConfig(num_prompts=2, num_warmups=1, max_concurrency=1)
        servers = await run(config, url, other, num_rounds=3)
    assert [len(server.loads) for server in servers] == [3, 3]
    assert all(len(server.load.timelines) == 6 for server in servers)
    prompts = [tuple(body["prompt"]) for _, body in ours.received]
    assert prompts == [tuple(body["prompt"]) for _, body in theirs.received]
    assert len(set(prompts)) == 7


async def test_body_that_json_cannot_hold_is_refused() -> None:
    with (
        scripted_server(Script()) as url,
        pytest.raises(ConfigurationError, match="cannot be encoded as JSON: Integer exceeds"),
    ):
        await run(LoadConfig(extra_body={"seed": 2**64}), url)


async def test_server_without_a_model_is_refused() -> None:
    with (
        scripted_server(Script(models=[])) as url,
        pytest.raises(RequestFailed, match="set --model"),
    ):
        await run(LoadConfig(), url)


FLAGS = ("--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "3")


def bench(*arguments: str) -> int:
    return main(["bench", *FLAGS, *arguments])


def test_bench_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Script()) as url:
        assert bench(url) == 0
    output = capsys.readouterr()
    assert "Successful requests:                     4" in output.out
    assert "Total generated tokens:                  12" in output.out
    assert output.err == "", "no progress bar where there is no terminal"


def test_bench_with_failures_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Script(statuses=[200, 429])) as url:
        assert bench(url) == 1
    assert "HTTP 429:                              1 (status 429)" in capsys.readouterr().out


def test_json_result_is_printed_and_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "result.json"
    with scripted_server(Script()) as url:
        assert bench(url, "--json", "--result-filename", str(kept), "--save-detailed") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(kept.read_text())
    assert (result["base_url"], result["model_id"]) == (url, "scripted")
    assert result["output_lens"] == [3, 3, 3, 3]


def test_compare_measures_two_servers_and_reports_their_ratios(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, plots = tmp_path / "page.html", tmp_path / "plots.svg"
    with scripted_server(Script()) as url, scripted_server(Script()) as other:
        written = ("--html", str(page), "--svg", str(plots))
        assert bench(url, "--compare", other, "--rounds", "2", *written) == 0
        text = capsys.readouterr().out
        assert bench(url, "--compare", other, "--rounds", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert text.count("Serving Benchmark Result") == 2
    assert "2 rounds in turn" in text
    assert result["rounds"] == 2
    assert result["ratios"]["output_throughput"]["ratio"] > 0
    assert result["compare"]["base_url"] == other
    assert other in page.read_text()
    assert plots.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x",), "fastovms: URL must be http://HOST:PORT"),
        (("http://a", "--compare", "b"), "fastovms: --compare must be http://HOST:PORT"),
        (("http://a", "--dataset-name", "custom"), "needs --dataset-path"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert bench(*arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_bench_without_a_server_fails_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:1") == 1
    assert capsys.readouterr().err == "fastovms: no connection: 127.0.0.1:1: Connection refused\n"


def test_result_file_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted_server(Script()) as url:
        assert bench(url, "--result-filename", str(tmp_path)) == 2
    output = capsys.readouterr()
    assert "Successful requests" in output.out, "what was measured is told all the same"
    assert f"cannot write --result-filename {tmp_path}: Is a directory" in output.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_prints_the_report_so_far(number: signal.Signals, code: int) -> None:
    script = Script(pause=0.05)
    with scripted_server(script) as url:
        command = [sys.executable, "-m", "fastovms", "bench", *FLAGS, "--num-prompts", "1000"]
        with subprocess.Popen(
            [*command, "--max-concurrency", "2", url], stdout=subprocess.PIPE, text=True
        ) as process:
            script.wait_until_received(6)  # some have ended
            process.send_signal(number)
            output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "cancelled:                             2" in output
    assert "Mean TTFT" in output
