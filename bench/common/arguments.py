"""Argument types that benchmarks share. They report a mistake before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def model_directory(text: str) -> Path:
    """Returns the path of a model in OpenVINO's format.

    Raises:
        argparse.ArgumentTypeError: the directory has no such model.
    """
    path = Path(text)
    if not (path / "openvino_model.xml").is_file():
        raise argparse.ArgumentTypeError(f"there is no openvino_model.xml in {text!r}")
    return path
