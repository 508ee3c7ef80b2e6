"""Tests of a batch without a server: every line is answered once, also after SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastovms.app.batch_app import BatchPaths, run_batch
from fastovms.errors import ConfigurationError
from tests.server_process import DEADLINE

COUNT = 200
BAD = 17


def line(number: int, **body: object) -> str:
    request = {"model": "demo_model", "prompt": f"Once {number}", "max_tokens": 2, **body}
    entry = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions"}
    return json.dumps({**entry, "body": request}) + "\n"


def start(directory: Path) -> subprocess.Popen[str]:
    flags = ["--state-dir", str(directory / "state"), "--cache-size", "0.1"]
    return subprocess.Popen(
        [sys.executable, "-m", "fastovms", "run-batch", "in", "out", *flags],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_batch_continues_after_a_kill(tmp_path) -> None:
    lines = [line(number) for number in range(COUNT)]
    lines[BAD] = line(BAD, max_tokens=-1)
    (tmp_path / "in").write_text("".join(lines))
    with start(tmp_path) as first:
        while not (tmp_path / "out").exists() or not (tmp_path / "out").stat().st_size:
            assert first.poll() is None
        first.kill()
    kept = (tmp_path / "out").read_bytes()
    with start(tmp_path) as second:
        told, errors = second.communicate(timeout=DEADLINE)
    assert (second.returncode, errors) == (1, "")
    assert told == f"{COUNT - 1} lines are answered, 1 have failed\n"
    content = (tmp_path / "out").read_bytes()
    assert content.startswith(kept[: kept.rfind(b"\n") + 1])
    found = {entry["custom_id"]: entry for entry in map(json.loads, content.splitlines())}
    assert content.count(b"\n") == len(found) == COUNT
    failed = [id for id, entry in found.items() if entry["response"]["status_code"] != 200]
    assert failed == [f"c{BAD}"]
    assert found["c3"]["response"]["body"]["usage"]["completion_tokens"] == 2


@pytest.mark.nightly(but=("15-143",))
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_batch_ends_by_a_signal_with_its_exit_code(
    tmp_path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "in").write_text("".join(map(line, range(5_000))))
    with start(tmp_path) as running:
        while not (tmp_path / "out").exists() or not (tmp_path / "out").stat().st_size:
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        told, errors = running.communicate(timeout=DEADLINE)
    assert (running.returncode, told) == (code, "")
    assert errors == "stopped: the same command goes on in out\n"


@pytest.mark.parametrize(
    ("input", "output", "fault"),
    [
        ("none", "out", "none is not a file"),
        (".", "out", "is not a file"),
        ("in", "in", "must not be the input file"),
        ("in", ".", "exists and is not a file"),
        ("in", "none/out", "none is not a directory"),
    ],
)
def test_invalid_batch_paths_are_refused(tmp_path, input: str, output: str, fault: str) -> None:
    (tmp_path / "in").touch()
    with pytest.raises(ConfigurationError, match=fault):
        run_batch(BatchPaths(tmp_path / input, tmp_path / output), None)  # type: ignore[arg-type]
