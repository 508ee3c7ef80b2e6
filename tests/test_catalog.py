"""Tests of `fastovms/app/catalog.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastovms.app.catalog import ModelFinder, parse_model, with_names
from fastovms.backends.model_files import fingerprint_of
from fastovms.config import OWN_HEAD, EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.parts.hub import PulledRevision, forget_pulled, note_pulled, read_pulled
from fastovms.server_config import ModelConfig, ModelFiles, ModelSource, RepositoryConfig, Settings
from tests.fake_hub import FakeHub, running

# What is kept of a pull.


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("v1", True),
        (COMMIT, True),
        (COMMIT[:7], True),
        (COMMIT[:6], False),
        (COMMIT[::-1], False),
        ("v2", False),
        ("main", False),
    ],
)
def test_revision_is_named_by_tag_or_commit(revision: str, expected: bool) -> None:
    assert PulledRevision("v1", COMMIT).is_named(revision) is expected
    assert PulledRevision("v1", "").is_named(revision) is (revision == "v1")


@pytest.mark.parametrize("name", ["m", "q4.gguf"])
def test_note_of_a_revision_is_deleted_with_its_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    forget_pulled(path)
    path.write_text("x") if "." in name else path.mkdir()
    forget_pulled(path)
    assert read_pulled(path) is None
    pulled = PulledRevision("v1", COMMIT)
    note_pulled(path, pulled)
    assert read_pulled(path) == pulled
    assert read_pulled(tmp_path / "other") is None
    forget_pulled(path)
    assert read_pulled(path) is None
    assert os.listdir(tmp_path) == [name]


def test_note_of_a_revision_leaves_the_fingerprint_unchanged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint_of(tmp_path)
    note_pulled(tmp_path, PulledRevision("v1", COMMIT))
    assert fingerprint_of(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"revision": 5, "commit": ""}', "{}"])
def test_unreadable_note_of_a_revision_is_ignored(text: str, tmp_path: Path) -> None:
    note_pulled(tmp_path, PulledRevision("v1", ""))
    [note] = tmp_path.iterdir()
    note.write_text(text)
    assert read_pulled(tmp_path) is None


@pytest.mark.parametrize(("commit", "expected"), [(COMMIT, f"v1 (commit {COMMIT})"), ("", "v1")])
def test_pulled_revision_is_written_with_its_commit(commit: str, expected: str) -> None:
    assert str(PulledRevision("v1", commit)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/a", ModelSource("models/a")),
        ("chat=models/a", ModelSource("models/a", ("chat",))),
        ("org/chat=/models/a=b", ModelSource("/models/a=b", ("org/chat",))),
    ],
)
def test_model_flag_is_a_location_with_an_optional_name(text, expected):
    assert parse_model(text) == expected


def test_a_directory_may_have_an_equals_sign(tmp_path):
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert parse_model(str(folder)) == ModelSource(str(folder))


@pytest.mark.parametrize("text", ["=models/a", "name="])
def test_model_flag_without_name_or_location_is_refused(text):
    with pytest.raises(ConfigurationError, match="must be MODEL or NAME=MODEL"):
        parse_model(text)


def test_served_names_are_for_one_model_only():
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
    return ModelFinder(root, RepositoryConfig(**config), endpoint=hub.url)


def test_local_directory_is_found_before_the_hub(hub, tmp_path, monkeypatch):
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


def test_model_of_the_hub_is_pulled_once(hub, tmp_path):
    find = finder(hub, tmp_path)
    source = ModelSource("org/tiny")
    assert find.needs_network(source)
    assert find.find(source) == ModelConfig(tmp_path / "org" / "tiny", ("org/tiny",))
    assert not find.needs_network(source)
    hub.status = 500
    assert find.find(replace(source, names=("a",))).names == ("a",)
    again = finder(hub, tmp_path, overwrite=True)
    assert again.needs_network(source)
    with pytest.raises(
        ConfigurationError,
        match="org/tiny is not a file or directory, and cannot be downloaded: cannot download",
    ):
        again.find(source)


def test_draft_model_of_the_hub_is_pulled(hub, tmp_path):
    find = finder(hub, tmp_path)
    source = ModelSource(
        str(tmp_path), settings=Settings.of(EngineConfig, draft_model=Path("org/tiny"))
    )
    assert find.needs_network(source)
    assert find.find(source).engine.draft_model == tmp_path / "org" / "tiny"
    assert not find.needs_network(source)


def test_own_head_is_in_the_directory_of_the_model(tmp_path):
    find = ModelFinder(tmp_path, RepositoryConfig())
    source = ModelSource(str(tmp_path), settings=Settings.of(EngineConfig, draft_model=OWN_HEAD))
    assert not find.needs_network(source)
    with pytest.raises(ConfigurationError, match=r"has no MTP head, which --draft-model \. takes"):
        find.find(source)
    (tmp_path / "openvino_mtp_model.xml").touch()
    assert find.find(source).engine.draft_model == tmp_path


def test_location_that_cannot_be_read_is_a_configuration_error(tmp_path):
    find = ModelFinder(tmp_path, RepositoryConfig())
    too_long = "impossible" * 30
    with pytest.raises(ConfigurationError, match="cannot read the model's directory"):
        find.needs_network(ModelSource(too_long))
    settings = Settings.of(ModelFiles, generation_config=Path(too_long))
    with pytest.raises(ConfigurationError, match="cannot read the model's directory"):
        find.find(ModelSource(".", settings=settings))


@pytest.mark.parametrize(
    ("location", "is_missing"),
    [
        ("org/tiny", True),
        ("org/tiny/a.gguf", True),
        ("w/nope.gguf", False),
        ("w/openvino_model.xml", False),
        ("./org/tiny", False),
        ("/org/tiny", False),
        ("~/org", False),
        ("a/b/c/d", False),
        ("here/models/nope.gguf", False),
    ],
)
def test_paths_of_this_machine_are_not_asked_of_a_hub(location, is_missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here/models").mkdir(parents=True)
    finder = ModelFinder(tmp_path / "stored", RepositoryConfig())
    assert finder.needs_network(ModelSource(location)) is is_missing


def test_further_file_of_a_pulled_model_is_asked_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/tiny").mkdir(parents=True)
    finder = ModelFinder(tmp_path, RepositoryConfig())
    assert finder.needs_network(ModelSource("org/tiny/b.gguf"))


def test_tilde_in_a_location_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    finder = ModelFinder(tmp_path, RepositoryConfig())
    assert finder.find(ModelSource("~/a.gguf")).path == tmp_path / "a.gguf"
