from __future__ import annotations

import pytest

import bench.serve
from bench.serve import load_shapes, main, parse
from tests.client.scripted_server import Script, scripted_server

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either a URL or --serve MODEL_DIR"),
        ([URL, "--serve", "model"], "give either a URL or --serve MODEL_DIR"),
        (["127.0.0.1:8000"], "URL must be http://HOST:PORT"),
        ([URL, "--side", "x", "127.0.0.1:9"], "--side must be http://HOST:PORT"),
        ([URL, "--side", "server", URL], "--side: the name server is taken"),
        ([URL, "--side", "genai", URL], "--side: the name genai is taken"),
        ([URL, "--side", "x", URL, "--side", "x", URL], "--side: the name x is taken"),
        ([URL, "--compare", "vllm", "model"], "--compare knows genai, not vllm"),
        ([URL, "--compare", "genai", "/nowhere"], "--compare: there is no directory /nowhere"),
        ([URL, "--from-start", "9"], "--from-start needs --serve"),
        ([URL, "--rates", "2"], "--rates needs --arrivals bursts or poisson"),
        ([URL, "--arrivals", "poisson", "--rates", "0"], "requests a second, more than 0, not '0'"),
        ([URL, "-n", "0"], "must be an integer at least 1, not '0'"),
        ([URL, "--burst", "0"], "must be an integer at least 1, not '0'"),
        ([URL, "-r", "0"], "must be an integer at least 1, not '0'"),
        ([URL, "--warm-up", "0"], "must be an integer at least 1, not '0'"),
    ],
)
def test_invalid_flags_are_refused_before_any_work(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ["1 at once", "8 at once", "32 at once"]),
        (["-n", "4", "--arrivals", "poisson"], ["4 at 1 a second"]),
        (
            ["-n", "4", "6", "--arrivals", "bursts", "--burst", "2", "--rates", "0.5", "3"],
            [
                f"{number} at {rate} a second, in bursts of 2"
                for number in (4, 6)
                for rate in ("0.5", "3")
            ],
        ),
    ],
)
def test_every_number_of_requests_comes_at_every_rate(flags: list[str], names: list[str]) -> None:
    assert [shape.name for shape in load_shapes(parse([URL, *flags]))] == names


def test_two_servers_are_compared_at_each_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.serve, "memory_speed", lambda: 25e9)
    monkeypatch.setattr(bench.serve, "REST_SECONDS", 0)
    scripts = Script(), Script(models=["another"])
    rates = ["--arrivals", "poisson", "--rates", "40", "80"]
    with scripted_server(scripts[0]) as url, scripted_server(scripts[1]) as other:
        main([url, "--side", "rival", other, "-n", "3", "-p", "2", "-g", "4", "-r", "1", *rates])
    report = capsys.readouterr().out
    for words in ("goodput of rival", "server over", "memory before rival, GB/s"):
        assert words in report
    lines = [line for line in report.splitlines() if "3 at 80 a second" in line]
    assert len(lines) == 2 + 1 + 1 + 1  # figures by side, goodput, ratios, memory
    for script, model in zip(scripts, ("scripted", "another"), strict=True):
        assert [body["model"] for _, body in script.received] == [model] * 12
