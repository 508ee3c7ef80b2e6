"""Tests of `fastovms/system/disk.py`."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastovms.app.catalog import model_root
from fastovms.engine.jit import kernel_cache
from fastovms.system.disk import (
    DiskCache,
    cache_root,
    check_file,
    check_tree,
    file_identity,
    key_of,
    lock_file,
    open_file,
    private_directory,
    read_file,
    state_directory,
    user_directory,
)

# Where caches and state lie by default, for users of a shell and of systemd alike.


def homeless(_: int) -> pwd.struct_passwd:
    raise KeyError


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"HOME": "/h"}, "/h/.cache/fastovms", "/h/.local/state/fastovms"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"},
         "/c/fastovms", "/s/fastovms"),
        ({"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/fastovms", "/s/fastovms"),
        # Relative paths are ignored, whoever asks.
        ({"HOME": "/h", "XDG_CACHE_HOME": "c", "XDG_STATE_HOME": "~/s"},
         "/h/.cache/fastovms", "/h/.local/state/fastovms"),
        ({"HOME": "h"}, None, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_user_directories_follow_the_xdg_specification(monkeypatch, environ, cache, state):
    monkeypatch.setattr(pwd, "getpwuid", homeless)
    assert user_directory("cache", environ) == (Path(cache) if cache else None)
    assert user_directory("state", environ) == (Path(state) if state else None)
    assert cache_root(None, environ) == (Path(cache, "derived") if cache else None)
    assert kernel_cache(environ) == (f"{cache}/kernels" if cache else "")
    assert model_root(None, environ) == Path(cache or "/nonexistent", "models")
    assert state_directory(environ) == Path(state or "/nonexistent/fastovms")


def test_a_service_without_home_has_that_of_its_user():
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_directory("cache", {}) == home / ".cache" / "fastovms"
    assert user_directory("state", {}) == home / ".local" / "state" / "fastovms"


@pytest.mark.parametrize(("mode", "expected"), [(0o777, 0o775), (0o1777, 0o1777), (0o700, 0o700)])
def test_world_writable_directory_is_made_private(tmp_path, mode, expected) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(mode)
    private_directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == expected
    private_directory(tmp_path / "new" / "one")
    assert stat.S_IMODE((tmp_path / "new" / "one").stat().st_mode) == 0o700


def test_directories_of_other_users_are_not_trusted(tmp_path, monkeypatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:  # root's directories are trusted
        os.chown(tmp_path, 4711, -1)
    with pytest.raises(PermissionError, match="owned by user"):
        private_directory(tmp_path)
    assert DiskCache(tmp_path).find("a", "b") is None


_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def plant(path: Path, kind: str, target: Path) -> None:
    """Puts something at a path that a stranger could put there in place of a file."""
    match kind:
        case "link":
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(target.with_name("missing"))
        case "hard link":
            path.hardlink_to(target)
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("link", "symbolic link"),
        ("dangling link", "symbolic link"),
        ("pipe", "not a regular file"),
        ("directory", "not a regular file"),
        ("socket", "not a regular file"),
    ],
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, _APPEND, os.O_WRONLY])
def test_entry_that_is_no_file_is_never_opened(
    tmp_path, kind: str, message: str, flags: int
) -> None:
    target = tmp_path / "target"
    target.write_text("of somebody else")
    path = tmp_path / "file"
    plant(path, kind, target)
    for attempt in (lambda: open_file(path, flags), lambda: check_file(path)):
        with pytest.raises(OSError, match=message):
            attempt()
    if kind != "directory":
        with pytest.raises(OSError, match=message):
            check_tree(tmp_path)
    assert target.read_text() == "of somebody else"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "socket"])
def test_rewritten_file_replaces_a_link(tmp_path, kind: str) -> None:
    target = tmp_path / "target"
    target.write_text("of somebody else")
    plant(tmp_path / "file", kind, target)
    with open(open_file(tmp_path / "file", _WRITE), "w") as file:
        file.write("mine")
    assert target.read_text() == "of somebody else"
    assert read_file(tmp_path / "file") == b"mine"
    check_tree(tmp_path)


def test_files_of_strangers_are_not_trusted(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    found = os.stat(path)
    stranger = os.stat_result((*found[:4], found.st_uid + 4711, *found[5:]))
    monkeypatch.setattr("os.fstat", lambda descriptor: stranger)
    with pytest.raises(PermissionError, match="owned by user"):
        open_file(path, os.O_RDONLY)
    os.close(open_file(path, os.O_RDONLY, any_owner=True))


def test_only_the_operator_may_name_a_link_to_a_directory(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    private_directory(tmp_path / "link", may_be_link=True)
    with pytest.raises(OSError, match="symbolic link"):
        private_directory(tmp_path / "link")
    if os.geteuid() == 0:  # one that a stranger has made is not the operator's
        os.chown(tmp_path / "link", 4711, -1, follow_symlinks=False)
        with pytest.raises(OSError, match="symbolic link"):
            private_directory(tmp_path / "link", may_be_link=True)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_entry_that_was_changed_is_not_used(cache, tmp_path, caplog, kind: str) -> None:
    entry = cache.put("gguf", KEYS[0], write("1"))
    assert cache.find("gguf", KEYS[0]) == entry
    plant(entry / "other", kind, entry / "file")
    assert cache.find("gguf", KEYS[0]) is None
    assert "is not used" in caplog.text
    (tmp_path / "a/cache" / f"gguf-{KEYS[1]}").symlink_to(entry)
    assert cache.find("gguf", KEYS[1]) is None


def test_locked_file_is_refused_until_it_is_released(tmp_path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path)
    with pytest.raises(BlockingIOError, match="another process uses it"):
        lock_file(path)
    os.close(held)
    os.close(lock_file(path))
    with pytest.raises(FileNotFoundError):
        lock_file(tmp_path / "none" / "lock")


KEYS = [key_of(i) for i in range(6)]


def write(text: str) -> object:
    def fill(directory: Path) -> None:
        (directory / "file").write_text(text)

    return fill


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "a" / "cache")


def test_an_entry_is_found_again(cache):
    assert cache.find("model", KEYS[0]) is None
    entry = cache.put("model", KEYS[0], write("first"))
    assert cache.find("model", KEYS[0]) == entry
    assert (entry / "file").read_text() == "first"
    assert cache.find("table", KEYS[0]) is None
    assert [path.name for path in entry.parent.iterdir()] == [f"model-{KEYS[0]}"]


def test_an_entry_that_another_process_has_made_meanwhile_stays(cache):
    def fill(directory: Path) -> None:
        cache.put("model", KEYS[0], write("theirs"))
        write("ours")(directory)

    entry = cache.put("model", KEYS[0], fill)
    assert (entry / "file").read_text() == "theirs"
    assert len(list(entry.parent.iterdir())) == 1


def test_an_entry_is_made_once_by_threads_that_take_turns(cache):
    made = []

    def make(_: int) -> None:
        with cache.exclusive("model", KEYS[0]):
            if cache.find("model", KEYS[0]) is None:
                cache.put("model", KEYS[0], made.append)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(32)))
    assert len(made) == 1


@pytest.mark.parametrize("root", [None, "a file"])
def test_exclusive_without_a_usable_directory_does_not_wait(tmp_path, root):
    if root is not None:
        (tmp_path / root).touch()
    with DiskCache(None if root is None else tmp_path / root / "cache").exclusive("kind", "0"):
        pass


def test_failed_put_leaves_no_files(cache, tmp_path):
    def fill(directory: Path) -> None:
        write("half")(directory)
        raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        cache.put("model", KEYS[0], fill)
    assert cache.find("model", KEYS[0]) is None
    assert not list((tmp_path / "a" / "cache").iterdir())


def test_broken_entry_is_replaced(cache, caplog):
    entry = cache.put("model", KEYS[0], write("broken"))
    cache.discard(entry)
    assert cache.find("model", KEYS[0]) is None
    assert "is corrupt" in caplog.text
    assert (cache.put("model", KEYS[0], write("sound")) / "file").read_text() == "sound"


@pytest.mark.parametrize("name", [None, "a file in its place", "impossible" * 30])
def test_cache_in_an_impossible_directory_stores_no_entries(name, tmp_path):
    (tmp_path / "a file in its place").write_text("")
    cache = DiskCache(None if name is None else tmp_path / name)
    assert cache.put("model", KEYS[0], write("lost")) is None
    assert cache.find("model", KEYS[0]) is None


def test_least_recently_used_entry_is_deleted_first(tmp_path):
    cache = DiskCache(tmp_path, max_size=35)
    for age, key in enumerate(KEYS[:3]):
        entry = cache.put("model", key, write("x" * 10))
        os.utime(entry, (1000 + age, 1000 + age))
    cache.find("model", KEYS[0])
    cache.put("model", KEYS[3], write("x" * 10))
    left = [key for key in KEYS if cache.find("model", key)]
    assert left == [KEYS[0], KEYS[2], KEYS[3]]
    cache.put("model", KEYS[4], write("x" * 1000))
    assert [key for key in KEYS if cache.find("model", key)] == [KEYS[4]], "the newest one stays"


def test_cleaning_removes_entries_of_the_cache_only(tmp_path):
    cache = DiskCache(tmp_path, max_size=0)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights").write_text("x" * 1000)
    (tmp_path / "notes").write_text("x")
    abandoned, fresh = tmp_path / ".unfinished-a", tmp_path / ".unfinished-b"
    for directory in (abandoned, fresh):
        directory.mkdir()
    os.utime(abandoned, (1000, 1000))
    cache.put("model", KEYS[0], write("x"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"models", "notes", ".unfinished-b", f"model-{KEYS[0]}"}


def test_the_identity_of_a_file_changes_with_it(tmp_path):
    file = tmp_path / "file"
    missing = file_identity([file])
    file.write_text("a")
    first = file_identity([file])
    assert first == file_identity([tmp_path / "." / "file"])
    file.write_text("bc")
    changed = file_identity([file])
    os.utime(file, (1000, 1000))
    touched = file_identity([file])
    keys = {key_of(identity) for identity in (missing, first, changed, touched)}
    assert len(keys) == 4
