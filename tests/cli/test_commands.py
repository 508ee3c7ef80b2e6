"""Tests of `fastovms/cli/command.py`, `cache.py`, `doctor.py` and `ovms_modes.py`."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from fastovms.cli.command import wants_colour
from fastovms.cli.main import main
from fastovms.parts.ovms.config_list import read_config_list
from fastovms.parts.prefix_cache.directory import BlockDirectory


def test_cache_ls_and_clear_show_and_delete_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = BlockDirectory(tmp_path, 10_000)
    directory.write("0a-one", bytes(32), np.zeros(100, np.uint8), 0)
    directory.close()
    where = ["--prefix-cache-dir", str(tmp_path)]
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "one"
    assert main(["cache", "clear", "nosuch", *where]) == 2
    assert "has no prompts of the model nosuch" in capsys.readouterr().err
    assert main(["cache", "clear", *where]) == 0
    assert capsys.readouterr().out.split() == ["1", "blocks", "deleted"]


def test_cache_directory_that_is_missing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--prefix-cache-dir", "/nonexistent"]) == 2
    assert "there is no directory /nonexistent" in capsys.readouterr().err


QUIET = ("--no-run", "--port", "0", "--state-dir", ":memory:", "--cache-dir", "")


@pytest.mark.slow
def test_doctor_prints_a_report_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *QUIET]) == 0
    output = capsys.readouterr().out
    assert "model: demo_model" in output
    assert "\x1b" not in output


def test_doctor_with_problems_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *QUIET, "--json", "--api-key-file", "/none", "no/such/model"]) == 1
    found = json.loads(capsys.readouterr().out)
    problems = [one["topic"] for one in found["findings"] if one["level"] == "problem"]
    assert problems == ["API keys", "model"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_need_a_terminal_that_allows_them(
    environ: dict[str, str], is_coloured: bool
) -> None:
    assert wants_colour(Terminal(), environ) == is_coloured
    assert not wants_colour(StringIO(), environ)


# The commands that edit OVMS's config.json.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with a list of models in `mr`."""
    (tmp_path / "mr").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "mr" / "config.json").write_text(
        '{"model_config_list": [{"config": {"name": "old", "base_path": "old"}}]}'
    )
    (tmp_path / "link").symlink_to("mr")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(capfd: pytest.CaptureFixture[str], line: str) -> tuple[int, str]:
    """Returns the exit status and the text on stderr."""
    code = main(line.split())
    output = capfd.readouterr()
    assert output.out == ""
    return code, output.err


def names(path: Path) -> list[str]:
    return [model["config"]["name"] for model in json.loads(path.read_text())["model_config_list"]]


@pytest.mark.parametrize(
    "where",
    [
        "{flag} mr",
        "{flag}=mr",
        "{flag} --config_path mr",
        "--config_path mr {flag}",
        "--config_path={folder}/mr {flag}",
        "{flag} mr --config_path mr/config.json",
        "{flag} {folder}/mr --config_path ./mr",
        "{flag} link/config.json --config_path mr",
    ],
)
def test_config_list_may_be_named_in_several_ways(capfd, folder, where):
    add = where.format(flag="--add_to_config", folder=folder)
    assert edit(capfd, f"{add} --model_name new --model_path /models/new") == (0, "")
    assert names(folder / "mr" / "config.json") == ["old", "new"]
    remove = where.format(flag="--remove_from_config", folder=folder)
    assert edit(capfd, f"{remove} --model_name old") == (0, "")
    assert names(folder / "mr" / "config.json") == ["new"]


@pytest.mark.parametrize("flag", ["--add-to-config", "--remove-from-config"])
@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("--model_name old", "{flag} needs --config-path"),
        ("--config_path mr", "{flag} needs --model-name"),
        (
            "mr --config_path other --model_name old",
            "{flag} mr cannot be used with --config-path other: these are different files",
        ),
        (
            "loop --config_path mr --model_name old",
            "{flag} loop cannot be used with --config-path mr: these are different files",
        ),
    ],
)
def test_incomplete_or_contradictory_config_edit_changes_no_file(
    capfd, folder, flag, rest, message
):
    (folder / "loop").symlink_to("loop")
    before = (folder / "mr" / "config.json").read_text()
    line = f"{flag} {rest} --model_path /models/new"
    assert edit(capfd, line) == (2, f"fastovms: {message.format(flag=flag)}\n")
    assert (folder / "mr" / "config.json").read_text() == before
    assert list((folder / "other").iterdir()) == []


