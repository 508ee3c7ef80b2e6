from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.model_arguments import add_model_arguments


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ([], "model", None),
        (["m"], "model", "m"),
        (["--model", "a=m", "--model", "n"], "models", ["a=m", "n"]),
        (["--model-name", "a"], "names", ["a"]),
        (["--served-model-name", "a", "b"], "names", ["a", "b"]),
        (["--config-path", "c.json"], "config_path", Path("c.json")),
        (["--model-path", "m"], "model_path", Path("m")),
        (["--source-model", "a/b"], "source_model", "a/b"),
        (["--gguf-filename", "x.gguf"], "gguf_filename", "x.gguf"),
    ],
)
def test_arguments(line: list[str], name: str, value: object) -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    assert getattr(parser.parse_args(line), name) == value
