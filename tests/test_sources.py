from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config import EngineConfig, ModelConfig
from fastovms.errors import ConfigurationError
from fastovms.sources import ModelSource, find_model, parse_model, with_names


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
    with pytest.raises(ConfigurationError, match="must be DIR or NAME=DIR"):
        parse_model(text)


def test_names():
    one, other = ModelSource("one"), ModelSource("other", ("x",))
    assert with_names([one], ["a", "b", "a"]) == [ModelSource("one", ("a", "b"))]
    assert with_names([one, other], []) == [one, other]
    with pytest.raises(ConfigurationError, match="--served-model-name is for one model, not 2"):
        with_names([one, other], ["a"])


def test_a_model_has_its_directorys_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model(ModelSource(".")).names == (tmp_path.name,)
    found = find_model(ModelSource("x", ("a", "b"), {"max_num_seqs": 3}))
    assert found == ModelConfig(Path("x"), ("a", "b"), EngineConfig(max_num_seqs=3))
    assert found.name == "a"
