"""`crash`: kill -9 at random moments, and power cuts at random points, during stored responses,
background responses and conversations. Nothing that was acknowledged may be lost."""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bench.endurance.json_client import LOST
from bench.endurance.server import ServerUnderTest, server_under_test
from bench.endurance.state_faults.power_cut import UNBOUNDED, cut_everywhere, record_store
from bench.endurance.state_faults.state_client import Refused, StateClient
from bench.figures.command import Command
from bench.figures.figure import Figure
from fastovms.state.sqlite.database import Database

_NUM_CLIENTS: Final = 12
_SHARE_WHILE_STARTING: Final = 0.15
"""The share of the kills that happen before the server is ready."""
_MAX_LIFE: Final = 100
"""The greatest number of acknowledged operations before a kill, which happens at a random moment
after them."""
_START: Final = (0.0, 3.0)
"""The least and greatest number of seconds after which a starting server is killed."""
_NUM_OLD: Final = 10
"""The number of older promises of each client that are checked again after a crash."""
_COPY_INTERVAL: Final = 10
"""The number of kills between two checks of the files."""


@dataclass(slots=True)
class CrashResults:
    """The results of the crashes.

    Attributes:
        num_kills: servers that ended by SIGKILL.
        num_acknowledged: operations that the server has answered completely.
        num_checked: checks of promises; a promise may be checked after several crashes.
        num_resumed: background responses that continued after a crash.
        num_interrupted: background responses that a crash has ended.
        longest_start: the longest time until a server was ready again, in seconds.
        broken: promises that were not kept.
        refusals: answers that were neither success nor an expected refusal.
        damages: inconsistencies in the files.
    """

    num_kills: int = 0
    num_acknowledged: int = 0
    num_checked: int = 0
    num_resumed: int = 0
    num_interrupted: int = 0
    longest_start: float = 0.0
    broken: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)


def crash_again_and_again(
    server: ServerUnderTest, num_kills: int, minutes: float, random: Random
) -> CrashResults:
    """Kills and restarts a server repeatedly, and checks what it had acknowledged.

    Args:
        minutes: the time after which the server is not killed again.
    """
    end = time.monotonic() + 60 * minutes
    results = CrashResults()
    clients = [StateClient(server.url, Random(random.random())) for _ in range(_NUM_CLIENTS)]
    while results.num_kills < num_kills and time.monotonic() < end:
        old = [list(client.promises) for client in clients]
        _load_and_kill(server, clients, random)
        results.num_kills += 1
        if results.num_kills % _COPY_INTERVAL == 0:
            _check_copy(server.state_dir, results)
        while random.random() < _SHARE_WHILE_STARTING and results.num_kills < num_kills:
            server.start(wait=False)
            time.sleep(random.uniform(*_START))
            server.kill()
            results.num_kills += 1
        start = time.monotonic()
        server.start()
        results.longest_start = max(results.longest_start, time.monotonic() - start)
        for client, paths in zip(clients, old, strict=True):
            new = client.promises.keys() - paths
            _check(client, [*new, *random.sample(paths, min(len(paths), _NUM_OLD))], results)
            client.restart()
    for client in clients:
        _check(client, list(client.promises), results)
        results.num_acknowledged += client.num_acknowledged
        results.num_resumed += client.num_resumed
        results.num_interrupted += client.num_interrupted
        results.refusals += client.refusals
    server.kill()
    _check_copy(server.state_dir, results)
    return results


def _load_and_kill(server: ServerUnderTest, clients: Sequence[StateClient], random: Random) -> None:
    end = sum(client.num_acknowledged for client in clients) + random.randrange(1, _MAX_LIFE)
    threads = [threading.Thread(target=_work, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    while sum(client.num_acknowledged for client in clients) < end:
        server.check_alive()
        if not any(thread.is_alive() for thread in threads):
            raise SystemExit(f"every client has lost the server, which lives\n{server.tail}")
        time.sleep(0.005)
    time.sleep(random.uniform(0.0, 0.1))
    server.check_alive()
    server.kill()
    for thread in threads:
        thread.join()


def _work(client: StateClient) -> None:
    while True:
        try:
            client.step()
        except Refused:
            continue
        except LOST:
            client.close()
            return


def _check(client: StateClient, paths: Sequence[str], results: CrashResults) -> None:
    for path in paths:
        results.num_checked += 1
        if broken := client.check(path):
            results.broken.append(broken)


def _check_copy(directory: Path, results: CrashResults) -> None:
    """Checks a copy of the files after a crash, because opening the files repairs them."""
    with tempfile.TemporaryDirectory() as copy:
        for file in directory.glob("state.db*"):
            shutil.copy(file, copy)
        if list(directory.glob("*.damaged*")):
            results.damages.append("a file was set aside")
        try:
            database = Database(f"{copy}/state.db", UNBOUNDED, time.time)
        except sqlite3.Error as error:
            results.damages.append(str(error))
            return
        try:
            database.check()
        except (AssertionError, sqlite3.Error) as error:
            results.damages.append(repr(error))
        finally:
            database.close()


def measure(options: argparse.Namespace) -> list[Figure]:
    random = Random(options.seed)
    cuts = cut_everywhere(record_store(options.operations, random), options.cuts, random)
    _show(cuts.faults)
    with server_under_test("--cache-size", "0.1") as server:
        crashes = crash_again_and_again(server, options.kills, options.minutes, random)
    _show(crashes.broken + crashes.refusals + crashes.damages)
    return [
        Figure("kill -9", crashes.num_kills),
        Figure("operations acknowledged before", crashes.num_acknowledged, at_least=1),
        Figure("acknowledged objects looked for after", crashes.num_checked, at_least=1),
        Figure("of these lost, changed or half there", len(crashes.broken), at_most=0),
        Figure("background responses that were gone on with", crashes.num_resumed),
        Figure("those that a kill has ended: `failed`", crashes.num_interrupted),
        Figure("requests refused between the kills", len(crashes.refusals), at_most=0),
        Figure("damaged files", len(crashes.damages), at_most=0),
        Figure("longest start", crashes.longest_start, "s", at_most=60),
        Figure("power cuts, simulated", cuts.num_cuts),
        Figure("changes of files that they met unsynchronized", cuts.num_taken, at_least=1),
        Figure("acknowledged objects looked for after power cuts", cuts.num_checked, at_least=1),
        Figure("power cuts after which one was missing or changed", len(cuts.faults), at_most=0),
    ]


def _show(faults: Sequence[str]) -> None:
    for fault in faults[:10]:
        print(f"fault: {fault}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60, help="after which none is killed")
    parser.add_argument("--operations", type=int, default=6000, help="recorded for power cuts")
    parser.add_argument("--cuts", type=int, default=5000, help="of the power")


COMMAND = Command(
    help="kills it with SIGKILL, and cuts the power of the disk, while clients store things",
    run=measure,
    add_arguments=_add_arguments,
    short={"kills": 1, "operations": 320, "cuts": 30},
)
