"""Downloads releases of Python packages, whose files are the texts to edit and read."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

RELEASES: Final = (
    ("click", "8.1.3", "8.1.7"),
    ("flask", "2.3.3", "3.0.3"),
    ("jinja2", "3.1.2", "3.1.4"),
    ("werkzeug", "2.3.7", "3.0.3"),
    ("requests", "2.31.0", "2.32.3"),
    ("urllib3", "2.0.7", "2.2.1"),
    ("httpx", "0.26.0", "0.27.0"),
    ("rich", "13.6.0", "13.7.1"),
    ("attrs", "23.1.0", "23.2.0"),
    ("packaging", "23.2", "24.0"),
    ("starlette", "0.36.3", "0.37.2"),
    ("anyio", "4.2.0", "4.3.0"),
)
"""The packages, with an older and a newer release of each."""

_SENTENCE: Final = re.compile(r"[A-Z][^.\n`:<>|*=_(){}\[\]]{40,160}\.(?=\s)")


class Change(NamedTuple):
    """The same lines of a file in two releases: `old` and `new` differ."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Package:
    """Two releases of a package.

    Attributes:
        old, new: the texts of its modules by path.
    """

    name: str
    old: dict[str, str]
    new: dict[str, str]

    def changes(self, num_lines: int) -> Iterator[Change]:
        """Yields the changed parts of files, each with about `num_lines` lines. Parts that were
        rewritten entirely are omitted."""
        for path in sorted(self.old.keys() & self.new.keys()):
            old = self.old[path].splitlines(keepends=True)
            new = self.new[path].splitlines(keepends=True)
            for old_part, new_part in _parts(old, new, num_lines):
                if old_part != new_part and max(len(old_part), len(new_part)) < 2 * num_lines:
                    yield Change(path, "".join(old_part), "".join(new_part))

    @cached_property
    def sentences(self) -> list[str]:
        """Returns the sentences of its docstrings."""
        found: dict[str, None] = {}
        for text in self.old.values():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    plain = " ".join((ast.get_docstring(node) or "").split()) + " "
                    found.update(dict.fromkeys(_SENTENCE.findall(plain)))
        return list(found)


def fetch_packages(directory: Path) -> list[Package]:
    """Returns the packages of `RELEASES`, and downloads those that are missing in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        Package(
            name, _modules(_wheel(directory, name, old)), _modules(_wheel(directory, name, new))
        )
        for name, old, new in RELEASES
    ]


def _wheel(directory: Path, name: str, version: str) -> Path:
    wheels = _wheels(directory, f"{name}-{version}-")
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(directory), f"{name}=={version}"]
        subprocess.run(command, check=True)
        wheels = _wheels(directory, f"{name}-{version}-")
    (wheel,) = wheels
    return wheel


def _wheels(directory: Path, prefix: str) -> list[Path]:
    """Returns the wheels of a release. Their names may contain capital letters."""
    return [path for path in directory.glob("*.whl") if path.name.lower().startswith(prefix)]


def _modules(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        paths = sorted(path for path in archive.namelist() if path.endswith(".py"))
        return {path: archive.read(path).decode("utf-8") for path in paths}


def _parts(old: list[str], new: list[str], num_lines: int) -> Iterator[tuple[list[str], list[str]]]:
    """Splits two versions of a file at lines that are equal in both."""
    old_start = new_start = 0
    for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            if block.a + offset - old_start >= num_lines:
                yield old[old_start : block.a + offset], new[new_start : block.b + offset]
                old_start, new_start = block.a + offset, block.b + offset
    yield old[old_start:], new[new_start:]
