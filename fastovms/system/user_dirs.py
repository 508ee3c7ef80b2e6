"""Finds the user's directories for what outlives the process, and makes directories that no other
user can write in."""

from __future__ import annotations

import errno
import logging
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

logger = logging.getLogger(__name__)

NOWHERE: Final = Path("/nonexistent")
"""The home of users who have none, as Debian's policy has it (9.2.3)."""

_BELOW_HOME: Final = {"cache": ".cache", "state": ".local/state"}


def user_directory(kind: Literal["cache", "state"], environ: Mapping[str, str]) -> Path | None:
    """Returns this program's part of XDG_CACHE_HOME or XDG_STATE_HOME, by default that of ~/.cache
    or ~/.local/state (XDG Base Directory Specification), or None if the user has no home.

    A relative path in one of the variables is ignored, as the specification says: it would mean
    another directory wherever the server is started from.
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


def _home_in_passwords() -> str:
    """Returns the home in the password database, which counts where a service has no HOME in its
    environment, or "" for users who do not stand there, as in containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def private_directory(path: Path) -> None:
    """Makes a directory for data that this server trusts, or checks the one that exists. If every
    user may write in it, that permission is removed, or logged where it cannot be removed:
    Kubernetes mounts an `emptyDir` with it.

    Raises:
        OSError: it cannot be made, or it belongs to a user other than this one and root.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.stat()
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        if user != 0:
            raise PermissionError(errno.EPERM, f"it belongs to the user {found.st_uid}", str(path))
        logger.warning("%s belongs to the user %d, who can change it", path, found.st_uid)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        try:
            path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
        except OSError:
            logger.warning("every user of this machine can change %s", path)
