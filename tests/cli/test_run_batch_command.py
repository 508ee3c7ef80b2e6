from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.app import batch_app
from fastovms.app import serve as app
from fastovms.app.batch_app import BatchPaths, OfflineParts
from fastovms.app.serve import ServerConfig
from fastovms.cli import run_batch_command
from fastovms.cli.flags.flags import read_flags
from fastovms.cli.parser import parse
from fastovms.cli.run_batch_command import run_batch
from fastovms.errors import ConfigurationError

Call = tuple[BatchPaths, str, int, str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def supply(config: ServerConfig) -> str:
        return config.models[0].location

    def fake(paths: BatchPaths, parts: OfflineParts) -> int:
        calls.append((paths, str(parts.supply), parts.config.num_at_once, levels[-1]))
        return 1

    levels: list[str] = []
    monkeypatch.setattr(app, "model_supply", supply)
    monkeypatch.setattr(batch_app, "run_batch", fake)
    monkeypatch.setattr(run_batch_command, "start_log", lambda _, level: levels.append(level))
    return calls


def run(*line: str) -> int:
    arguments = parse(["run-batch", *line])
    return run_batch(arguments, read_flags(arguments))


PATHS = BatchPaths(Path("in"), Path("out"))


@pytest.mark.parametrize(
    ("line", "model"),
    [
        (["in", "out", "m"], "m"),
        (["in", "out", "--model", "m"], "m"),
        (["-i", "in", "-o", "out", "m"], "m"),
        (["--input-file", "in", "--output_file", "out", "--model", "m"], "m"),
    ],
)
def test_words(calls: list[Call], line: list[str], model: str) -> None:
    assert run("--batch-concurrency", "5", *line) == 1
    assert calls == [(PATHS, model, 5, "WARNING")]


def test_a_list_without_models(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_config_list": []}')
    with pytest.raises(ConfigurationError, match=r"config\.json lists no model"):
        run("in", "out", "--config-path", str(path))


def test_the_log_as_it_is_asked_for(calls: list[Call]) -> None:
    run("in", "out", "--log-level", "debug")
    assert calls[0][3] == "DEBUG"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ([], "needs IN and OUT"),
        (["in"], "needs IN and OUT"),
        (["-i", "in"], "given together"),
        (["-i", "in", "-o", "out", "a", "b"], "only MODEL"),
        (["in", "out", "a", "--model", "b"], "MODEL cannot be used with --model"),
    ],
)
def test_wrong_words(calls: list[Call], line: list[str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        run(*line)
    assert not calls
