"""`prefixes`: damages, truncates, fills, write-protects and removes the prefix cache on disk, and
kills its server at random moments. Every text must equal that of a server without a prefix cache.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from bench.endurance.completions import complete
from bench.endurance.prefix_faults.known_texts import (
    FLAGS,
    Answers,
    KnownTexts,
    completion,
    learn_texts,
)
from bench.endurance.server import MODEL, ServerUnderTest
from bench.endurance.state_faults.mounts import MountRefused, mounted, unchangeable
from bench.figures.command import Command
from bench.figures.figure import Figure
from fastovms.parts.prefix_cache.directory import CorruptBlock, read_block, write_block

_DAMAGED_SHARE: Final = 0.01
_NUM_CLIENTS: Final = 6
_SHARE_WHILE_STARTING: Final = 0.15
_MOST_ANSWERS: Final = 24
"""The number of answers after which a server is killed, at a random moment."""
_LAST_MOMENTS: Final = 0.3
"""The greatest number of seconds until then."""
_PATIENCE: Final = 300.0
_START: Final = (0.0, 3.0)
"""The least and greatest number of seconds after which a starting server is killed."""
_FILE_LIMIT: Final = 16 * 1024
"""The limit of a file's size in bytes, which is less than the size of any block."""


def _server(directory: Path, blocks: Path) -> ServerUnderTest:
    size = ("--prefix-cache-dir", str(blocks), "--prefix-cache-disk-size", "256M")
    rates = ("--prefix-cache-write-rate", "1G", "--prefix-cache-daily-writes", "100G")
    return ServerUnderTest((*FLAGS, *size, *rates), directory)


def _fill(server: ServerUnderTest, asked: KnownTexts, answers: Answers) -> None:
    """Has a server write all prompts and kills it."""
    server.start()
    asked.ask(server, answers)
    server.wait_until_prefixes_are_written()
    server.kill()


def _files(blocks: Path) -> list[Path]:
    return sorted(file for file in blocks.glob("*/*") if file.is_file())


def _read(server: ServerUnderTest, asked: KnownTexts, answers: Answers) -> dict[str, float]:
    """Has a server answer that starts with the files on disk. Returns its metrics."""
    server.start()
    asked.ask(server, answers)
    server.wait_until_prefixes_are_written()  # what was damaged is there again
    metrics = server.metrics()
    server.kill()
    return metrics


def _rounds(
    name: str, directory: Path, asked: KnownTexts, num_rounds: int, damage: Callable[[Path], int]
) -> list[Figure]:
    """Damages files of a directory in every round.

    Args:
        damage: damages files and returns their number.
    """
    answers, blocks = Answers(), directory / "blocks"
    server = _server(directory, blocks)
    num_changed = num_noticed = num_read = 0
    try:
        _fill(server, asked, answers)
        num_files = len(_files(blocks))
        for _ in range(num_rounds):
            num_changed += damage(blocks)
            metrics = _read(server, asked, answers)
            num_noticed += int(metrics["prefix_cache_disk_damaged_total"])
            num_read += int(metrics["prefix_cache_disk_hits_total"])
    finally:
        server.kill()
    return [
        Figure(f"{name}: blocks on disk", num_files, at_least=1),
        Figure(f"{name}: of these changed, in all rounds", num_changed, at_least=num_rounds),
        Figure(f"{name}: noticed when they were read", num_noticed, at_least=1),
        Figure(f"{name}: tokens read from disk all the same", num_read, at_least=1),
        *_common(name, answers),
    ]


