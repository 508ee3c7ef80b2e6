"""Directories, locks and the cache on disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

logger = logging.getLogger(__name__)

NOWHERE: Final = Path("/nonexistent")
"""The home of users who have none, as Debian's policy has it (9.2.3)."""

_BELOW_HOME: Final = {"cache": ".cache", "state": ".local/state"}


def user_directory(kind: Literal["cache", "state"], environ: Mapping[str, str]) -> Path | None:
    """Returns this program's directory below XDG_CACHE_HOME or XDG_STATE_HOME, by default below
    ~/.cache or ~/.local/state (XDG Base Directory Specification). Returns None if the user has no
    home.

    A relative path in one of the variables is ignored, as the specification requires, because it
    would depend on the working directory.
    """
    base = environ.get(f"XDG_{kind.upper()}_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            home = _home_in_passwords()
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, _BELOW_HOME[kind])
    return Path(base, "fastovms")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Returns systemd's state directory from the environment, or the user's state directory (XDG
    Base Directory Specification)."""
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    return user_directory("state", environ) or NOWHERE / "fastovms"


def _home_in_passwords() -> str:
    """Returns the user's home directory from the password database, for services without HOME; ""
    if the user is not in the database, as in containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def nearest_existing(path: Path) -> Path:
    """Returns the path itself, or its nearest parent that exists."""
    return next((place for place in (path, *path.parents) if os.path.exists(place)), Path("/"))


def private_directory(path: Path, *, may_be_link: bool = False) -> None:
    """Creates a directory for trusted data, or checks an existing one. If all users can write to
    it, as to a Kubernetes `emptyDir`, removes that permission; logs a warning if that fails. Raises
    OSError if the directory cannot be created, is a symbolic link, or belongs to a user other than
    this one or root. `may_be_link` allows a link that belongs to this user or root.

    Other users may have put links, pipes or files into a directory that they own or could change
    earlier. As in ssh, files below state and cache directories are therefore never opened through
    links, and files of other users are refused.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.lstat()
    user = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        if not may_be_link or found.st_uid not in (user, 0):
            raise OSError(errno.ELOOP, _LINK, str(path))
        found = path.stat()
    if found.st_uid not in (user, 0):
        if user != 0:
            raise PermissionError(errno.EPERM, f"it is owned by user {found.st_uid}", str(path))
        logger.warning("%s is owned by user %d, who can change it", path, found.st_uid)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        try:
            path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
        except OSError:
            logger.warning("every user of this machine can change %s", path)


_LINK: Final = "it is a symbolic link, which is not followed"


def open_file(path: Path, flags: int, *, any_owner: bool = False) -> int:
    """Opens a file in a state or cache directory, and returns the descriptor. Never blocks, and
    never follows a link. With `O_TRUNC`, deletes an existing file of this name first, so that no
    other file is overwritten through a link. Raises OSError if the file cannot be opened, is not a
    regular file, or its owner is not this user, root or the owner of its directory. `any_owner`
    allows any owner."""
    if flags & os.O_TRUNC:
        with suppress(FileNotFoundError):
            os.unlink(path)
        flags |= os.O_EXCL
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | safe, 0o600)
    except OSError:
        check_file(path)  # raises a clearer error for a link or a pipe
        raise
    try:
        _check_file(path, os.fstat(descriptor), any_owner=any_owner)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    """Returns the content of a file; opens it with `open_file`."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def check_file(path: Path) -> None:
    """Raises OSError like `open_file`, for a file that a library will open. A missing file is
    accepted."""
    with suppress(FileNotFoundError):
        _check_file(path, os.lstat(path))


def _check_file(path: Path, found: os.stat_result, *, any_owner: bool = False) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, _LINK, str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    trusted = (os.geteuid(), 0, os.stat(path.parent).st_uid)
    if not any_owner and found.st_uid not in trusted:
        raise PermissionError(errno.EPERM, f"it is owned by user {found.st_uid}", str(path))


def check_tree(directory: Path) -> None:
    """Raises OSError like `check_file`, for all files below a directory."""

    def fail(error: OSError) -> None:
        raise error

    for folder, names, files in os.walk(directory, onerror=fail):
        for name in names:
            if os.path.islink(os.path.join(folder, name)):
                raise OSError(errno.ELOOP, _LINK, os.path.join(folder, name))
        for name in files:
            check_file(Path(folder, name))


def lock_file(path: Path) -> int:
    """Locks a file, and creates it if it is missing. Returns the descriptor, which holds the lock
    until it is closed or the process ends. Raises BlockingIOError if another process holds the
    lock, and OSError if the file cannot be opened."""
    lock = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise BlockingIOError(error.errno, "another process uses it") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


MAX_SIZE: Final = 20 * 1024**3
"""The maximum size of the cache in bytes; the least recently used entries are evicted."""

_UNFINISHED: Final = ".unfinished-"
_ENTRY_NAME: Final = re.compile(r"[a-z]+-[0-9a-f]{32}")
_ABANDONED_AFTER: Final = 3600.0
"""Seconds after which an entry that is still incomplete is regarded as abandoned."""


