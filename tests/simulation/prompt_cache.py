"""The files of the prompt cache, and what may become of them while no server looks."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

STATE_DIR: Final = Path(f"/dev/shm/fastovms-simulation-{os.getpid()}")
PROMPT_CACHE: Final = STATE_DIR / "prompt-cache"

_WRITTEN: Final = "written.json"


def tear_files(chance: random.Random) -> None:
    """Leaves what a loss of power may: the ends of files, which are not synced, are missing or
    zero."""
    for path in _files():
        data = path.read_bytes()
        end = chance.choice((len(data), chance.randrange(len(data) + 1)))
        zeros = chance.choice((0, len(data) - end, len(data) - end))
        _put(path, data[:end] + bytes(zeros))


def damage_files(chance: random.Random) -> None:
    """Damages some files as a bad disk, or somebody else, may."""
    files, share = _files(), chance.choice((0.3, 1.0))
    for path in files:
        if chance.random() >= share or not path.exists():
            continue
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data) or 1)
        match chance.choice(("bit", "byte", "zeros", "cut", "more", "other", "gone")):
            case "bit" if data:
                data[at] ^= 1 << chance.randrange(8)
            case "byte" if data:
                data[at] = chance.randrange(256)
            case "zeros":
                data[at:] = bytes(len(data) - at)
            case "cut":
                del data[at:]
            case "more":
                data += bytes(chance.randint(1, 100))
            case "other":  # a whole block, with a right checksum, at the place of another one
                other = chance.choice(files)
                data = bytearray(other.read_bytes() if other.exists() else b"")
            case "gone":
                path.unlink()
                continue
        _put(path, bytes(data))


def _files() -> list[Path]:
    return sorted([*PROMPT_CACHE.glob("*/*"), *PROMPT_CACHE.glob(_WRITTEN)])


def _put(path: Path, data: bytes) -> None:
    """Writes a file that keeps its time, by which servers choose what they evict."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
