"""Declares what is kept of files, and how batches run: sections of the configuration, as those of
`config` are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """The files that clients upload, and those that batches leave.

    Attributes:
        max_file_size: bytes of one upload; 413 beyond it.
        max_files_size: bytes of all of them; uploads beyond it are refused.
        max_files: how many there may be.
    """

    max_file_size: int = 1024 * 1024 * 1024
    max_files_size: int = 8 * 1024 * 1024 * 1024
    max_files: int = 10_000


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The batches that run, one line of a file after the other.

    Attributes:
        max_lines: of one batch.
        max_unfinished: batches that have not ended; more are refused.
        max_kept: batches that have ended and are still known.
        num_at_once: lines that run at the same time where nobody else is served.
        num_beside_others: the same while other requests run.
    """

    max_lines: int = 1_000_000
    max_unfinished: int = 100
    max_kept: int = 1000
    num_at_once: int = 64
    num_beside_others: int = 2
