"""Finds out once whether a paged model says what the exported one says, and keeps the answer."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import openvino as ov

from fastovms import __version__
from fastovms.disk_cache import DiskCache, file_identity, key_of
from fastovms.engine.model.device_memory import available_memory
from fastovms.engine.model.graph_comparison import largest_difference
from fastovms.engine.model.model import ExportedModel
from fastovms.engine.model.paging import reason_of
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

MAX_DIFFERENCE: Final = 0.05
"""The largest difference of log probabilities that passes. Rounding comes to a thousandth of it,
and what is left out of a graph to ten times as much and more."""

MEMORY_SHARE: Final = 2.5
"""The memory that a comparison takes, as a multiple of the weights' size: those of half precision
become f32, and the rest of the model is small."""

_KIND: Final = "graph"
_FILE: Final = "difference.json"


def check_graph(
    files: ExportedModel,
    cache: DiskCache,
    difference: Callable[[ExportedModel], float] = largest_difference,
    clock: Callable[[], float] = time.perf_counter,
    available: Callable[[], int] = available_memory,
) -> None:
    """Compares a model with what is made of it, unless that is known, or there is no memory for it.
    A first start takes about as long as compiling the model two times more.

    Raises:
        ConfigurationError: they are not the same.
    """
    paths = [files.model_dir / name for name in ("openvino_model.xml", "openvino_model.bin")]
    key = key_of(file_identity(paths), ov.get_version(), __version__)
    entry = cache.find(_KIND, key)
    found = None if entry is None else _read(entry)
    if found is None:
        if available() < MEMORY_SHARE * files.weights_size:
            logger.warning("too little memory to compare the model with the exported graph")
            return
        start = clock()
        try:
            found = difference(files)
        except RuntimeError as error:
            raise ConfigurationError(
                f"the model in {files.model_dir} cannot be computed: {reason_of(error)}"
            ) from error
        logger.info("compared with the exported graph in %.1f s: %.1g", clock() - start, found)
        _keep(cache, key, found)
    if not found <= MAX_DIFFERENCE:
        raise ConfigurationError(
            f"the model in {files.model_dir} cannot be served: OpenVINO's paged attention leaves "
            f"out part of its graph (log probabilities differ by {found:.2g})"
        )


def _keep(cache: DiskCache, key: str, difference: float) -> None:
    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(difference))

    cache.put(_KIND, key, fill, replace=True)


def _read(entry: Path) -> float | None:
    """Reads a kept answer; None = it is broken."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, float) else None
