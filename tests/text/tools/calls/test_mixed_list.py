"""Lists of calls in either notation."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools.calls.mixed_list import read_mixed_list
from tests.text.tools.calls.reading import read
from tests.text.tools.checks import call

F = call(0, "f", "{}")


@pytest.mark.parametrize(
    ("text", "is_whole", "pieces", "rest"),
    [
        ("[f()]a", True, F, "a"),
        (' [{"name": "f"}]', True, F, ""),
        ('{"name": "f"}]', True, F, "]"),
        ("[f(), g()]", False, [*F, Content(", g")], "()]"),
        ('[{"name": "g"}]', False, [Content('<c>[{"name": "g"')], "}]"),
        ("f()", False, [Content("<c>")], "f()"),
    ],
)
def test_a_list(text: str, is_whole: bool, pieces: list[Piece], rest: str) -> None:
    found = read(lambda scan, out: read_mixed_list(scan, out, "<c>", ["f"]), text)
    assert found == (is_whole, pieces, rest)
