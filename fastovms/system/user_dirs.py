"""Finds the user's directories for what outlives the process, unless the operator names others."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

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
