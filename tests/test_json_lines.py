"""JSON is one line for all that splits text."""

from __future__ import annotations

import orjson
import pytest

from fastovms.json_lines import on_one_line


@pytest.mark.parametrize("end", [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"])
def test_no_text_ends_a_line(end: str) -> None:
    value = {f"a{end}b": f"é{end}\\{end}"}
    line = on_one_line(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    assert len(line.decode().splitlines()) == 1
    assert line.endswith(b"\n")
    assert orjson.loads(line) == value
