"""The arrows between the rooms of the package point one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.layers import FOUNDATION, RANKS, STRANGERS

PACKAGE = Path(__file__).parent.parent / "fastovms"
MAX_LINES = 900

RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
FOLDERS = {room.split(".")[0] for room in RANK if (PACKAGE / room.split(".")[0]).is_dir()}


def modules() -> dict[tuple[str, ...], Path]:
    """All modules by their names in the package, packages by the name of their folder."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").parts
        found[name[:-1] if name[-1] == "__init__" else name] = path
    return found


MODULES = modules()


def room_of(module: tuple[str, ...]) -> str:
    """Returns the room that a module lies in, such as ("engine", "model", "paging")."""
    if not module or module == ("__main__",):
        return "cli"
    if module[0] in FOUNDATION:
        return "foundation"
    if len(module) > 1 and f"{module[0]}.{module[1]}" in RANK:
        return f"{module[0]}.{module[1]}"
    return module[0]


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields line and module of each import of this package, wherever it stands. `package` is what
    relative imports start from, without the package's own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (PACKAGE.name, *package)[: len(package) + 2 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            while rest and tuple(rest) not in MODULES:
                rest.pop()  # the name of something in the module
            if first == PACKAGE.name and rest:
                yield node.lineno, tuple(rest)


def may_import(room: str, other: str) -> bool:
    folders = {room.split(".")[0], other.split(".")[0]}
    if len(folders) > 1 and folders <= set(STRANGERS):
        return False
    return room == other or RANK[other] < RANK[room]


def wrong_arrows(source: str, room: str, package: tuple[str, ...] = ()) -> list[str]:
    return [
        f"line {line}: {room} imports {'.'.join(module)}"
        for line, module in imports(ast.parse(source), package)
        if not may_import(room, room_of(module))
    ]


def test_there_are_no_more_than_a_dozen_ranks() -> None:
    assert len(RANKS) <= 12


def test_every_room_has_a_rank() -> None:
    assert {room_of(module) for module in MODULES} == set(RANK)
    rooms = {
        f"{path.parent.name}.{path.name}"
        for folder in FOLDERS
        for path in (PACKAGE / folder).iterdir()
        if (path / "__init__.py").exists()
    }
    assert rooms - set(RANK) == set(), "folders that stand in no rank"


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_imports(module: tuple[str, ...]) -> None:
    path = MODULES[module]
    if not module:
        assert not list(imports(ast.parse(path.read_text()), ()))
        return
    package = path.relative_to(PACKAGE).parts[:-1]
    assert wrong_arrows(path.read_text(), room_of(module), package) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    arrows = {
        module: {to for _, to in imports(ast.parse(path.read_text()), module[:-1]) if to != module}
        for module, path in MODULES.items()
        if path.name != "__init__.py"
    }
    TopologicalSorter(arrows).prepare()


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_no_file_is_too_long(module: tuple[str, ...]) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("http", "import fastovms.engine"),
        ("http", "from fastovms import text"),
        ("http", "def f():\n    from ..api import routes"),
        ("text", "from fastovms.backends.choice import load"),
        ("foundation", "import fastovms.http.routing as m"),
        ("api", "from fastovms.app import serve"),
        ("engine.model", "from fastovms.engine.scheduling.sequence import Sequence"),
        ("engine.scheduling", "from . import engine"),
        ("api.chat", "from fastovms.api.responses import create"),
    ],
)
def test_a_wrong_arrow_is_found(room: str, source: str) -> None:
    assert wrong_arrows(source, room, tuple(room.split(".")[:1]))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("api", "from fastovms.http.routing.messages import Request\nimport fastovms.api.wire"),
        ("http", "from .routing import messages\nfrom fastovms import __version__\nimport os.path"),
        ("engine", "from fastovms.engine.model.model import Model"),
        ("cli", "from fastovms.app import serve"),
    ],
)
def test_a_right_arrow_is_fine(room: str, source: str) -> None:
    assert wrong_arrows(source, room, tuple(room.split(".")[:1])) == []
