"""`disk`: disks that are full, read-only, slow, limited or damaged. The server must still answer,
find stored objects, and store new ones as soon as that is possible again."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from bench.endurance.canary import canary
from bench.endurance.server import MODEL, SERVE, ServerUnderTest
from bench.endurance.state_faults.damage import measure_damage
from bench.endurance.state_faults.faulty_disk import CONTROL
from bench.endurance.state_faults.mounts import MountRefused, mounted
from bench.endurance.state_faults.store_load import StoreResults, num_missing, store
from bench.figures.command import Command
from bench.figures.figure import Figure

_FAULTY: Final = ("-m", "bench.endurance.state_faults.faulty_disk", "serve")
_FLAGS: Final = ("--cache-size", "0.1")
_RETURN_TIMEOUT: Final = 65.0
"""The seconds to wait, which exceed the longest delay between two attempts of the server."""
_ERRORS: Final = {"full": 13, "I/O error, quota or read-only": 778, "not synchronized": 1034}
"""Error codes of SQLite (https://sqlite.org/rescode.html)."""


@contextmanager
def _server(directory: Path, *, is_faulty: bool = False) -> Iterator[ServerUnderTest]:
    """Returns a server that is not started. A server with faults reads `directory / CONTROL`."""
    environ = {CONTROL: str(directory / CONTROL)} if is_faulty else {}
    program = _FAULTY if is_faulty else SERVE
    server = ServerUnderTest(_FLAGS, directory, program=program, environ=environ)
    try:
        yield server
    finally:
        server.kill()


def _full(directory: Path, random: Random) -> list[Figure]:
    results = StoreResults()
    with _server(directory) as server, mounted(server.state_dir, "size=2m") as disk:
        server.start()
        while not results.num_unstored and len(results.kept) < 2000:
            store(server.url, 50, results)
        num_unstored = results.num_unstored
        missing = num_missing(server.url, results.kept)
        disk.change("size=64m")
        back = _seconds_until(lambda: _is_stored(server, results))
        server.stop()
        _fill(server.state_dir / "junk")
        server.start()
        on_disk = server.metrics()["state_on_disk"]
        store(server.url, 20, results)
        (server.state_dir / "junk").unlink()
        moved = _seconds_until(lambda: bool(server.metrics()["state_on_disk"]))
        server.kill()
        server.start()
        missing += num_missing(server.url, results.kept)
        server.kill()
    return [
        Figure("full while it serves: answers that were not stored", num_unstored, at_least=1),
        Figure("full: until one is stored again when there is room", back, "s", at_most=5),
        Figure("full when it starts: state on the disk", on_disk, at_most=0),
        Figure("full: until the state is on the disk", moved, "s", at_most=_RETURN_TIMEOUT),
        *_common("full", results, missing),
    ]


def _read_only(directory: Path, random: Random) -> list[Figure]:
    results = StoreResults()
    with _server(directory) as server, mounted(server.state_dir, "ro") as disk:
        server.start()
        on_disk = server.metrics()["state_on_disk"]
        store(server.url, 20, results)
        num_unstored = results.num_unstored
        disk.change("rw")
        opened = _seconds_until(lambda: bool(server.metrics()["state_on_disk"]))
        store(server.url, 20, results)
        server.kill()
        server.start()
        missing = num_missing(server.url, results.kept)
        server.kill()
    return [
        Figure("read-only when it starts: state on the disk", on_disk, at_most=0),
        Figure("read-only: answers that were not stored", num_unstored, at_least=20),
        Figure("read-only: until the state is on the disk", opened, "s", at_most=_RETURN_TIMEOUT),
        *_common("read-only", results, missing),
    ]


def _failing(directory: Path, random: Random) -> list[Figure]:
    results = StoreResults()
    figures = []
    control = directory / CONTROL
    control.write_text("0 0")
    with _server(directory, is_faulty=True) as server:
        server.start()
        for name, code in _ERRORS.items():
            store(server.url, 20, results)
            before = results.num_unstored
            control.write_text(f"0 {code}")
            store(server.url, 20, results)
            num_unstored = results.num_unstored - before
            missing = num_missing(server.url, results.kept)
            control.write_text("0 0")
            back = _seconds_until(lambda: _is_stored(server, results))
            figures += [
                Figure(f"writes fail ({name}): answers not stored", num_unstored, at_least=20),
                Figure(f"{name}: stored before, and not found then", missing, at_most=0),
                Figure(f"{name}: until one is stored again", back, "s", at_most=5),
            ]
        server.kill()
        server.start()
        missing = num_missing(server.url, results.kept)
    return figures + _common("failing", results, missing)


def _quota(directory: Path, random: Random) -> list[Figure]:
    """Limits the size of files as a quota does. The kernel enforces the limit."""
    results = StoreResults()
    with _server(directory) as server:
        server.start()
        store(server.url, 20, results)
        pid = server.process.pid
        usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024 * 1024, usual[1]))
        while not results.num_unstored and len(results.kept) < 2000:
            store(server.url, 50, results)
        num_unstored = results.num_unstored
        missing = num_missing(server.url, results.kept)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)
        back = _seconds_until(lambda: _is_stored(server, results))
        server.kill()
        server.start()
        missing += num_missing(server.url, results.kept)
    return [
        Figure("quota: answers that were not stored", num_unstored, at_least=1),
        Figure("quota: until one is stored again without it", back, "s", at_most=5),
        *_common("quota", results, missing),
    ]


