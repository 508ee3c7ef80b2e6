"""Converts GGUF files to model directories, and caches the directories."""

from __future__ import annotations

import errno
import logging
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import openvino as ov

from fastovms.errors import ConfigurationError
from fastovms.gguf.parts import part_files, part_names
from fastovms.system.disk import DiskCache, file_identity, key_of

logger = logging.getLogger(__name__)

_CONVERTER: Final = "fastovms.gguf.converter"

_MAGIC: Final = b"GGUF"

_BYTES_PER_SECOND: Final = 20e6
"""The speed of a conversion, for the estimate in the log: two busy cores took 6 s for 98 MB and 15
s for 253 MB."""

REFUSED: Final = 3
NOT_WRITTEN: Final = 4
"""The converter's exit statuses: REFUSED = the file is not supported, NOT_WRITTEN = the directory
cannot be written. The last line on stderr is the reason."""

_GROWTH: Final = 1.25
_SMALL_FILES: Final = 16_000_000
"""A converted directory is estimated at `_GROWTH` times the size of its file, plus `_SMALL_FILES`
bytes. A disk with less free space is skipped."""

_FORMAT: Final = 3
"""The format version of converted directories; a new version invalidates cached directories."""


def find_gguf(path: Path) -> Path | None:
    """Returns the GGUF file for `path`: the file itself, or the only GGUF file in a directory
    without an OpenVINO model. Returns None if there is neither. For a split model, returns the
    first part. Raises ConfigurationError if the directory has several models, or a part is
    missing."""
    if path.is_file():
        return part_files(path)[0] if path.suffix == ".gguf" or _has_magic(path) else None
    if (path / "openvino_model.xml").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    models = dict.fromkeys(part_names(file.name)[0] for file in files)
    if len(models) > 1:
        raise ConfigurationError(f"{path} has several GGUF files: name one of {', '.join(models)}")
    return part_files(files[0])[0] if files else None


def gguf_size(path: Path) -> int:
    """Returns the size of a model's GGUF file, or of all its parts, in bytes."""
    return sum(file.stat().st_size for file in part_files(path))


def _has_magic(path: Path) -> bool:
    """Returns whether a file begins with GGUF's magic bytes, whatever its name (a blob of
    Ollama's)."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class NotStored(Exception):
    """A conversion cannot be stored in the cache."""


def model_directory(path: Path, cache: DiskCache, scratch: Path | None) -> Path:
    """Returns the model directory for `path`: `path` itself, or the directory converted from a GGUF
    file. The first conversion takes seconds.

    Raises ConfigurationError if the file is broken or not supported, or no disk has enough space,
    and NotStored if the cache cannot store the conversion and `scratch` is None.

    Args:
        scratch: the directory for a conversion that the cache cannot store; None = do not convert.
    """
    file = find_gguf(path)
    if file is None:
        return path
    faults: list[OSError] = []
    directory = _cached(file, cache, faults)
    if directory is not None:
        return directory
    if scratch is None:
        raise NotStored(*faults)
    directory = Path(tempfile.mkdtemp(dir=scratch))
    try:
        _convert(file, directory)
    except OSError as error:
        kept = f" (the disk of --cache-dir: {faults[0].strerror})" if faults else ""
        raise ConfigurationError(
            f"{file} cannot be converted in {scratch}: {error.strerror}{kept}: free space, or name "
            "another --cache-dir"
        ) from None
    if faults:
        logger.warning(
            "%s is converted at each start, because --cache-dir has no room: %s",
            file,
            faults[0].strerror,
        )
    return directory


def is_converted(file: Path, cache: DiskCache) -> bool:
    """Returns whether the conversion of a GGUF file is in the cache."""
    return cache.find("gguf", _key(file)) is not None


def _cached(file: Path, cache: DiskCache, faults: list[OSError]) -> Path | None:
    """Returns the cached directory, and converts the file if it is not cached yet. Returns None if
    the cache cannot store the conversion; the reason is appended to `faults`, if there is a
    cache."""

    def fill(directory: Path) -> None:
        try:
            _convert(file, directory)
        except OSError as error:
            faults.append(error)
            raise

    key = _key(file)
    found = cache.find("gguf", key)
    if found is not None:
        return found
    with cache.exclusive("gguf", key):
        return cache.find("gguf", key) or cache.put("gguf", key, fill)


def _key(file: Path) -> str:
    return key_of(_FORMAT, ov.get_version(), file_identity(part_files(file)))


def _convert(path: Path, target: Path) -> None:
    """Converts in a separate process, so that its memory is released. Raises OSError if the disk of
    `target` is full or fails."""
    size = gguf_size(path)
    needed, free = _GROWTH * size + _SMALL_FILES, shutil.disk_usage(target).free
    if free < needed:
        reason = f"{free / 1e9:.2g} GB are free on its disk, but the model takes {needed / 1e9:.2g}"
        raise OSError(errno.ENOSPC, reason, str(target))
    logger.info(
        "first start: converting %s (%.2g GB) to OpenVINO's format, which takes about %d s",
        path,
        size / 1e9,
        size / _BYTES_PER_SECOND + 1,
    )
    child = subprocess.run(
        [sys.executable, "-m", _CONVERTER, str(path.absolute()), str(target)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode == 0:
        return
    lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
    reason = " ".join(lines[-1:]) or f"ended with code {child.returncode}"
    if child.returncode == REFUSED:
        raise ConfigurationError(reason)
    if child.returncode == NOT_WRITTEN:
        raise OSError(errno.EIO, reason, str(target))
    if child.returncode < 0:
        reason = f"was ended by signal {-child.returncode}, as where memory is short"
    raise ConfigurationError(f"{path} could not be converted: the converter {reason}")
