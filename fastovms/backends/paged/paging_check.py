"""Compares the paged graph of a model with the exported one."""

from __future__ import annotations

from functools import partial

from fastovms.backends.model_files.graph_check import Comparison
from fastovms.engine.model.graph_comparison import largest_difference
from fastovms.engine.model.model import ExportedModel


def paging_comparison(files: ExportedModel) -> Comparison:
    """Returns the comparison of a model that the paged backend is to run."""
    return Comparison(
        "graph",
        "OpenVINO's paged attention",
        (files.model_dir / "openvino_model.xml", files.model_dir / "openvino_model.bin"),
        partial(largest_difference, files),
        weights_size=files.weights_size,
    )