def _slow(directory: Path, random: Random) -> list[Figure]:
    results = StoreResults()
    control = directory / CONTROL
    control.write_text("0 0")
    with _server(directory, is_faulty=True) as server:
        server.start()
        store(server.url, 8, results)
        control.write_text("0.2 0")
        with canary(server.url, MODEL) as sightings:
            store(server.url, 16, results, num_clients=16)
        num_unstored = results.num_unstored
        control.write_text("0 0")
        missing = num_missing(server.url, results.kept)
        server.kill()
    return [
        Figure("each write takes 200 ms: longest stored answer", results.longest, "s", at_most=31),
        Figure("slow: answers that were not stored", num_unstored, at_most=0),
        Figure("slow: longest gap of a stream beside", sightings.longest_gap, "s", at_most=1),
        Figure(
            "slow: longest time to a first token beside", sightings.longest_first, "s", at_most=2
        ),
        Figure("slow: streams beside that failed", sightings.num_failures, at_most=0),
        *_common("slow", results, missing),
    ]


def _common(name: str, results: StoreResults, missing: int) -> list[Figure]:
    for fault in results.bad[:5]:
        print(f"fault: {name}: {fault}")
    return [
        Figure(
            f"{name}: requests without an answer, or with an error", len(results.bad), at_most=0
        ),
        Figure(f"{name}: stored responses", len(results.kept), at_least=1),
        Figure(f"{name}: of these not found as they were", missing, at_most=0),
    ]


def _is_stored(server: ServerUnderTest, results: StoreResults) -> bool:
    before = len(results.kept)
    store(server.url, 1, results)
    return len(results.kept) > before


def _seconds_until(condition: Callable[[], bool]) -> float:
    """Returns the seconds until a condition holds, which slightly exceed the timeout if it does
    not."""
    start = time.monotonic()
    while not condition() and time.monotonic() - start < _RETURN_TIMEOUT:
        time.sleep(0.1)
    return time.monotonic() - start


def _fill(path: Path) -> None:
    """Fills a disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65536)):
                pass
        except OSError:
            return


_SCENARIOS: Final[dict[str, Callable[[Path, Random], list[Figure]]]] = {
    "full": _full,
    "read-only": _read_only,
    "failing": _failing,
    "quota": _quota,
    "slow": _slow,
}


def measure(options: argparse.Namespace) -> list[Figure]:
    random = Random(options.seed)
    figures: list[Figure] = []
    for name in options.scenarios:
        with tempfile.TemporaryDirectory(prefix="fastovms-endurance-") as directory:
            try:
                figures += _SCENARIOS[name](Path(directory), random)
            except MountRefused as error:
                print(f"{name} is not tried: it needs to mount a file system: {error}")
    return figures + measure_damage(options.damages, random)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenarios", nargs="*", choices=list(_SCENARIOS), default=list(_SCENARIOS)
    )
    parser.add_argument("--damages", type=int, default=2000, help="damaged files to open")


COMMAND = Command(
    help="keeps its state on disks that are full, read-only, failing, limited, slow or damaged",
    run=measure,
    add_arguments=_add_arguments,
    short={"scenarios": ["read-only"], "damages": 20},
)
