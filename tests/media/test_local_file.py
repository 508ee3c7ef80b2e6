"""Only regular files below the directory, whatever way leads to them."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from fastovms.errors import ConfigurationError, InvalidField
from fastovms.media.local_file import LocalFiles

NAME = "messages[0].content[0].image_url.url"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "media"
    (root / "sub dir").mkdir(parents=True)
    (root / "a.png").write_bytes(b"inside")
    (root / "sub dir" / "b.png").write_bytes(b"below")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "c.png").write_bytes(b"beside")
    return root


def read(root: Path | None, url: str, max_bytes: int = 100) -> bytes:
    return LocalFiles(root).read(url, NAME, max_bytes=max_bytes)


def test_files_below(root):
    assert read(root, f"{root}/a.png") == b"inside"
    assert read(root, f"{root}/sub dir/b.png") == b"below"
    assert read(root, f"file://{root}/sub%20dir/b.png") == b"below"
    assert read(root, f"file://localhost{root}/a.png") == b"inside"
    assert read(root, f"{root}//./a.png") == b"inside"
    (root / "inner.png").symlink_to(root / "sub dir" / "b.png")
    assert read(root, f"{root}/inner.png") == b"below"


def test_a_root_behind_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert read(tmp_path / "link", f"{tmp_path}/link/a.png") == b"inside"
    assert read(tmp_path / "link", f"{root}/a.png") == b"inside"


@pytest.mark.parametrize(
    "path",
    [
        "{outside}/secret.png",
        "{outside}/media-too/c.png",
        "{outside}/nothing-here.png",
        "{root}/nothing-here.png",
        "{root}",
        "{root}/sub dir",
        "{root}/a.png/b.png",
        "{root}/link.png",
        "{root}/linked/secret.png",
        "{root}/loop",
        "{root}/pipe",
        "{root}/device",
        "{root}/a.png\0",
        "{root}/" + "x" * 5000,
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
    ],
)
def test_everything_else_is_refused_in_the_same_words(root, tmp_path, path):
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "linked").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    (root / "device").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe")
    for url in (
        path.format(root=root, outside=tmp_path),
        "file://" + quote(path.format(root=root, outside=tmp_path)),
    ):
        with pytest.raises(InvalidField) as error:
            read(root, url)
        assert str(error.value) == f"{NAME}: there is no such file to be read"
        assert error.value.param == NAME


@pytest.mark.parametrize(
    "url",
    [
        "{root}/../secret.png",
        "{root}/sub dir/../a.png",
        "file://{root}/%2e%2e/secret.png",
        "file://{root}/..%2fsecret.png",
        "file://elsewhere{root}/a.png",
        "file:a.png",
        "file://",
    ],
)
def test_paths_that_are_none(root, url):
    with pytest.raises(InvalidField, match=r"must be the absolute path of a file, without \.\."):
        read(root, url.format(root=root))


def test_hard_links(root, tmp_path):
    """Whose name outside the directory is as good as the one inside."""
    (root / "linked.png").hardlink_to(tmp_path / "secret.png")
    with pytest.raises(InvalidField, match="a file with several hard links is not read") as error:
        read(root, f"{root}/linked.png")
    assert error.value.param == NAME
    (tmp_path / "secret.png").unlink()
    assert read(root, f"{root}/linked.png") == b"secret"


def test_not_allowed(root):
    with pytest.raises(InvalidField, match="this server reads no local files"):
        read(None, f"{root}/a.png")


def test_too_large(root):
    assert read(root, f"{root}/a.png", 6) == b"inside"
    with pytest.raises(InvalidField, match="at most 5 bytes"):
        read(root, f"{root}/a.png", 5)


def test_a_path_that_changes_while_it_is_opened(root, tmp_path, monkeypatch):
    real_open = os.open

    def swap_and_open(path, *arguments):
        (root / "a.png").unlink()
        (root / "a.png").symlink_to(tmp_path / "secret.png")
        return real_open(path, *arguments)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(InvalidField, match="there is no such file"):
        read(root, f"{root}/a.png")


def test_a_root_that_is_none(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere is not a directory"):
        LocalFiles(tmp_path / "nowhere")
