"""Makes the fingerprint of a model under which its blocks are kept on disk: it changes with all
that decides what is computed."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Final, NamedTuple

import openvino as ov

from fastovms.engine.model.model import PagedModel
from fastovms.engine.stored_prefixes.model_blocks import PrefixFiles
from fastovms.params import ModelInfo
from fastovms.prefix_cache.block_directory import BlockDirectory

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
"""The version of what blocks hold; a new one makes all that is kept old. It is to be raised when
graphs are rewritten otherwise."""

_MODEL_FILES: Final = ("openvino_model.xml", "openvino_model.bin")


class PrefixDirectory(NamedTuple):
    """The directory that the models of a process share, and whether prompts with a `cache_salt` are
    kept there."""

    blocks: BlockDirectory
    keeps_salted: bool = False


def prefix_files(
    prefixes: PrefixDirectory, model: PagedModel, model_dir: Path, info: ModelInfo
) -> PrefixFiles | None:
    """Returns where the blocks of a model are kept; None = they cannot be, which has been
    logged."""
    if model.is_on_gpu:
        logger.info("prefix cache: %s is on a GPU: nothing is kept on disk", info.name)
        return None
    fingerprint = _fingerprint(model, model_dir, info.max_model_len)
    folder = f"{fingerprint.hex()[:16]}-{re.sub(r'[^A-Za-z0-9._-]', '_', info.name)[:100]}"
    return PrefixFiles(prefixes.blocks, folder, fingerprint, prefixes.keeps_salted)


def _fingerprint(model: PagedModel, model_dir: Path, max_model_len: int) -> bytes:
    core = ov.Core()
    parts = [
        _FORMAT,
        [_file_identity(model_dir / file) for file in _MODEL_FILES],
        ov.get_version(),
        str(core.get_property(model.device, "FULL_DEVICE_NAME")),
        _cpu_flags(),
        model.cache_traits,
        max_model_len,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _file_identity(path: Path) -> list[object]:
    """Returns what changes when a file is replaced or written. Its time of change (ctime) cannot be
    set: where an archive gives all files one date, two sets of weights have the same size, and the
    same time of writing."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the instruction sets that the kernel has found, by which sums differ."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
