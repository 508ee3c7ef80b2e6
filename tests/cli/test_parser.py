"""Command lines are read, with what variables add to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.cli.environment import read_environment
from fastovms.cli.flags.flags import read_flags
from fastovms.cli.parser import USAGE_ERROR, parse
from fastovms.config.settings import ENGINE


def test_extra_arguments_go_before_variables_and_behind_flags():
    arguments = parse(
        ["serve", "--max-num-seqs", "3"], ["--max_num_seqs", "4", "--cache-size", "1"]
    )
    settings = read_environment({"MAX_NUM_SEQS": "5"}) | read_flags(arguments)
    assert settings.given == {ENGINE.max_num_seqs: 3, ENGINE.cache_size: 1.0}
    assert parse(["pull", "a/b"], ["--cache-size", "1"]).model_ids == ["a/b"]


@pytest.mark.parametrize(
    ("line", "command"),
    [("serve m", "serve"), ("--port 1", "serve"), ("pull a/b", "pull"), ("tune m", "tune")],
)
def test_commands(line, command):
    assert parse(line.split()).command == command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--por", "1"], "unrecognized arguments: --por"),
        (["pull"], "ORG/NAME"),
        (["tune"], "MODEL"),
        (["state"], "ACTION"),
        (["state", "migrate", "a"], "TO"),
        (["tune", "m", "--port", "1"], "--port"),
        (["serve", "--config-path", ""], "must not be empty"),
    ],
)
def test_a_wrong_line_is_one_line_of_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == USAGE_ERROR
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert "--help)" in error


def test_what_ovms_calls_its_modes():
    arguments = parse(["--pull", "--source_model", "a/b", "--add_to_config", "list.json"])
    assert (arguments.pull, arguments.list_models, arguments.configure) == (True, False, False)
    assert arguments.source_model == "a/b"
    assert arguments.add_to_config == Path("list.json")
    assert parse(["--add_to_config"]).add_to_config is True
