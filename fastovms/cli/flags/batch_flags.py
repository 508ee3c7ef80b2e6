"""Lists the flags about files and batches."""

from __future__ import annotations

from typing import Final

from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import integer, show_size, size
from fastovms.config.settings import BATCHES, UPLOADS

FILE_FLAGS: Final = (
    Flag("--max-file-size", UPLOADS.max_file_size, "SIZE", size,
         "of a file that a client uploads; 413 beyond it", show_size),
    Flag("--max-files-size", UPLOADS.max_files_size, "SIZE", size,
         "of one key's files, or one address's; other keys share a quarter more", show_size),
    Flag("--max-files", UPLOADS.max_files, "N", integer(1),
         "files of one key, or one address; other keys share as many again"),
    Flag("--max-batches", BATCHES.max_unfinished, "N", integer(1),
         "unfinished batches of one key, or one address; other keys share as many again"),
)  # fmt: skip

BATCH_FLAGS: Final = (
    Flag("--max-batch-lines", BATCHES.max_lines, "N", integer(1), "requests of one batch"),
    Flag("--batch-concurrency", BATCHES.num_at_once, "N", integer(1),
         "requests of batches that run at the same time where nobody else asks"),
    Flag("--batch-concurrency-beside", BATCHES.num_beside_others, "N", integer(1),
         "the same while other requests run"),
)  # fmt: skip
