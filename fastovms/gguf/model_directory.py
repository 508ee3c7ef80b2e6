"""Converts GGUF files to model directories, and caches these."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import openvino as ov

from fastovms.errors import ConfigurationError
from fastovms.system.disk import DiskCache, file_identity, key_of

logger = logging.getLogger(__name__)

_CONVERTER: Final = "fastovms.gguf.converter"

_BYTES_PER_SECOND: Final = 20e6
"""The speed of a conversion, for the log: two busy cores took 6 s for 98 MB and 15 s for 253 MB."""

REFUSED: Final = 3
"""The exit status when the file is not supported; the last line on stderr says why."""

_FORMAT: Final = 2
"""The version of converted directories; a new version invalidates cached ones."""


def find_gguf(path: Path) -> Path | None:
    """Returns the GGUF file for `path`: the file itself, or the only one in a directory without an
    OpenVINO model; None = neither.

    Raises:
        ConfigurationError: the directory has several GGUF files.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if (path / "openvino_model.xml").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigurationError(f"{path} has several GGUF files: name one of {names}")
    return files[0] if files else None


def model_directory(path: Path, cache: DiskCache, scratch: Path) -> Path:
    """Returns the directory of the model for `path`: itself, or the directory converted from a GGUF
    file. The first conversion takes seconds.

    Args:
        scratch: the directory for the conversion if there is no cache.

    Raises:
        ConfigurationError: the file is broken, or not supported.
    """
    file = find_gguf(path)
    if file is None:
        return path
    directory = _cached(file, cache)
    if directory is None:
        directory = Path(tempfile.mkdtemp(dir=scratch))
        _convert(file, directory)
    return directory


def is_converted(file: Path, cache: DiskCache) -> bool:
    """Returns whether the directory that a GGUF file is converted to is cached."""
    return cache.find("gguf", _key(file)) is not None


def _cached(file: Path, cache: DiskCache) -> Path | None:
    """Returns the cached directory, which is made if it is missing; None = it cannot be cached."""
    key = _key(file)
    found = cache.find("gguf", key)
    if found is not None:
        return found
    with cache.exclusive("gguf", key):
        return cache.find("gguf", key) or cache.put("gguf", key, lambda to: _convert(file, to))


def _key(file: Path) -> str:
    return key_of(_FORMAT, ov.get_version(), file_identity([file]))


def _convert(path: Path, target: Path) -> None:
    """Converts in a separate process, so that the memory of the weights is released."""
    size = path.stat().st_size
    logger.info(
        "first start: converting %s (%.2g GB) to OpenVINO's format, which takes about %d s",
        path,
        size / 1e9,
        size / _BYTES_PER_SECOND + 1,
    )
    child = subprocess.run(
        [sys.executable, "-m", _CONVERTER, str(path.resolve()), str(target)],
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
    if child.returncode < 0:
        reason = f"was ended by signal {-child.returncode}, as where memory is short"
    raise ConfigurationError(f"{path} could not be converted: the converter {reason}")
