"""Writes files atomically, reads those of JSON, and makes the paths that stand in them."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from fastovms.errors import ConfigurationError


def path_from(folder: Path, path: Path) -> str:
    """Returns how a file in `folder` names a path of the command line: an absolute one as it is,
    one that starts from the working directory from `folder`, or absolutely where ".." and links on
    the way would lead elsewhere."""
    if path.is_absolute():
        return str(path)
    target = os.path.realpath(path)
    for start in (folder, os.path.realpath(folder)):
        relative = os.path.relpath(path, start)
        if os.path.realpath(folder / relative) == target:
            return relative
    return target


def read_json(path: Path) -> object:
    """Returns what the file holds. Raises ConfigurationError: it cannot be read, or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from None


def write_file(path: Path, text: str) -> None:
    """Writes a file, which is the old one or the new one, whatever happens. Links to it stay, and
    so do its permissions and, where the system lets us, its owner.

    Raises:
        ConfigurationError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        with suppress(FileNotFoundError):
            _copy_access(target.stat(), partial)
        os.replace(partial, target)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from None
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"cannot write {path}: {error}") from None


def _copy_access(old: os.stat_result, path: Path) -> None:
    """Lets those read and write a file who might the old one."""
    new = path.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        # Only root may give files away: as somebody else's the file is better than not written.
        with suppress(PermissionError):
            os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))  # last: another owner clears some bits
