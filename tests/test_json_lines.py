"""JSON is one line for all that splits text."""

from __future__ import annotations

import orjson
import pytest

from fastovms import json_lines
from fastovms.json_lines import on_one_line


@pytest.mark.parametrize("end", [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"])
def test_no_text_ends_a_line(end: str) -> None:
    value = {f"a{end}b": f"é{end}\\{end}"}
    line = on_one_line(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    assert len(line.decode().splitlines()) == 1
    assert line.endswith(b"\n")
    assert orjson.loads(line) == value


@pytest.mark.parametrize("size", range(1, 9))
def test_a_long_text_is_looked_at_in_pieces(monkeypatch, size: int) -> None:
    monkeypatch.setattr(json_lines, "_PIECE", size)
    value = "a\u2028é\x85\U0001f600b\u2029" * 3
    line = on_one_line(orjson.dumps(value))
    assert line.count(b"\\u2028") == line.count(b"\\u0085") == line.count(b"\\u2029") == 3
    assert orjson.loads(line) == value
