"""Directories of tiny encoders, made once in a process."""

from __future__ import annotations

import atexit
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.encoder_models import write_encoder
from bench.random_models.encoder_graph import ENCODER_SHAPES

_FOLDER = tempfile.TemporaryDirectory(prefix="fastovms-encoders-")
atexit.register(_FOLDER.cleanup)


@cache
def encoder_dir(num_labels: int = 0, pooling: str = "") -> Path:
    """An embedding model; with labels a classifier."""
    directory = Path(_FOLDER.name, f"tiny-{num_labels}{pooling}")
    write_encoder(replace(ENCODER_SHAPES["tiny"], num_labels=num_labels), directory, 0, pooling)
    return directory
