"""Compares tiny models of many architectures with transformers, by tokens and log probabilities,
and prints the table of `docs/architectures.md`.

`export.py` makes the models and the reference texts in virtual environments of their own with
torch. The first run takes some minutes and gigabytes; later runs reuse the files. The table also
has the rows of earlier runs, with their versions and dates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.architectures.compare import WAY_NAMES, compare
from bench.architectures.configs import ARCHITECTURES
from bench.architectures.environments import interpreter
from bench.architectures.gguf_file import can_be_written, write_gguf
from bench.common.report import machine
from fastovms.gguf.converter import convert

HERE = Path(__file__).parent
VOCAB_SIZE = 1536
"""The directory of the demo model, whose tokenizer all models use."""

_HEADER: Final = ("architecture", "transformers", "backend", *WAY_NAMES, "by GGUF")
_NOTHING: Final = "-"


def directory_of(directory: Path, name: str) -> Path:
    return directory / name.replace(", ", "-").replace(" ", "-")


def export(directory: Path, names: Sequence[str], pythons: dict[str, Path]) -> None:
    """Exports the models that are missing, each with the version of transformers that it needs."""
    for transformers in sorted({ARCHITECTURES[name].transformers for name in names}):
        chosen = [name for name in names if ARCHITECTURES[name].transformers == transformers]
        if all((directory_of(directory, name) / "versions.json").exists() for name in chosen):
            continue
        python = pythons.get(transformers) or interpreter(directory, transformers)
        script = [
            str(python),
            str(HERE / "export.py"),
            "--vocab-size",
            str(VOCAB_SIZE),
            str(directory),
        ]
        subprocess.run([*script, *chosen], check=True)


def find_row(name: str, directory: Path) -> None:
    """Compares one model and writes its row of the table to a file beside the model."""
    versions = json.loads((directory / "versions.json").read_text())
    failure = directory / "failure"
    if failure.exists():
        cells = [_NOTHING, f"not exported: {failure.read_text()}", *[_NOTHING] * len(WAY_NAMES)]
    else:
        result = compare(directory)
        cells = [result.backend, *result.cells, compare_gguf(directory)]
    row = {
        "cells": [name, versions["transformers"], *cells],
        "versions": {**versions, "day": f"{datetime.now(UTC):%Y-%m-%d}"},
    }
    (directory / "row.json").write_text(json.dumps(row))


def compare_gguf(directory: Path) -> str:
    """Compares a GGUF file of the same weights in every `Way`."""
    config = json.loads((directory / "original" / "config.json").read_text())
    if not can_be_written(config):
        return _NOTHING
    made = directory / "gguf"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    write_gguf(directory / "original", made / "model.gguf")
    convert(made / "model.gguf", made)
    shutil.copyfile(directory / "reference.json", made / "reference.json")
    return "; ".join(dict.fromkeys(compare(made).cells))


def print_table(directory: Path) -> None:
    rows = {
        name: json.loads(path.read_text())
        for name in ARCHITECTURES
        if (path := directory_of(directory, name) / "row.json").exists()
    }
    print(machine())
    for name in ("day", "torch", "optimum-intel", "openvino"):
        print(f"{name}: {', '.join(sorted({row['versions'][name] for row in rows.values()}))}")
    print()
    print(_line(_HEADER))
    print("|---" * len(_HEADER) + "|")
    for name, row in rows.items():
        note = ARCHITECTURES[name].note
        _, *cells = row["cells"]
        print(_line([f"{name} ({note})" if note else name, *_merged(cells)]))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _merged(cells: list[str]) -> list[str]:
    """Returns the cells of all ways, or one cell if all ways are exact."""
    start, end = 2, 2 + len(WAY_NAMES)
    ways = cells[start:end]
    if len({*ways}) == 1 and ways[0].startswith("refused"):
        return [*cells[:start], ways[0], *[_NOTHING] * (len(ways) - 1), *cells[end:]]
    return cells


def _python_of(argument: str) -> tuple[str, Path]:
    transformers, _, path = argument.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form VERSION=PATH")
    return transformers, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.architectures", description=__doc__)
    parser.add_argument("directory", type=Path, help="for models, of some 200 MB")
    parser.add_argument("names", nargs="*", metavar="name", help="in the table (default: all)")
    parser.add_argument(
        "--python",
        type=_python_of,
        action="append",
        default=[],
        metavar="VERSION=PATH",
        help="an interpreter that has torch already, and that version of transformers, such as "
        "4.57 (more than once for several)",
    )
    arguments = parser.parse_args()
    names = arguments.names or list(ARCHITECTURES)
    unknown = sorted(set(names) - ARCHITECTURES.keys())
    if unknown:
        parser.error(f"no such architecture: {', '.join(unknown)}")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    export(arguments.directory, names, dict(arguments.python))
    for name in names:
        start = time.perf_counter()
        find_row(name, directory_of(arguments.directory, name))
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print_table(arguments.directory)


if __name__ == "__main__":
    main()
