"""Returns maps of the package, read from the code, for architecture.md: its tree and its layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fastovms
from tests.layers import FOUNDATION, RANKS

PACKAGE: Final = Path(fastovms.__file__).parent
_NO_ROOMS: Final = {"__pycache__", "demo_model", "static"}


def tree() -> str:
    """Returns a block with every folder two levels deep and every file at the top, each with the
    first line of its docstring."""
    lines = [(f"{PACKAGE.name}/", "")]
    for folder in _folders(PACKAGE):
        lines.append((f"  {folder.name}/", _summary(folder / "__init__.py")))
        lines += [
            (f"    {room.name}/", _summary(room / "__init__.py")) for room in _folders(folder)
        ]
    lines.append(("  demo_model/", "The built-in model."))
    lines += [
        (f"  {path.name}", _summary(path))
        for path in sorted(PACKAGE.glob("*.py"))
        if not path.name.startswith("__")
    ]
    width = max(len(name) for name, _ in lines)
    return _block(f"{name:<{width}}  {summary}".rstrip() for name, summary in lines)


def ranks() -> str:
    """Returns a block with the rooms of each rank, the highest first."""
    return _block(
        f"{rank:>2}  {'  '.join(sorted(room.replace('.', '/') for room in rooms))}"
        for rank, rooms in reversed(list(enumerate(RANKS)))
    )


def foundation() -> str:
    """Names the files that are one room at the package's root."""
    return ", ".join(f"`{name}`" for name in sorted(FOUNDATION))


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and p.name not in _NO_ROOMS)


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path} has no docstring"
    return docstring.partition("\n\n")[0].replace("\n", " ")


def _block(lines: Iterator[str]) -> str:
    text = "\n".join(lines)
    return f"```text\n{text}\n```"