def cache_root(directory: str | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the cache directory: `directory`, or by default the user's (XDG Base Directory
    Specification). Returns None, for no cache, if `directory` is "" or the user has no home."""
    if directory is not None:
        return Path(directory) if directory else None
    user_cache = user_directory("cache", environ)
    return None if user_cache is None else user_cache / "derived"


def key_of(*parts: object) -> str:
    """Returns a hash of the parts, which must be JSON values."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_identity(paths: Iterable[Path]) -> list[object]:
    """Returns the paths, sizes and modification times of files, for cache keys: faster to get than
    a content hash. Missing files are included as such."""
    identity: list[object] = []
    for path in paths:
        try:
            status = path.stat()
            identity.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
        except OSError:
            identity.append([str(path), None])
    return identity


class DiskCache:
    """A directory of cached results that is safe between processes and threads. Without a root,
    always empty.

    An entry is a directory. It is written under a temporary name and then renamed, so readers only
    see complete entries; an entry never changes. Entries may vanish at any time, and writing may
    fail.
    """

    def __init__(self, root: Path | None, *, max_size: int = MAX_SIZE) -> None:
        try:
            if root is not None and root.is_dir():
                private_directory(root, may_be_link=True)
        except OSError as error:
            logger.warning("cache: not used: %s", error)
            root = None
        self._root = root
        self._max_size = max_size

    @property
    def is_kept(self) -> bool:
        """Whether there is a directory to store entries in."""
        return self._root is not None

    def find(self, kind: str, key: str) -> Path | None:
        """Returns an entry's directory and updates its time of last use; None = not cached."""
        if self._root is None:
            return None
        entry = self._root / f"{kind}-{key}"
        if os.path.islink(entry) or not os.path.isdir(
            entry
        ):  # False without permission, where Path.is_dir raises
            return None
        try:
            check_tree(entry)
        except OSError as error:
            logger.warning("cache: entry %s is not used: %s", entry, error)
            return None
        with suppress(OSError):  # the cache of another user may be read-only
            os.utime(entry)
        return entry

    def put(
        self, kind: str, key: str, fill: Callable[[Path], None], *, replace: bool = False
    ) -> Path | None:
        """Creates an entry by calling `fill` with an empty directory. Returns the entry's
        directory, or None if an OSError occurred; other errors of `fill` are raised. An existing
        entry is kept, unless `replace` is true."""
        if self._root is None:
            return None
        entry = self._root / f"{kind}-{key}"
        unfinished: Path | None = None
        try:
            private_directory(self._root, may_be_link=True)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
            fill(unfinished)
            if replace:
                shutil.rmtree(entry, ignore_errors=True)
            _rename(unfinished, entry)
        except OSError as error:
            logger.info("cache: cannot store anything in %s: %s", self._root, error)
            return None
        finally:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)
        self._evict(entry)
        return entry

    @contextmanager
    def exclusive(self, kind: str, key: str) -> Iterator[None]:
        """Holds a lock on an entry's key across all threads and processes, for creating it. Callers
        that had to wait should call `find` again. If the lock file cannot be created, there is no
        lock."""
        if self._root is None:
            yield
            return
        path = self._root / f"{_UNFINISHED}{kind}-{key}"
        with ExitStack() as held:
            try:
                private_directory(self._root, may_be_link=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                file = held.enter_context(open(open_file(path, flags), "ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                held.callback(path.unlink, missing_ok=True)
            except OSError as error:
                logger.debug("cache: cannot lock %s: %s", path, error)
            yield

    def discard(self, entry: Path) -> None:
        """Deletes a corrupt entry."""
        logger.warning("cache: entry %s is corrupt and is deleted", entry)
        shutil.rmtree(entry, ignore_errors=True)

    def _evict(self, kept: Path) -> None:
        assert self._root is not None
        used: list[tuple[float, int, Path]] = []
        try:
            entries = list(filter(_is_ours, self._root.iterdir()))
        except OSError:  # a directory may be writable but not readable
            return
        for entry in entries:
            try:
                modified = entry.stat().st_mtime
                size = sum(
                    file.stat().st_size for file in entry.rglob("*") if not file.is_symlink()
                )
            except OSError:  # another process has created it first
                continue
            if not entry.name.startswith(_UNFINISHED):
                used.append((float("inf") if entry == kept else modified, size, entry))
            elif modified < time.time() - _ABANDONED_AFTER:
                shutil.rmtree(entry, ignore_errors=True)
        total = sum(size for _, size, _ in used)
        for _, size, entry in sorted(used):
            if total <= self._max_size or entry == kept:
                break
            logger.info("cache: full, deleting %s", entry.name)
            shutil.rmtree(entry, ignore_errors=True)
            total -= size


def _is_ours(entry: Path) -> bool:
    """Returns whether a name is that of a cache entry. Other files in the directory must not be
    deleted."""
    return entry.name.startswith(_UNFINISHED) or _ENTRY_NAME.fullmatch(entry.name) is not None


def _rename(source: Path, target: Path) -> None:
    """Renames a filled directory. If another process has created the target first, the target is
    kept."""
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise


class UnnamedFile:
    """An empty temporary file without a name. It is deleted when it is closed or garbage-collected.
    Raises OSError if the disk is full or cannot be written."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="fastovms-", buffering=0) as file:
            self.descriptor = os.dup(file.fileno())
        self.close = weakref.finalize(self, os.close, self.descriptor)
