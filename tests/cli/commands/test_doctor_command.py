from __future__ import annotations

import json
from io import StringIO

import pytest

from fastovms.cli.commands.doctor_command import wants_colour
from fastovms.cli.main import main

QUIET = ("--no-run", "--port", "0", "--state-dir", ":memory:", "--cache-dir", "")


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *QUIET]) == 0
    output = capsys.readouterr().out
    assert "model: demo_model" in output
    assert "\x1b" not in output


def test_problems_make_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *QUIET, "--json", "--api-key-file", "/none", "no/such/model"]) == 1
    found = json.loads(capsys.readouterr().out)
    problems = [one["topic"] for one in found["findings"] if one["level"] == "problem"]
    assert problems == ["API keys", "model"]


def test_a_wrong_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--port", "x"])
    assert "argument --port" in capsys.readouterr().err


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours(environ: dict[str, str], is_coloured: bool) -> None:
    assert wants_colour(Terminal(), environ) == is_coloured
    assert not wants_colour(StringIO(), environ)
