"""Compares tiny models of many architectures with transformers, token by token and by log
probabilities, and prints the table of `docs/models.md`.

Models and references are made by `export.py`, in a virtual environment of its own with torch, which
takes some minutes and gigabytes the first time. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.architectures.compare import WAY_NAMES, Result, compare
from bench.architectures.configs import ARCHITECTURES
from bench.report import machine, table

HERE = Path(__file__).parent
VOCAB_SIZE = 1536
"""Of the demo model, whose tokenizer is used."""


def make_environment(directory: Path) -> Path:
    """A virtual environment with torch; returns its interpreter."""
    python = directory / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        requirements = HERE / "requirements.txt"
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], check=True)
    return python


def directory_of(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def row(name: str, directory: Path) -> list[str]:
    failure = directory / "failure"
    if failure.exists():
        return [
            name,
            "-",
            *(["not exported: " + failure.read_text()] + ["-"] * 4)[: len(WAY_NAMES)],
        ]
    result: Result = compare(directory)
    return [name, result.backend, *result.cells]


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.architectures", description=__doc__)
    parser.add_argument("directory", type=Path, help="for models, of some 200 MB")
    parser.add_argument("names", nargs="*", metavar="name", help="in the table (default: all)")
    parser.add_argument("--python", type=Path, help="an interpreter that has torch already")
    arguments = parser.parse_args()
    names = arguments.names or list(ARCHITECTURES)
    unknown = sorted(set(names) - ARCHITECTURES.keys())
    if unknown:
        parser.error(f"no such architecture: {', '.join(unknown)}")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    python = arguments.python or make_environment(arguments.directory)
    export = [python, HERE / "export.py", "--vocab-size", str(VOCAB_SIZE), arguments.directory]
    subprocess.run([*export, *names], check=True)
    rows = []
    for name in names:
        start = time.perf_counter()
        rows.append(row(name, arguments.directory / directory_of(name)))
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    versions = json.loads((arguments.directory / "versions.json").read_text())
    print(machine())
    print(", ".join(f"{package} {version}" for package, version in versions.items()))
    print(f"{datetime.now(UTC):%Y-%m-%d}\n")
    print(table(("architecture", "backend", *WAY_NAMES), rows))


if __name__ == "__main__":
    main()
