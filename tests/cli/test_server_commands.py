"""Tests of `fastovms/cli/bench.py` and `state.py`."""

from __future__ import annotations

import argparse
import asyncio
import time

import pytest

from fastovms.app.state_opening import open_store
from fastovms.cli.bench import BENCH_GROUPS
from fastovms.cli.chat import CHAT_FLAGS, TERMINAL
from fastovms.cli.flag import client_settings
from fastovms.cli.main import main
from fastovms.parts.client.config import TerminalConfig
from fastovms.parts.load_test import command
from fastovms.parts.load_test.config import DataConfig, LoadConfig, ReportConfig
from fastovms.server_config import Fields, StateConfig
from fastovms.state.operations import Operations
from fastovms.state.store import EventPack, ResponseProgress, StoredItem, StoredResponse
from tests.state.conftest import postgres, postgres_server, test_database


@pytest.mark.parametrize(
    ("line", "environ", "key"),
    [
        ([], {}, None),
        ([], {"OPENAI_API_KEY": " "}, None),
        ([], {"OPENAI_API_KEY": " a\n"}, "a"),
        (["--api-key", "b"], {"OPENAI_API_KEY": "a"}, "b"),
    ],
)
def test_api_key_flag_precedes_the_environment(line, environ, key):
    parser = argparse.ArgumentParser()
    for flag in CHAT_FLAGS:
        flag.add_to(parser)
    given = client_settings(CHAT_FLAGS, parser.parse_args(line), TERMINAL.api_key, environ)
    assert given.section(TerminalConfig).api_key == key


URL = "http://127.0.0.1:8000"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(command, "bench", lambda *given: calls.append(given) or 0)
    return calls


def test_bench_defaults_are_those_of_the_configuration(calls: list[tuple[object, ...]]) -> None:
    assert main(["bench", URL]) == 0
    assert calls == [(URL, LoadConfig(), DataConfig(), ReportConfig())]


def test_every_field_of_the_bench_has_a_flag() -> None:
    fields = {flag.field for flags in BENCH_GROUPS.values() for flag in flags}
    sections = (LoadConfig, DataConfig, ReportConfig)
    assert fields == {field for section in sections for field in vars(Fields(section)).values()}


def test_bench_flags_become_load_and_data_config(calls: list[tuple[object, ...]]) -> None:
    line = (
        "bench --backend openai-chat --request-rate 2.5 --header X-A=b=c --header Y=z "
        "--metric_percentiles 50,99.9 --percentile-metrics ttft,itl --goodput ttft:500,e2el:3000 "
        f'--extra-body {{"top_k":1}} --random-range-ratio 0.5 --no-json {URL}'
    )
    main(line.split())
    [(_, load, data, report)] = calls
    assert load == LoadConfig(
        backend="openai-chat",
        request_rate=2.5,
        headers=(("X-A", "b=c"), ("Y", "z")),
        metric_percentiles=(50.0, 99.9),
        percentile_metrics=("ttft", "itl"),
        goodput={"ttft": 500.0, "e2el": 3000.0},
        extra_body={"top_k": 1},
    )
    assert data == DataConfig(random_range_ratio=0.5)
    assert report == ReportConfig()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: URL"),
        (("--backend", "vllm"), "must be openai or openai-chat, not 'vllm'"),
        (("--request-rate", "0"), "must be a number of requests a second, or inf, more than 0"),
        (("--random-range-ratio", "1"), "must be 0 or more and less than 1, not '1'"),
        (("--header", "a"), "must be NAME=VALUE, not 'a'"),
        (("--metric-percentiles", "50,101"), "must be from 0 to 100, not '101'"),
        (("--percentile-metrics", "tft"), "must be ttft, tpot, itl or e2el, not 'tft'"),
        (("--goodput", "itl:5"), "must be ttft, tpot or e2el, not 'itl'"),
        (("--goodput", "ttft"), "must be a number of milliseconds, 0 or more, not ''"),
        (("--num-prompts", "0"), "must be an integer at least 1, not '0'"),
        (("--extra-body", "[]"), "must be a JSON object, not '[]'"),
        (("--dataset-name", "sonnet"), "must be random, prefix_repetition, sharegpt or custom"),
    ],
)
def test_invalid_bench_flag_is_refused_with_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments, *([URL] if arguments else [])])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# `fastovms state` on directories and databases.


__all__ = ["postgres", "postgres_server", "test_database"]  # fixtures of the state's tests

