from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.config.http_config import HttpConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.service_config import StateConfig
from fastovms.config.settings import ModelSource, Settings
from fastovms.doctor.examination import examine, render, render_json
from fastovms.doctor.finding import Finding, Level
from tests.encoder_models import encoder_dir

QUIET = (
    Settings.of(EngineConfig, cache_dir="")
    | Settings.of(HttpConfig, port=0)
    | Settings.of(StateConfig, state_dir=":memory:")
)


def test_everything_is_examined() -> None:
    examination = examine(ModelSource(), QUIET, runs=False)
    topics = {finding.topic for finding in examination.findings}
    assert {"processor", "cores", "memory", "address", "cache directory", "model"} <= topics
    assert not examination.has_problems
    found = json.loads(render_json(examination))
    assert found["has_problems"] is False
    assert found["machine"]["num_cpus"] >= 1
    assert found["model"]["backend"] == "paged"
    assert found["bytes_per_token"] > 0
    assert found["tokens_per_second"] is None


def test_an_encoder_is_examined() -> None:
    examination = examine(ModelSource(str(encoder_dir(1))), QUIET, runs=True)
    assert not examination.has_problems
    [task] = [finding.text for finding in examination.findings if finding.topic == "task"]
    assert task.startswith("rerank")
    assert json.loads(render_json(examination))["model"]["task"] == "rerank"


@pytest.mark.parametrize(
    ("location", "level", "words"),
    [
        ("no/such/place", Level.PROBLEM, "no/such/place"),
        ("org/name", Level.NOTE, "the first start pulls it"),
    ],
)
def test_models_that_are_not_here(tmp_path: Path, location: str, level: Level, words: str) -> None:
    settings = QUIET | Settings.of(RepositoryConfig, path=tmp_path)
    examination = examine(ModelSource(location), settings, runs=True)
    [finding] = [found for found in examination.findings if found.topic == "model"]
    assert finding.level is level
    assert words in finding.text
    assert examination.has_problems == (level is Level.PROBLEM)


FINDINGS = [
    Finding(Level.OK, "cores", "8 of them"),
    Finding(Level.WARNING, "governor", "powersave", "another one"),
]


def test_the_text() -> None:
    assert render(FINDINGS, in_colour=False).splitlines() == [
        "ok       cores: 8 of them",
        "warning  governor: powersave",
        "         -> another one",
        "",
        "1 warning",
    ]
    assert render(FINDINGS[:1], in_colour=False).endswith("\nall is well")


def test_colours() -> None:
    lines = render(FINDINGS, in_colour=True).splitlines()
    assert lines[0] == "\x1b[32mok     \x1b[0m  cores: 8 of them"
    assert lines[1].startswith("\x1b[33mwarning\x1b[0m")
