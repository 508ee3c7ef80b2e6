"""Directories of tiny encoders, made once in a process."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.encoder_graph import ENCODER_SHAPES
from bench.encoder_models import write_encoder

_ROOT = Path(tempfile.mkdtemp(prefix="fastovms-encoders-"))


@cache
def encoder_dir(num_labels: int = 0, pooling: str = "") -> Path:
    """An embedding model; with labels a classifier."""
    directory = _ROOT / f"tiny-{num_labels}{pooling}"
    write_encoder(replace(ENCODER_SHAPES["tiny"], num_labels=num_labels), directory, 0, pooling)
    return directory


def remove_encoders() -> None:
    shutil.rmtree(_ROOT, ignore_errors=True)
