from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastovms.catalog.finder import ModelFinder, parse_model, with_names
from fastovms.catalog.hub import Repository
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import ModelConfig, ModelFiles, RepositoryConfig
from fastovms.config.settings import ModelSource, Settings
from fastovms.errors import ConfigurationError
from tests.fake_hub import FakeHub, running


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/a", ModelSource("models/a")),
        ("chat=models/a", ModelSource("models/a", ("chat",))),
        ("org/chat=/models/a=b", ModelSource("/models/a=b", ("org/chat",))),
    ],
)
def test_model_flag(text, expected):
    assert parse_model(text) == expected


def test_a_directory_may_have_an_equals_sign(tmp_path):
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert parse_model(str(folder)) == ModelSource(str(folder))


@pytest.mark.parametrize("text", ["=models/a", "name="])
def test_half_a_model_flag(text):
    with pytest.raises(ConfigurationError, match="must be MODEL or NAME=MODEL"):
        parse_model(text)


def test_names():
    one, other = ModelSource("one"), ModelSource("other", ("x",))
    assert with_names([one], ["a", "b", "a"]) == [ModelSource("one", ("a", "b"))]
    assert with_names([one, other], []) == [one, other]
    with pytest.raises(ConfigurationError, match="--served-model-name is for one model, not 2"):
        with_names([one, other], ["a"])


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running(FakeHub({"org/tiny": {"openvino_model.xml": b"<net/>"}})) as hub:
        yield hub


def finder(hub: FakeHub, root: Path, **config: Any) -> ModelFinder:
    return ModelFinder(Repository(root, endpoint=hub.url), RepositoryConfig(**config))


def test_a_directory(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find = finder(hub, tmp_path / "models")
    assert find.find(ModelSource(".")).names == (tmp_path.name,)
    source = ModelSource("./x", ("a", "b"), Settings.of(EngineConfig, max_num_seqs=3))
    assert not find.needs_network(source)
    found = find.find(source)
    assert found == ModelConfig(Path("x"), ("a", "b"), EngineConfig(max_num_seqs=3))
    assert found.name == "a"
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    local = ModelSource("org/tiny")
    assert not find.needs_network(local), "a directory comes before the hub"
    assert find.find(local) == ModelConfig(Path("org/tiny"), ("tiny",))
    assert hub.downloads == []


def test_a_model_of_the_hub(hub, tmp_path):
    find = finder(hub, tmp_path)
    source = ModelSource("org/tiny")
    assert find.needs_network(source)
    assert find.find(source) == ModelConfig(tmp_path / "org" / "tiny", ("org/tiny",))
    assert not find.needs_network(source)
    hub.status = 500
    assert find.find(replace(source, names=("a",))).names == ("a",)
    again = finder(hub, tmp_path, overwrite=True)
    assert again.needs_network(source)
    with pytest.raises(ConfigurationError, match="org/tiny is no directory here: cannot pull"):
        again.find(source)


def test_a_draft_model_of_the_hub(hub, tmp_path):
    find = finder(hub, tmp_path)
    source = ModelSource(
        str(tmp_path), settings=Settings.of(EngineConfig, draft_model=Path("org/tiny"))
    )
    assert find.needs_network(source)
    assert find.find(source).engine.draft_model == tmp_path / "org" / "tiny"
    assert not find.needs_network(source)


def test_where_one_may_not_even_look_is_the_operators_fault(tmp_path):
    find = ModelFinder(Repository(tmp_path), RepositoryConfig())
    too_long = "impossible" * 30
    with pytest.raises(ConfigurationError, match="cannot look for the model"):
        find.needs_network(ModelSource(too_long))
    settings = Settings.of(ModelFiles, generation_config=Path(too_long))
    with pytest.raises(ConfigurationError, match="cannot look for the model"):
        find.find(ModelSource(".", settings=settings))
