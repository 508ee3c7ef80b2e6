from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastovms.cli.main import main
from tests.client.scripted_server import Script, scripted_server

FLAGS = ("--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "3")


def bench(*arguments: str) -> int:
    return main(["bench", *FLAGS, *arguments])


def test_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Script()) as url:
        assert bench(url) == 0
    output = capsys.readouterr()
    assert "Successful requests:                     4" in output.out
    assert "Total generated tokens:                  12" in output.out
    assert output.err == "", "no progress bar where there is no terminal"


def test_failures_make_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Script(statuses=[200, 429])) as url:
        assert bench(url) == 1
    assert "HTTP 429:                              1 (status 429)" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    with scripted_server(Script()) as url:
        assert bench(url, "--json", "--result-filename", str(kept), "--save-detailed") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(kept.read_text())
    assert (result["base_url"], result["model_id"]) == (url, "scripted")
    assert result["output_lens"] == [3, 3, 3, 3]


def test_a_result_is_kept_in_a_file_named_after_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with scripted_server(Script()) as url:
        assert bench(url, "--save-result") == 0
    [kept] = tmp_path.iterdir()
    assert kept.match("fastovms-bench-*.json")
    assert json.loads(kept.read_text())["completed"] == 4


def test_two_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert bench(*arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:1") == 1
    assert capsys.readouterr().err == "fastovms: no connection: 127.0.0.1:1: Connection refused\n"


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with scripted_server(Script()) as url:
        assert bench(url, "--result-filename", str(tmp_path)) == 2
    output = capsys.readouterr()
    assert "Successful requests" in output.out, "what was measured is told all the same"
    assert f"cannot write --result-filename {tmp_path}: Is a directory" in output.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_prints_what_there_is(number: signal.Signals, code: int) -> None:
    script = Script(pause=0.05)
    with scripted_server(script) as url:
        command = [sys.executable, "-m", "fastovms", "bench", *FLAGS, "--num-prompts", "1000"]
        with subprocess.Popen(
            [*command, "--max-concurrency", "2", url], stdout=subprocess.PIPE, text=True
        ) as process:
            script.wait_until_received(6)  # some have ended
            process.send_signal(number)
            output, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert "cancelled:                             2" in output
    assert "Mean TTFT" in output