# Paths


def put_models(folder: Path) -> None:
    """Puts models into the working directory, beside the list, into both, and behind links."""
    for name in ("mr/org/m", "mr/models/n", "models/n", "other/deep/x"):
        (folder / name).mkdir(parents=True)
    (folder / "far").symlink_to(folder / "other" / "deep")
    (folder / "mr" / "inner").symlink_to(folder / "models")


@pytest.mark.parametrize(
    ("config", "model", "written", "found"),
    [
        ("mr", "--model_name org/m --model_repository_path mr", "org/m", "mr/org/m"),
        ("mr", "--model_name org/m --model_repository_path {0}/mr", "{0}/mr/org/m", "mr/org/m"),
        ("{0}/mr", "--model_name org/m --model_repository_path mr", "org/m", "mr/org/m"),
        ("other", "--model_name org/m --model_repository_path mr", "../mr/org/m", "mr/org/m"),
        ("list.json", "--model_name a --model_path mr/org/m", "mr/org/m", "mr/org/m"),
        ("mr", "--model_name a --model_path mr/org/m", "org/m", "mr/org/m"),
        ("mr", "--model_name a --model_path {0}/mr/org/m", "{0}/mr/org/m", "mr/org/m"),
        # OVMS reads paths from the list's directory; here the working directory has priority.
        ("mr", "--model_name a --model_path org/m", "org/m", "mr/org/m"),
        ("mr", "--model_name a --model_path models/n", "../models/n", "models/n"),
        # Directories that do not exist yet.
        ("mr", "--model_name a --model_path later/m", "../later/m", "later/m"),
        ("mr", "--model_name org/l --model_repository_path mr", "org/l", "mr/org/l"),
        # After a link, ".." is the parent of another directory.
        ("link", "--model_name a --model_path mr/org/m", "../mr/org/m", "mr/org/m"),
        ("link", "--model_name a --model_path link/org/m", "org/m", "mr/org/m"),
        ("mr", "--model_name a --model_path mr/inner/n", "inner/n", "models/n"),
        ("far/list.json", "--model_name a --model_path models/n", "../../models/n", "models/n"),
        ("mr", "--model_name a --model_path far/../deep/x", "{0}/other/deep/x", "other/deep/x"),
    ],
)  # fmt: skip
def test_added_model_is_found_from_every_directory(
    capfd, folder, monkeypatch, config, model, written, found
):
    put_models(folder)
    (folder / "mr" / "config.json").unlink()
    config = config.format(folder)
    line = f"--add_to_config --config_path {config} {model.format(folder)}"
    assert edit(capfd, line) == (0, "")
    for start in (folder, folder / "mr" / "org", Path("/")):
        monkeypatch.chdir(start)
        [source] = read_config_list(Path(os.path.relpath(folder / config))).models
        assert os.path.realpath(source.location) == os.path.realpath(folder / found)
    path = folder / config
    path = path / "config.json" if path.is_dir() else path
    [entry] = json.loads(path.read_text())["model_config_list"]
    assert entry["config"]["base_path"] == written.format(folder)


def test_path_that_cannot_be_looked_up_is_written_as_a_missing_one(capfd, folder):
    name = "m" * 300  # longer than a file's name may be
    line = f"--add_to_config --config_path mr --model_name a --model_path {name}"
    assert edit(capfd, line) == (0, "")
    *_, entry = json.loads((folder / "mr" / "config.json").read_text())["model_config_list"]
    assert entry["config"]["base_path"] == f"../{name}"


def test_options_that_a_list_cannot_hold_are_logged(folder, caplog):
    put_models(folder)
    line = (
        "--add_to_config --config_path mr --model_name b --model_path models/n "
        "--task embeddings --pooling LAST --target_device GPU"
    )
    assert main(line.split()) == 0
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(" is not used: ")[0] for line in told] == ["--device", "--pooling"]
    assert all("--configure writes options into a model's graph" in line for line in told)


def test_list_that_cannot_be_written_is_refused(capfd, folder):
    line = "--add_to_config --config_path none/config.json --model_name a --model_path /a"
    code, message = edit(capfd, line)
    assert code == 2
    assert message == "fastovms: cannot write none/config.json: No such file or directory\n"
