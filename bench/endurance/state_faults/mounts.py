"""File systems in memory of a given size, in a mount namespace that ends with this process, and
directories that no user can change."""

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
    """This process may not mount file systems. The message says why."""


class Mount:
    """A mounted file system."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def change(self, options: str) -> None:
        _mount("-o", f"remount,{options}", str(self._place))


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Mount]:
    """Creates a directory and mounts a new tmpfs there until the end of the block.

    Raises:
        MountRefused: only root may mount, and not in every container.
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
    """Prevents all users, including root, from changing the content of a directory until the end of
    the block. Unlike a read-only file system, the directory may contain files that are open for
    writing.

    Raises:
        MountRefused: only root may do this, and not on every file system.
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
