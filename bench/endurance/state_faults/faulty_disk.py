"""Runs a server whose disk is slow or fails on command.

    python -m bench.endurance.state_faults.faulty_disk serve FLAG...

The environment variable CONTROL names a file that is read before every change of the state's files.
It contains `SECONDS CODE`: the duration of a write or synchronization, and the SQLite error code
with which it then fails; 0 = it succeeds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from bench.endurance.state_faults.sqlite_vfs import FileChange, Kind, watched_files
from fastovms.cli import main as cli

CONTROL: Final = "CONTROL"
_CHANGES: Final = (Kind.WRITE, Kind.SYNC, Kind.TRUNCATE)


def main() -> None:
    control = Path(os.environ[CONTROL])

    def watch(change: FileChange) -> int:
        if change.kind not in _CHANGES:
            return 0
        seconds, code = control.read_text().split()
        time.sleep(float(seconds))
        return int(code)

    with watched_files(watch):
        cli.run()


if __name__ == "__main__":
    main()
