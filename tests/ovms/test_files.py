"""Files of configurations: how they name paths, and that each is an old one or a new one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.ovms.files import path_from, read_json, write_file


@pytest.mark.parametrize(
    ("folder", "path", "expected"),
    [
        ("lists", "models/m", "../models/m"),
        (".", "models/m", "models/m"),
        ("lists", "/abs/m", "/abs/m"),
    ],
)
def test_paths(folder, path, expected, tmp_path, monkeypatch) -> None:
    (tmp_path / "lists").mkdir()
    monkeypatch.chdir(tmp_path)
    assert path_from(tmp_path / folder, Path(path)) == expected


def test_a_folder_that_is_a_link(tmp_path, monkeypatch) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    monkeypatch.chdir(tmp_path)
    found = path_from(tmp_path / "link", Path("m"))
    assert os.path.realpath(tmp_path / "link" / found) == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*No such file"),
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_what_cannot_be_read(content, message, tmp_path) -> None:
    path = tmp_path / "f.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_json(path)


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch) -> None:
    path = tmp_path / "f"
    write_file(path, "old")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_file(path, "\ud800")
    assert path.read_text() == "old"
    with monkeypatch.context() as full:
        full.setattr(os, "replace", fail)
        with pytest.raises(ConfigurationError, match="No space left"):
            write_file(path, "new")
    assert path.read_text() == "old"
    write_file(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é"
    with pytest.raises(ConfigurationError, match=r"cannot write .*No such file"):
        write_file(tmp_path / "none" / "f", "")


def test_links_and_permissions_stay(tmp_path) -> None:
    real = tmp_path / "real" / "f"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    owner = (0, 4242) if os.getuid() == 0 else (real.stat().st_uid, real.stat().st_gid)
    os.chown(real, *owner)
    link = tmp_path / "f"
    link.symlink_to(Path("real", "f"))
    write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    status = real.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, *owner)
    assert os.listdir(tmp_path / "real") == ["f"]


def test_a_file_of_somebody_else_is_written_all_the_same(tmp_path, monkeypatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o600)
    is_asked: list[object] = []
    old = path.stat()
    other = os.stat_result((*old[:4], old.st_uid + 1, *old[5:]))
    monkeypatch.setattr(os, "chown", lambda *given: is_asked.append(given) or forbid())
    real_stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda p, **k: other if p == path else real_stat(p, **k))
    write_file(path, "new")
    assert is_asked
    monkeypatch.undo()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
