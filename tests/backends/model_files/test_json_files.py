from __future__ import annotations

import pytest

from fastovms.backends.model_files.json_files import (
    first_integer,
    is_integer,
    read_json,
    read_optional,
)
from fastovms.errors import ConfigurationError


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read"), ("{", "not valid JSON"), ("[1]", "not a JSON object")],
)
def test_faults(tmp_path, content, words):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        read_json(path)
    assert read_optional(path) == ([1] if content == "[1]" else None)


def test_integers():
    assert first_integer([{"a": True}, {"a": 5, "b": 6}], ("b", "a")) == 6
    assert first_integer([{}], ("a",)) is None
    assert [is_integer(value) for value in (1, True, 1.0, "1")] == [True, False, False, False]
