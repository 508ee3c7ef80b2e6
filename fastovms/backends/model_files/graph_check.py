"""Finds out once whether a model, in the way in which a backend computes it, says what its exported
graph says, and keeps the answer."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openvino as ov

from fastovms import __version__
from fastovms.engine.model.graph.paging import reason_of
from fastovms.engine.model.machine.device_memory import available_memory
from fastovms.errors import UnsupportedModel
from fastovms.system.disk_cache import DiskCache, file_identity, key_of

logger = logging.getLogger(__name__)

MAX_DIFFERENCE: Final = 0.05
"""The largest difference of log probabilities that passes. Rounding comes to a thousandth of it,
and what is left out of a graph to ten times as much and more."""

_WEIGHTS_SHARE: Final = 1.4
_FURTHER_MEMORY: Final = 256 * 2**20
"""With `_WEIGHTS_SHARE` of the weights' size, the bytes that a comparison takes at most. Weights of
every kind stay as they are; models of 135M and 500M parameters took 0.97 to 1.5 times their size
and up to 180 MB more in int8, int4 and f16, by either backend."""

_FILE: Final = "difference.json"


class NotComparable(Exception):
    """The graph cannot be computed beside a backend; the message says why."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a way to compute a model with the model's exported graph.

    Attributes:
        kind: what the cache calls its answers.
        subject: what computes the model so, for messages.
        files: the files that the answer depends on; the first one is in the model's directory.
        difference: returns by how much log probabilities differ at most. It raises RuntimeError
            where the model cannot be computed in this way at all, and NotComparable where it may
            be, but the exported graph cannot.
        weights_size: the bytes of the model's weights.
        version: of what computes the model, beside OpenVINO's.
    """

    kind: str
    subject: str
    files: tuple[Path, ...]
    difference: Callable[[], float]
    weights_size: int
    version: str = ""


def check_graph(
    comparison: Comparison,
    cache: DiskCache,
    *,
    clock: Callable[[], float] = time.perf_counter,
    available: Callable[[], int] = available_memory,
) -> None:
    """Compares, unless the answer is known, or there is no memory for it. A first start takes about
    as long as compiling the model two times more.

    Raises:
        UnsupportedModel: they are not the same.
    """
    key = key_of(file_identity(comparison.files), ov.get_version(), __version__, comparison.version)
    entry = cache.find(comparison.kind, key)
    found = None if entry is None else _read(entry)
    model_dir = comparison.files[0].parent
    if found is None:
        if available() < _WEIGHTS_SHARE * comparison.weights_size + _FURTHER_MEMORY:
            logger.warning("too little memory to compare the model with the exported graph")
            return
        logger.info(
            "comparing the model with its exported graph, at the first start only: it takes about "
            "as long as compiling it two times"
        )
        start = clock()
        try:
            found = comparison.difference()
        except NotComparable as error:
            logger.warning("the model cannot be compared with the exported graph: %s", error)
            return
        except RuntimeError as error:
            raise UnsupportedModel(
                f"the model in {model_dir} cannot be computed: {reason_of(error)}"
            ) from error
        logger.info("compared with the exported graph in %.1f s: %.1g", clock() - start, found)
        _keep(cache, comparison.kind, key, found)
    if not found <= MAX_DIFFERENCE:
        raise UnsupportedModel(
            f"the model in {model_dir} cannot be served: {comparison.subject} leaves out part of "
            f"its graph (log probabilities differ by {found:.2g})"
        )


def _keep(cache: DiskCache, kind: str, key: str, difference: float) -> None:
    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(difference))

    cache.put(kind, key, fill, replace=True)


def _read(entry: Path) -> float | None:
    """Reads a kept answer; None = it is broken."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, float) else None
