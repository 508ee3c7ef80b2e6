from __future__ import annotations

import pytest

from fastovms.cli.commands.bench_command import BENCH_GROUPS, DATA, LOAD, REPORT, run_bench
from fastovms.cli.parser import parse
from fastovms.config.settings import Settings
from fastovms.load_test import load_command
from fastovms.load_test.load_config import DataConfig, LoadConfig, ReportConfig

URL = "http://127.0.0.1:8000"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(load_command, "bench", lambda *given: calls.append(given) or 0)
    return calls


def test_defaults_are_those_of_the_configuration(calls: list[tuple[object, ...]]) -> None:
    assert run_bench(parse(["bench", URL]), Settings()) == 0
    assert calls == [(URL, LoadConfig(), DataConfig(), ReportConfig())]


def test_every_field_has_a_flag() -> None:
    fields = {flag.field for flags in BENCH_GROUPS.values() for flag in flags}
    assert fields == {*vars(LOAD).values(), *vars(DATA).values(), *vars(REPORT).values()}


def test_values(calls: list[tuple[object, ...]]) -> None:
    line = (
        "bench --backend openai-chat --request-rate 2.5 --header X-A=b=c --header Y=z "
        "--metric_percentiles 50,99.9 --percentile-metrics ttft,itl --goodput ttft:500,e2el:3000 "
        f'--extra-body {{"top_k":1}} --random-range-ratio 0.5 --no-json {URL}'
    )
    run_bench(parse(line.split()), Settings())
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


def test_the_key_of_the_environment(
    calls: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    run_bench(parse(["bench", URL]), Settings())
    run_bench(parse(["bench", "--api-key", "other", URL]), Settings())
    assert [load.api_key for _, load, *_ in calls] == ["secret", "other"]  # type: ignore[attr-defined]


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
def test_wrong_flags(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["bench", *arguments, *([URL] if arguments else [])])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
