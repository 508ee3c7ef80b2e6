"""Where the time of a request goes: stacks that py-spy takes, summed up by room of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common.process import server_process, two_cores
from bench.common.report import table
from bench.null_engine.whole_requests import KINDS, NULL_SERVER, WrkLoad

_RATE = 400  # stacks a second
_FRAME = re.compile(r"\((?:.*/)?(?:bench|fastovms(?:/([\w/]+))?)/(\w+)\.py:\d+\)$")


def measure_rooms(num_connections: int, seconds: int) -> None:
    """Prints each room's share of the time in which the server holds the interpreter's lock, in
    percent. What a library, the interpreter or the kernel does for a file counts as that file's."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if spy is None:
        raise SystemExit("py-spy is missing: pip install -e '.[bench]'")
    server_core, client_core = two_cores()
    load = WrkLoad(num_connections, seconds + 5, client_core)
    shares: dict[str, Counter[str]] = {}
    with (
        server_process((*NULL_SERVER, "--null-tokenizer"), core=server_core) as server,
        TemporaryDirectory() as directory,
    ):
        for kind in KINDS:
            stacks = Path(directory, "stacks")
            command = [spy, "record", "--format", "raw", "--output", str(stacks)]
            command += ["--pid", str(server.pid), "--rate", str(_RATE), "--duration", str(seconds)]
            command += ["--gil"]  # else threads that wait count too
            with load.running(server, kind):
                subprocess.run(command, check=True, capture_output=True)
            shares[str(kind)] = room_shares(stacks.read_text().splitlines())
    total = sum(shares.values(), Counter[str]())
    rows = [
        [room, *(f"{100 * share[room] / share.total():.0f} %" for share in shares.values())]
        for room, _ in total.most_common()
        if total[room] >= 0.01 * total.total()
    ]
    print(table(("room", *shares), rows))


def room_shares(stacks: Iterable[str]) -> Counter[str]:
    """Counts the stacks of py-spy's raw format by the room of their innermost frame that is in one;
    files at the top of the package, and those of the null engine, stand for themselves.

    Args:
        stacks: lines of frames, outermost first, as "name (file:line)", and a count.
    """
    counts: Counter[str] = Counter()
    for line in stacks:
        frames, _, count = line.rpartition(" ")
        counts[_room(frames.split(";"))] += int(count)
    return counts


def _room(frames: list[str]) -> str:
    for frame in reversed(frames):
        if found := _FRAME.search(frame):
            return found[1] or found[2]
    return "the event loop"
