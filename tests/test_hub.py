"""Models pulled from a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastovms.app.catalog import is_model_id, model_root
from fastovms.errors import ConfigurationError
from fastovms.parts.hub import Repository
from tests.fake_hub import COMMIT, FakeHub, files_of, model_files_of, running

TINY = {"openvino_model.xml": b"<net/>", "openvino_model.bin": b"x" * 100, "more/notes.txt": b"hi"}

GGUF = {"q4.gguf": b"4444", "more/q8.gguf": b"88888888", "README.md": b"x"}
PARTS = {f"f16/m-0000{n}-of-00003.gguf": str(n).encode() for n in (1, 2, 3)}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    models = {
        "org/tiny": TINY,
        "org/torch": {"model.safetensors": b"x"},
        "org/gguf": GGUF,
        "org/parts": PARTS,
    }
    with running(FakeHub(models)) as hub:
        yield hub


@pytest.fixture
def repository(hub: FakeHub, tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models", endpoint=hub.url)


def refused(repository: Repository, model_id: str, **options: object) -> str:
    with pytest.raises(ConfigurationError, match=f"^cannot download {model_id}: ") as caught:
        repository.pull(model_id, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", True),
        ("OpenVINO/Qwen3-0.6B-int8-ov", True),
        ("org/name/q4.gguf", True),
        ("org/name/sub/q4.gguf", True),
        ("org/name/../q4.gguf", False),
        ("name", False),
        ("a/b/c", False),
        ("./name", False),
        ("/org/name", False),
        ("org/..", False),
        ("org/", False),
        ("org/na me", False),
    ],
)
def test_model_id_has_an_organization_and_a_name(text, expected):
    assert is_model_id(text) is expected


def test_model_root_is_the_flag_or_the_cache_directory(monkeypatch):
    monkeypatch.delenv("HOME")
    environ = {"XDG_CACHE_HOME": "/var/cache/x"}
    assert model_root(None, environ) == Path("/var/cache/x/fastovms/models")
    assert model_root(None, {}) == Path("~/.cache/fastovms/models").expanduser()
    assert model_root(Path("models"), environ) == Path("models")


def test_a_model_is_pulled_once(hub, repository):
    assert not (repository.root / "org/tiny").exists()
    path = repository.pull("org/tiny")
    assert path == repository.root / "org" / "tiny"
    assert model_files_of(repository.root) == {f"org/tiny/{name}": TINY[name] for name in TINY}
    hub.status = 500
    assert repository.pull("org/tiny") == path, "what is there needs no network"
    assert sorted(hub.downloads) == sorted(TINY)


def test_a_pull_that_was_cut_short_goes_on(hub, repository):
    hub.broken = "openvino_model.bin"
    assert "answered 500" in refused(repository, "org/tiny")
    assert not (repository.root / "org/tiny").exists()
    assert hub.broken in hub.downloads
    hub.broken = None
    finished = set(hub.downloads) & {
        path.rpartition("partial/")[2] for path in files_of(repository.root)
    }
    hub.downloads.clear()
    repository.pull("org/tiny")
    assert set(hub.downloads) == set(TINY) - finished
    assert model_files_of(repository.root / "org" / "tiny") == TINY


def test_a_model_is_pulled_again_on_demand(hub, repository):
    repository.pull("org/tiny")
    hub.models = {"org/tiny": {**TINY, "openvino_model.bin": b"new"}}
    assert "has no revision none" in refused(
        repository, "org/tiny", revision="none", overwrite=True
    )
    assert (repository.root / "org/tiny").exists(), "a pull that fails takes nothing away"
    repository.pull("org/tiny", revision="main", overwrite=True)
    assert files_of(repository.root / "org" / "tiny")["openvino_model.bin"] == b"new"


@pytest.mark.parametrize("model_id", ["org/tiny", "org/gguf/q4.gguf"])
def test_pulled_revision_is_used_and_another_refused(hub, repository, caplog, model_id):
    path = repository.pull(model_id, revision="v1")
    for same in (None, "v1", COMMIT, COMMIT[:8]):
        assert repository.pull(model_id, revision=same) == path
    assert refused(repository, model_id, revision="main").endswith(
        f"{path} is revision v1 (commit {COMMIT}), not main: --overwrite-models replaces it"
    )
    repository.pull(model_id, revision="main", overwrite=True)
    repository.pull(model_id, revision="main")
    assert "not v1" in refused(repository, model_id, revision="v1")
    repository.pull(model_id, overwrite=True)
    assert repository.pull(model_id, revision="main") == path, "what none was named for"
    assert not caplog.records


def test_model_of_unknown_revision_is_used_with_a_warning(repository, caplog):
    path = repository.root / "org" / "tiny"
    path.mkdir(parents=True)
    assert repository.pull("org/tiny") == path
    assert not caplog.records
    assert repository.pull("org/tiny", revision="v2") == path
    [record] = caplog.records
    assert record.getMessage() == (
        f"cannot find out whether the stored {path} is revision v2; --overwrite-models downloads "
        "that revision"
    )


@pytest.mark.parametrize(
    "name", ["openvino_encoder_model.xml", "unet/openvino_model.xml", "openvino_language_model.xml"]
)
def test_models_of_several_graphs_are_pulled(name: str, tmp_path: Path) -> None:
    with running(FakeHub({"org/several": {name: b"<net/>"}})) as hub:
        path = Repository(tmp_path, endpoint=hub.url).pull("org/several")
        assert (path / name).is_file()


def test_pull_of_an_unusable_repository_is_refused(hub, repository):
    assert f"{hub.url} has no such model, or it is private" in refused(repository, "org/other")
    assert "it is not in OpenVINO's format" in refused(repository, "org/torch")
    hub.status = 503
    assert refused(repository, "org/tiny").endswith("answered 503")
    assert not repository.root.exists()


def test_pull_of_a_file_downloads_that_file_only(hub, repository):
    assert not (repository.root / "org/gguf/q4.gguf").exists()
    path = repository.pull("org/gguf/q4.gguf")
    assert path == repository.root / "org/gguf/q4.gguf"
    assert repository.pull("org/gguf/more/q8.gguf").read_bytes() == b"88888888"
    assert hub.downloads == ["q4.gguf", "more/q8.gguf"]
    assert set(model_files_of(repository.root)) == {"org/gguf/q4.gguf", "org/gguf/more/q8.gguf"}
    assert "are: q4.gguf, more/q8.gguf" in refused(repository, "org/gguf/q5.gguf")
    (repository.root / "org" / "gguf").rename(repository.root / "moved")
    assert "name one of q4.gguf, more/q8.gguf behind it" in refused(repository, "org/gguf")


def test_pull_of_a_part_downloads_all_parts(hub, repository):
    path = repository.pull("org/parts/f16/m-00002-of-00003.gguf")
    assert model_files_of(repository.root / "org/parts") == PARTS
    assert path.read_bytes() == b"2"
    assert repository.pull("org/parts/f16/m-00001-of-00003.gguf").read_bytes() == b"1"
    assert sorted(hub.downloads) == sorted(PARTS)
    missing = refused(repository, "org/gguf/q4-00001-of-00002.gguf")
    assert "no file q4-00001-of-00002.gguf; its GGUF files are: q4.gguf" in missing


def test_private_model_needs_a_token(hub, repository, monkeypatch):
    hub.token = "secret"
    assert "set HF_TOKEN" in refused(repository, "org/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert repository.pull("org/tiny").is_dir()


def test_unreachable_hub_is_refused_by_its_address(tmp_path):
    nowhere = Repository(tmp_path, endpoint="http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached: " in refused(nowhere, "org/tiny")


def test_pull_without_a_writable_directory_is_refused(hub, tmp_path):
    (tmp_path / "org").write_text("a file")
    assert "org" in refused(Repository(tmp_path, endpoint=hub.url), "org/tiny")
