"""Counts a model's parameters by what its graph says of its constants, without reading these."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Final

from fastovms.backends.model_files.required_files import graph_file
from fastovms.params import WeightCount

_CONSTANT: Final = re.compile(
    rb'<data element_type="(\w+)" shape="([\d, ]*)" offset="(\d+)" size="\d+"'
)
_HELPERS: Final = re.compile(r"openvino_(?:de)?tokenizer")


def count_weights(model_dir: Path) -> WeightCount | None:
    """Returns how many parameters the graphs of a model have, in milliseconds for a graph of
    megabytes; None = none is found. Constants that several operations share count once, scales and
    zero points of quantized weights not at all.

    Raises:
        OSError: a file cannot be read.
    """
    counts: Counter[str] = Counter()
    for path in {graph_file(model_dir), *model_dir.glob("openvino_*model.xml")}:
        if path.is_file() and not _HELPERS.match(path.name):
            counts += _counts(path.read_bytes())
    if not counts:
        return None
    [(element_type, _)] = counts.most_common(1)
    return WeightCount(counts.total(), element_type)


def _counts(graph: bytes) -> Counter[str]:
    counts: Counter[str] = Counter()
    constants = {(offset, kind): shape for kind, shape, offset in _CONSTANT.findall(graph)}
    for (_, kind), shape in constants.items():
        dimensions = [int(size) for size in shape.split(b",") if size.strip()]
        # Scales and zero points have one number for each row, or for each group of one.
        if dimensions and dimensions[-1] > 1:
            counts[kind.decode()] += math.prod(dimensions)
    return counts
