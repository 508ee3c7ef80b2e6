"""Each module with logic has a test file of its name, and each test file has its module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mirror import WHOLE_PIECES

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
PACKAGE = REPOSITORY / "fastovms"
OTHERS = ("bench", "clients", "deploy", "docs")
"""Folders beside the package that have rooms in `tests/` too."""

MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
)
TEST_FILES = sorted(
    path.relative_to(TESTS).as_posix()
    for path in TESTS.rglob("test_*.py")
    if path.parent != TESTS and path.relative_to(TESTS).parts[0] not in OTHERS
)


def named_test(module: str) -> str:
    path = Path(module)
    return (path.parent / f"test_{path.name}").as_posix()


def is_plain(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function does nothing: it declares what others do, or names a value."""
    body = [
        statement
        for statement in function.body
        if not isinstance(statement, ast.Pass)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    if not body:
        return True
    [first, *more] = body
    if more or not isinstance(first, ast.Return):
        return False
    value = first.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return value is None or isinstance(value, ast.Name | ast.Constant)


def has_logic(source: str) -> bool:
    """Whether a module has more than types, protocols and tables."""
    return not all(
        is_plain(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_module_with_logic_has_a_test_file_of_its_name(module: str) -> None:
    tested = (TESTS / named_test(module)).exists()
    assert tested or not has_logic((PACKAGE / module).read_text()), f"no {named_test(module)}"


@pytest.mark.parametrize("path", TEST_FILES)
def test_a_test_file_has_a_module_or_tests_a_whole_piece(path: str) -> None:
    folder, name = Path(path).parent, Path(path).name
    has_module = (PACKAGE / folder / name.removeprefix("test_")).exists()
    assert has_module != (path in WHOLE_PIECES)


def test_the_table_names_no_file_that_is_gone() -> None:
    assert set(WHOLE_PIECES) <= set(TEST_FILES)


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return 1 + 1",
        "class A:\n    def f(self): self.x = 1",
        "async def f():\n    '''Waits.'''\n    await g()",
        "def f():\n    def g(): h()\n    return g",
    ],
)
def test_logic_is_found(source: str) -> None:
    assert has_logic(source)


@pytest.mark.parametrize(
    "source",
    [
        "A = 1 + 1",
        "class A(Protocol):\n    def f(self) -> int:\n        '''Returns it.'''\n        ...",
        "class A:\n    @property\n    def f(self): return self.x.y",
        "def f():\n    '''Does nothing.'''",
        "def f():\n    return None",
    ],
)
def test_types_and_tables_have_no_logic(source: str) -> None:
    assert not has_logic(source)