def _flipped(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    random = Random(options.seed)

    def flip(blocks: Path) -> int:
        files = _files(blocks)
        chosen = random.sample(files, max(1, round(_DAMAGED_SHARE * len(files))))
        for file in chosen:
            content = bytearray(file.read_bytes())
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            file.write_bytes(content)
        return len(chosen)

    return _rounds("a bit flipped", directory, asked, options.rounds, flip)


def _cut(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    random = Random(options.seed)

    def cut(blocks: Path) -> int:
        files = _files(blocks)
        chosen = random.sample(files, max(1, len(files) // 20))
        for file in chosen:
            with file.open("r+b") as opened:
                opened.truncate(random.randrange(file.stat().st_size))
        return len(chosen)

    num_lengths, num_taken = _cut_everywhere(directory / "block")
    return [
        Figure("cut: lengths of one file that were tried", num_lengths),
        Figure("cut: of these taken for a block", num_taken, at_most=0),
        *_rounds("cut", directory, asked, options.rounds, cut),
    ]


def _cut_everywhere(path: Path) -> tuple[int, int]:
    """Reads a file after each truncation by one byte. Returns the number of truncations, and of
    those after which the file was considered complete."""
    key, content = bytes(32), np.arange(16384, dtype=np.uint8)
    size = write_block(path, key, content)
    row, num_taken = np.empty_like(content), 0
    with path.open("r+b") as file:
        for length in reversed(range(size)):
            file.truncate(length)
            try:
                read_block(path, key, [row])
                num_taken += 1
            except CorruptBlock:
                continue
    return size, num_taken


def _full(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    answers, blocks = Answers(), directory / "blocks"
    server = _server(directory, blocks)
    with mounted(blocks, "size=8m"):
        try:
            _fill(server, asked, answers)  # the oldest make room for the newest
            num_kept = len(_files(blocks))
            junk = blocks / "junk"
            _write_all_that_fits(junk)
            metrics = _read(server, asked, answers)
            usual = resource.getrlimit(resource.RLIMIT_FSIZE)
            junk.unlink()
            shutil.rmtree(next(file.parent for file in _files(blocks)))
            server.start()
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (_FILE_LIMIT, usual[1]))
            asked.ask(server, answers)
            server.wait_until_prefixes_are_written()
            num_limited = len(_files(blocks))
            asked.ask(server, answers)
        finally:
            server.kill()
    return [
        Figure("small disk: blocks that it has room for", num_kept, at_least=1),
        Figure("full disk: tokens read", metrics["prefix_cache_disk_hits_total"], at_least=1),
        Figure("quota: files and parts of files that are left", num_limited, at_most=0),
        *_common("full", answers),
    ]


def _write_all_that_fits(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def _read_only(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    answers, blocks = Answers(), directory / "blocks"
    server = _server(directory, blocks)
    try:
        _fill(server, asked, answers)
        for file in _files(blocks)[::2]:  # there is something to write
            file.unlink()
        server.start()
        with unchangeable(blocks):
            asked.ask(server, answers)
            num_read = server.metrics()["prefix_cache_disk_hits_total"]
            server.kill()
            server.start()  # without a cache: it cannot own the directory
            asked.ask(server, answers)
            server.kill()
        num_read_later = _read(server, asked, answers)["prefix_cache_disk_hits_total"]
    finally:
        server.kill()
    return [
        Figure("read-only while it serves: tokens read", num_read, at_least=1),
        Figure("writable again, after a start: tokens read", num_read_later, at_least=1),
        *_common("read-only", answers),
    ]


def _gone(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    answers, blocks = Answers(), directory / "blocks"
    server = _server(directory, blocks)
    try:
        _fill(server, asked, answers)
        server.start()
        shutil.rmtree(blocks)
        asked.ask(server, answers)
        asked.ask(server, answers)
        server.kill()
        _fill(server, asked, answers)
        num_files = len(_files(blocks))
    finally:
        server.kill()
    return [
        Figure("directory gone: blocks after the next start", num_files, at_least=1),
        *_common("directory gone", answers),
    ]


def _killed(directory: Path, asked: KnownTexts, options: argparse.Namespace) -> list[Figure]:
    random, answers, blocks = Random(options.seed), Answers(), directory / "blocks"
    server = _server(directory, blocks)
    num_kills = num_read = num_starting = 0
    end = time.monotonic() + 60 * options.minutes
    try:
        while num_kills < options.kills and time.monotonic() < end:
            num_kills += 1
            if random.random() < _SHARE_WHILE_STARTING:
                num_starting += 1
                server.start(wait=False)
                time.sleep(random.uniform(*_START))
                server.kill()
                continue
            if random.random() < _DAMAGED_SHARE * 10:  # there is something to write again
                shutil.rmtree(blocks, ignore_errors=True)
            server.start()
            num_read += _live(server, asked, answers, random)
    finally:
        server.kill()
    return [
        Figure("kill -9", num_kills),
        Figure("kill -9: of these while it starts", num_starting),
        Figure("kill -9: tokens read from disk between them", num_read, at_least=1),
        Figure("kill -9: answers that one has cut off", answers.num_lost),
        *_common("kill -9", answers),
    ]


def _live(server: ServerUnderTest, asked: KnownTexts, answers: Answers, random: Random) -> int:
    """Sends requests to a server until it is killed at a random moment. Returns the number of
    blocks that it had read from disk."""
    end = answers.num_whole + random.randrange(_MOST_ANSWERS)
    has_enough, is_over = threading.Event(), threading.Event()
    guard = threading.Lock()

    def ask(seed: float) -> None:
        order = Random(seed)
        while not is_over.is_set():
            prompt, is_stream = order.choice(asked.prompts), order.random() < 0.5
            ending = complete(server.url, MODEL, completion(prompt, stream=is_stream))
            with guard:
                asked.check([(prompt, ending)], answers)
                if answers.num_whole >= end or answers.is_wrong:
                    has_enough.set()
            if ending.status == 0:
                return

    clients = [threading.Thread(target=ask, args=[random.random()]) for _ in range(_NUM_CLIENTS)]
    for client in clients:
        client.start()
    has_enough.wait(_PATIENCE)
    time.sleep(random.uniform(0.0, _LAST_MOMENTS))
    num_read = int(server.metrics()["prefix_cache_disk_hits_total"])
    is_over.set()
    server.kill()
    for client in clients:
        client.join()
    return num_read


def _common(name: str, answers: Answers) -> list[Figure]:
    for fault in (*answers.other_texts[:3], *answers.errors[:3]):
        print(f"fault: {name}: {fault}")
    return [
        Figure(f"{name}: answers", answers.num_whole, at_least=1),
        Figure(f"{name}: other texts", len(answers.other_texts), at_most=0),
        Figure(f"{name}: errors", len(answers.errors), at_most=0),
    ]


_SCENARIOS: Final[dict[str, Callable[[Path, KnownTexts, argparse.Namespace], list[Figure]]]] = {
    "flipped": _flipped,
    "cut": _cut,
    "full": _full,
    "read-only": _read_only,
    "gone": _gone,
    "killed": _killed,
}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="fastovms-endurance-") as directory:
        asked = learn_texts(Path(directory), options.prompts, Random(options.seed))
    for name in options.scenarios:
        with tempfile.TemporaryDirectory(prefix="fastovms-endurance-") as directory:
            try:
                figures += _SCENARIOS[name](Path(directory), asked, options)
            except MountRefused as error:
                print(f"{name} is not tried: it needs root and such a file system: {error}")
    return figures


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenarios", nargs="*", choices=list(_SCENARIOS), default=list(_SCENARIOS)
    )
    parser.add_argument("--prompts", type=int, default=40, help="whose texts are compared")
    parser.add_argument("--rounds", type=int, default=10, help="of files flipped, and cut")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60, help="after which none is killed")


COMMAND = Command(
    help="damages the prefix cache on disk, and kills its server; no text may change",
    run=measure,
    add_arguments=_add_arguments,
    short=None,
)