RESPONSE = StoredResponse(
    "r2", b"{}", [StoredItem("i", b"new")], [StoredItem("o", b"\xff\0")], "r1", events=b"\x01\xfe"
)


def config_of(place: str) -> StateConfig:
    return StateConfig(state_url=place) if "://" in place else StateConfig(state_dir=place)


@pytest.fixture(params=["directory", "database"])
def place(request, tmp_path) -> str:
    if request.param == "directory":
        return str(tmp_path / "place")
    address = request.getfixturevalue("postgres")
    values = "&".join(f"{name}={value}" for name, value in address.parameters.items())
    return f"postgresql://?{values}"


async def fill(place: str) -> None:
    store = open_store(config_of(place), {}, time.time)
    running = StoredResponse("running", b"{}", progress=ResponseProgress.RUNNING)
    await store.run(
        Operations.add_response, "t", StoredResponse("r1", b"{}", [StoredItem("i", b"old")])
    )
    await store.run(Operations.add_response, "t", running)
    await store.run(Operations.add_events, "t", "running", EventPack(0, b"so far"))
    await store.run(
        Operations.add_conversation, "t", "c", b"{}", [StoredItem(str(i), b"x") for i in range(250)]
    )
    await store.run(Operations.add_response, "t", RESPONSE, conversation_id="c")
    await store.close()


async def expect_all(place: str) -> None:
    store = open_store(config_of(place), {}, time.time)
    context = await store.run(Operations.response_context, "t", "r2", max_bytes=1000)
    assert [item.body for item in context.items] == [b"old", b"new", b"\xff\0"]
    assert (await store.run(Operations.find_events, "t", "r2", 0)).packs == [
        EventPack(0, b"\x01\xfe")
    ]
    found = await store.run(Operations.find_events, "t", "running", 0)
    assert found == (ResponseProgress.INTERRUPTED, [EventPack(0, b"so far")])
    listed = await store.run(Operations.conversation_context, "t", "c", max_bytes=1000)
    assert [item.id for item in listed.items] == [*map(str, range(250)), "i", "o"]
    assert await store.run(Operations.find_items, "t", ["i"]) == {"i": b"new"}
    await store.close()


@pytest.mark.nightly(but=("directory",))
@pytest.mark.slow
def test_state_is_migrated_exported_and_imported(place, tmp_path, capsys):
    """From a directory to another place, then into a file, and then to a directory."""
    start, file, end = (str(tmp_path / name) for name in ("start", "file", "end"))
    asyncio.run(fill(start))
    assert main(["state", "migrate", start, place]) == 0
    assert main(["state", "check", place]) == 0
    assert main(["state", "export", place, file]) == 0
    assert main(["state", "import", file, end]) == 0
    added = "4 responses and conversations were added\n"
    assert capsys.readouterr().out == f"{added}260 rows were written to {file}\n{added}"
    for where in (place, end):
        asyncio.run(expect_all(where))
        assert main(["state", "migrate", start, where]) == 0
        assert (
            "0 responses and conversations were added, 4 existed already" in capsys.readouterr().out
        )
        assert main(["state", "check", where]) == 0
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_state_check_leaves_a_file_that_is_not_a_database(tmp_path, capsys):
    (tmp_path / "state.db").write_bytes(b"no database" * 1000)
    assert main(["state", "check", str(tmp_path)]) == 1
    assert "file is not a database" in capsys.readouterr().err
    assert not (tmp_path / "state.db.damaged").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "NONE"], 2, "has no stored state"),
        (["check", "postgresql://127.0.0.1:1/x"], 1, "Connection refused"),
        (["check", "postgresql://127.0.0.1:1/x?y=1"], 2, "not a URL that libpq understands"),
        (["import", "NONE", "NONE"], 2, "cannot read"),
        (["migrate", "NONE", "NONE"], 2, "has no stored state"),
    ],
)
def test_missing_or_unreachable_state_is_refused_with_one_line(
    tmp_path, capsys, arguments, code, message
):
    given = [text.replace("NONE", str(tmp_path / "none")) for text in arguments]
    assert main(["state", *given]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_state_check_refuses_a_directory_in_use(tmp_path, capsys):
    async def check() -> int:
        store = open_store(StateConfig(state_dir=str(tmp_path)), {}, time.time)
        try:
            return await asyncio.to_thread(main, ["state", "check", str(tmp_path)])
        finally:
            await store.close()

    assert asyncio.run(check()) == 2
    assert "another server uses it" in capsys.readouterr().err
