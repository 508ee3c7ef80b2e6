"""The arrows between the layers point one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fastovms"

LAYERS = (
    {"quoting"},
    {"errors", "json_types", "log_format", "params"},
    {"config", "disk_cache", "fair_queue", "free_memory", "metrics"},
    {"http", "text", "engine", "media", "state", "gguf"},
    {"backends"},
    {"api"},
    {"service", "loading", "hub", "files", "textproto", "plugin_config"},
    {"graph"},
    {"sources"},
    {"config_list"},
    {"app", "config_edit", "tune"},
    {"values"},
    {"flags", "foreign_flags"},
    {"spelling", "chosen", "configure", "environment"},
    {"command_line"},
    {"cli"},
    {"__main__"},
)
"""From the lowest. A part imports from lower layers and from itself; parts of one layer do not
know each other."""

RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and part of each import of this package, wherever it stands. `module` is the package
    that relative imports start from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module[: len(module) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name and rest and rest.split(".")[0] in RANK:
                yield node.lineno, rest.split(".")[0]


def wrong_arrows(source: str, part: str, module: tuple[str, ...]) -> list[str]:
    return [
        f"line {line}: {part} imports {imported}"
        for line, imported in imports(ast.parse(source), module)
        if imported != part and RANK[imported] >= RANK[part]
    ]


def test_every_part_has_a_layer():
    parts = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__"} == set(RANK)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports(path):
    if path == PACKAGE / "__init__.py":
        assert not list(imports(ast.parse(path.read_text()), (PACKAGE.name,)))
        return
    module = path.relative_to(PACKAGE.parent).parts[:-1]
    assert wrong_arrows(path.read_text(), part_of(path), module) == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("http", "import fastovms.engine"),
        ("http", "from fastovms import text"),
        ("http", "def f():\n    from ..api import dialect"),
        ("text", "from fastovms.backends.base import Backend"),
        ("config", "import fastovms.metrics as m"),
        ("api", "from fastovms.app import serve"),
    ],
)
def test_a_wrong_arrow_is_found(part, source):
    assert wrong_arrows(source, part, (PACKAGE.name, part))


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("api", "from fastovms.http.messages import Request\nimport fastovms.api.dialect"),
        ("http", "from . import messages\nfrom fastovms import __version__\nimport os.path"),
        ("cli", "from fastovms.app import serve"),
    ],
)
def test_a_right_arrow_is_fine(part, source):
    assert wrong_arrows(source, part, (PACKAGE.name, part)) == []
