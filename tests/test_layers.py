"""Imports between top-level packages point one way, and no files import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.layers import (
    CHAT,
    LIBRARIES,
    MAX_CHAT_FILES,
    MAX_CHAT_LINES,
    NEEDED_PARTS,
    RANKS,
    USERS_OF_PARTS,
)

PACKAGE = Path(__file__).parent.parent / "fastovms"
MAX_LINES = 900
RANK = {layer: rank for rank, layers in enumerate(RANKS) for layer in layers}


def module_of(path: Path) -> tuple[str, ...]:
    """Returns the name of a module within the package, of a package that of its folder."""
    name = path.relative_to(PACKAGE).with_suffix("").parts
    return name[:-1] if name[-1] == "__init__" else name


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def layer_of(module: tuple[str, ...]) -> str:
    return "cli" if not module or module == ("__main__",) else module[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields line and module of each import of this package, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            while rest and tuple(rest) not in MODULES:
                rest.pop()  # a name within the module
            if first == PACKAGE.name and rest:
                yield node.lineno, tuple(rest)


@cache
def imports_of(module: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    return tuple(imports(ast.parse(MODULES[module].read_text())))


def wrong_imports(found: Iterable[tuple[int, tuple[str, ...]]], layer: str) -> list[str]:
    return [
        f"line {line}: {layer} imports {'.'.join(module)}"
        for line, module in found
        if layer_of(module) != layer and RANK[layer_of(module)] >= RANK[layer]
    ]


def test_every_layer_has_a_rank() -> None:
    assert {layer_of(module) for module in MODULES} == set(RANK)


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_imports_and_length(module: tuple[str, ...]) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= MAX_LINES
    assert wrong_imports(imports_of(module), layer_of(module)) == []
    assert module or not imports_of(module), "importing the package imports no part"


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {
        module: {to for _, to in imports_of(module) if to != module}
        for module, path in MODULES.items()
        if path.name != "__init__.py"
    }
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_know_nothing_of_the_server(library: str) -> None:
    folder = tuple(library.split("."))
    own = [module for module in MODULES if module[: len(folder)] == folder]
    used = {to for module in own for _, to in imports_of(module)}
    assert {".".join(to) for to in used.difference(own)} == LIBRARIES[library]


def test_a_chat_imports_no_part_and_stays_small() -> None:
    found = {tuple(name.split(".")) for name in CHAT}
    waiting = list(found)
    while waiting:
        module = waiting.pop()
        parents = [module[:length] for length in range(1, len(module))]
        used = {to for _, to in imports_of(module)}
        new = {to for to in (*used, *parents) if to in MODULES} - found
        found |= new
        waiting += new
    assert not [module for module in found if module[0] == "parts"]
    assert len(found) <= MAX_CHAT_FILES
    assert sum(len(MODULES[module].read_text().splitlines()) for module in found) <= MAX_CHAT_LINES


@pytest.mark.parametrize("module", sorted(MODULES), ids=".".join)
def test_parts_are_used_where_they_are_put_together(module: tuple[str, ...]) -> None:
    used = {to[1] for _, to in imports_of(module) if to[0] == "parts"}
    if module[:1] == ("parts",):
        own = module[1] if len(module) > 1 else ""
        assert used <= {own, *NEEDED_PARTS.get(own, ())}
    else:
        assert not used or layer_of(module) in USERS_OF_PARTS


@pytest.mark.parametrize(
    ("layer", "source", "is_wrong"),
    [
        ("http", "import fastovms.engine", True),
        ("http", "from fastovms import text, media", False),
        ("text", "from fastovms.app.choice import load", True),
        ("errors", "import fastovms.http as m", True),
        ("api", "def f():\n    from fastovms.app import serve", True),
        ("api", "from fastovms.http.messages import Request\nimport os.path", False),
        ("cli", "from fastovms.app import serve", False),
    ],
)
def test_a_wrong_import_is_found(layer: str, source: str, is_wrong: bool) -> None:
    assert bool(wrong_imports(imports(ast.parse(source)), layer)) == is_wrong
