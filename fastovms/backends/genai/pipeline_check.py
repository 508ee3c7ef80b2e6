"""Compares OpenVINO GenAI's pipeline with the exported graph, in a process that ends with it."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from fastovms.backends.genai.worker_messages import Compare, Compared
from fastovms.backends.model_files.graph_check import Comparison, NotComparable
from fastovms.backends.model_files.required_files import graph_file, weights_file
from fastovms.backends.processes.process import ChildProcess, receive, send
from fastovms.params import ModelInfo

_PROCESS: Final = "fastovms.backends.genai.comparison_process"


def pipeline_comparison(model_dir: Path, model: ModelInfo) -> Comparison:
    """Returns the comparison of a model that the pipeline is to run."""
    graph, weights = graph_file(model_dir), weights_file(model_dir)
    return Comparison(
        "pipeline",
        "OpenVINO GenAI's pipeline",
        (graph, weights, *_embeddings(model_dir, model)),
        partial(_difference, model_dir, model),
        weights_size=weights.stat().st_size,
        version=version("openvino-genai"),
    )


def _embeddings(model_dir: Path, model: ModelInfo) -> list[Path]:
    """Returns the files that make the inputs of a graph that takes no tokens."""
    if not model.takes_images:
        return []
    return [model_dir / f"openvino_text_embeddings_model.{ending}" for ending in ("xml", "bin")]


def _difference(model_dir: Path, model: ModelInfo) -> float:
    """Raises NotComparable: one of both cannot be computed. Why the pipeline cannot, if it is that,
    is said when it is loaded."""
    process = ChildProcess(_PROCESS)
    answer: Any = None
    try:
        send(process.connection, Compare(model_dir, model))
        answer = receive(process.connection)
    except (EOFError, ConnectionError):
        pass
    finally:
        process.connection.close()
        fate = process.wait()
    if isinstance(answer, Compared):
        return answer.difference
    raise NotComparable(f"the process that does it {fate}" if answer is None else answer.reason)
