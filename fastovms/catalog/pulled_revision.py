"""Keeps which revision of a hub's model was pulled, in a small file that goes with the model."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MAIN: Final = "main"
"""The revision that a hub has where none is named."""

_FILE: Final = ".pulled"
"""Its ending is none of the files that tell models apart."""
_COMMIT: Final = re.compile("[0-9a-f]{7,40}")


class PulledRevision(NamedTuple):
    """What was pulled.

    Attributes:
        revision: branch, tag or commit, as it was asked for.
        commit: what that was then; "" = the hub did not say.
    """

    revision: str
    commit: str

    def is_named(self, revision: str) -> bool:
        """Returns whether somebody who asks for a revision means this one. A branch is not looked
        at again: what was pulled of it counts."""
        is_commit = _COMMIT.fullmatch(revision) is not None and self.commit.startswith(revision)
        return revision == self.revision or is_commit

    def __str__(self) -> str:
        return f"{self.revision} (commit {self.commit})" if self.commit else self.revision


def read_pulled(path: Path) -> PulledRevision | None:
    """Returns which revision of a model is at a path; None = it is not known, as of a model that
    somebody has put there."""
    try:
        found = json.loads(_note(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    match found:
        case {"revision": str(revision), "commit": str(commit)}:
            return PulledRevision(revision, commit)
    return None


def forget_pulled(path: Path) -> None:
    """Forgets it, before something else comes to the path. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _note(path).unlink()


def note_pulled(path: Path, pulled: PulledRevision) -> None:
    """Keeps it for `read_pulled`. Raises OSError."""
    _note(path).write_text(f"{json.dumps(pulled._asdict())}\n", encoding="utf-8")


def _note(path: Path) -> Path:
    """Returns the file: in a model's directory, or beside a model that is one file."""
    return path / _FILE if path.is_dir() else path.with_name(f".{path.name}{_FILE}")
