"""File systems in memory of a size that one chooses, in a mount namespace that ends with this
process; and directories that nobody may change."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x00020000


class MountRefused(Exception):
    """This process may not mount file systems. The text says why."""


class Mount:
    """A file system at a place."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def change(self, options: str) -> None:
        _mount("-o", f"remount,{options}", str(self._place))


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Mount]:
    """Makes the place and mounts a new tmpfs there, for as long as the block runs.

    Raises:
        MountRefused: only root may, and not in every container.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise MountRefused(os.strerror(ctypes.get_errno()))
    _mount("--make-rprivate", "/")
    place.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(place))
    try:
        yield Mount(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def unchangeable(directory: Path) -> Iterator[None]:
    """Lets nobody, root included, change what is in a directory, for as long as the block runs.
    Unlike a file system that is mounted so, it may hold files that are open for writing.

    Raises:
        MountRefused: only root may, and not on every file system.
    """
    try:
        _run("chattr", "-R", "+i", str(directory))
        yield
    finally:
        _run("chattr", "-R", "-i", str(directory))


def _mount(*arguments: str) -> None:
    _run("mount", *arguments)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MountRefused(result.stderr.strip())
