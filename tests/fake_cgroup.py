"""Writes the files in which a process finds its control groups, in Linux's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_cgroup2(root: Path, limits: Mapping[str, str], group: str = "/") -> None:
    """Puts the process into a group of version 2 with the given `limits`. With several calls, the
    process is in the last group."""
    write_membership(
        root,
        f"0::{group}",
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
    )
    write_files(root / "sys/fs/cgroup" / group.strip("/"), limits)


def write_membership(root: Path, cgroup: str, mountinfo: str) -> None:
    directory = root / "proc/self"
    directory.mkdir(parents=True, exist_ok=True)
    root_mount = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"
    (directory / "cgroup").write_text(cgroup + "\n")
    (directory / "mountinfo").write_text(f"{root_mount}\n{mountinfo}\n")


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text + "\n")
