"""What the log says while a server starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

STAGES = (
    "is starting",
    "loading demo_model from",
    "compiling the model for CPU",
    "compiled the model for CPU",
    "loaded in",
)
"""In order. The first one comes before OpenVINO is read, the others before and after each wait."""

CHECK = (
    "first start: checking that this server computes the model as exported",
    "the model is computed as exported (checked in",
    "loaded in",
)
"""In order, beside the others."""


def log_of_start(*flags: str, cache: str) -> Iterator[str]:
    """The lines until the server listens, each as soon as it is there."""
    with subprocess.Popen(
        [sys.executable, "-m", "fastovms", "--port", "0", "--cache-size", "0.1",
         "--state-dir", ":memory:", "--cache-dir", cache, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.terminate()
        yield from process.stderr
        assert process.wait(60) == 0


def places(lines: list[str], stages: tuple[str, ...]) -> list[int]:
    return [next(place for place, line in enumerate(lines) if stage in line) for stage in stages]


@pytest.mark.nightly(but=("text",))
@pytest.mark.parametrize("form", ["text", "json"])
def test_each_stage_of_a_start_is_logged_before_it_begins(tmp_path, form):
    lines = list(log_of_start("--log-format", form, cache=str(tmp_path)))
    assert "is starting" in lines[0]
    for stages in (STAGES, CHECK):
        found = places(lines, stages)
        assert found == sorted(found), lines
    if form == "json":
        records = [json.loads(line) for line in lines if line.startswith("{")]
        messages = " ".join(record["message"] for record in records)
        assert all(stage in messages for stage in (*STAGES, *CHECK))


@pytest.mark.nightly
def test_second_start_skips_first_start_stages(tmp_path):
    assert any("first start:" in line for line in log_of_start(cache=str(tmp_path)))
    again = list(log_of_start(cache=str(tmp_path)))
    assert not any("first start:" in line for line in again)
    places(again, ("is starting", "loading demo_model", "compiling the model for CPU", "loaded in"))


@pytest.mark.nightly
def test_a_quiet_log_has_none_of_it(tmp_path):
    assert list(log_of_start("--log-level", "warning", "--access-log", "off",
                             cache=str(tmp_path))) == []  # fmt: skip
