"""Tells models apart by their files, so that nobody goes on with what another model has begun."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".xml", ".bin", ".json", ".jinja", ".model", ".txt")
"""What the names of files end in that a model is made of."""

_WHOLE: Final = 4 * 1024 * 1024
"""Bytes up to which a file is read as a whole."""

_NUM_SAMPLES: Final = 64
_SAMPLE_SIZE: Final = 16 * 1024
"""Of a larger one so many places are read: reading all weights takes as long as loading them."""


def fingerprint_of(model_dir: Path) -> str:
    """Returns what is the same for equal files, on whatever machine, in milliseconds. Weights that
    are trained further differ nearly everywhere.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(model_dir.iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\0".encode(errors="surrogateescape"))
            with path.open("rb") as file:
                if size <= _WHOLE:
                    digest.update(file.read())
                    continue
                for number in range(_NUM_SAMPLES):
                    file.seek(number * (size - _SAMPLE_SIZE) // (_NUM_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_SIZE))
    return digest.hexdigest()[:32]
