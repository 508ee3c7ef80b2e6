"""The comparison of a paged graph with the exported one."""

from __future__ import annotations

from fastovms.backends.model_files.graph_check import MAX_DIFFERENCE
from fastovms.backends.paged.paging_check import paging_comparison
from fastovms.config.model_config import DEMO_MODEL
from fastovms.engine.model.model import ExportedModel


def test_it_is_of_the_files_that_the_graph_was_read_from() -> None:
    files = ExportedModel(DEMO_MODEL, max_model_len=128)
    comparison = paging_comparison(files)
    assert [path.parent for path in comparison.files] == [DEMO_MODEL] * 2

    assert comparison.weights_size == files.weights_size
    assert comparison.difference() < MAX_DIFFERENCE
