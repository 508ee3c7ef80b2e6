"""What is not done of a request is said in a header and in the log."""

from __future__ import annotations

import logging

import pytest

from fastovms.api.wire.warning_header import passed_over, warning_headers


@pytest.mark.parametrize(
    ("warnings", "header"),
    [
        ([], None),
        (passed_over(["tools[0] of type x"]),
         '299 - "passed over, as this server does not have it: tools[0] of type x"'),
        (["a is not done", 'nor "b\\"'], "299 - \"a is not done; nor 'b'\""),
        (["x" * 2000], f'299 - "{"x" * 1000}"'),
    ],
)  # fmt: skip
def test_warnings(warnings, header, caplog):
    with caplog.at_level(logging.WARNING):
        headers = warning_headers(warnings, "req-1")
    assert dict(headers).get("Warning") == header
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(headers)
    for record in caplog.records:
        assert record.getMessage().startswith(f"request req-1: {warnings[0][:100]}")


def test_nothing_is_passed_over():
    assert not passed_over([])
