from __future__ import annotations

import pytest

from fastovms.client.request_failed import RequestFailed, failed_with


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": [{"loc": ["a"]}]}', '[{"loc": ["a"]}]'),
        (b'{"other": 1}', '{"other": 1}'),
        (b"<html>\n Bad\tGateway", "<html> Bad Gateway"),
        (b"\xff\x1b[2J", "\ufffd\\u001b[2J"),
        (b"[" * 10000, "[" * 300),
        (b"", ""),
    ],
)
def test_the_words_of_an_answer(body: bytes, reason: str) -> None:
    error = failed_with(502, body)
    assert (error.kind, error.reason) == ("HTTP 502", reason)


def test_its_text() -> None:
    assert str(RequestFailed("timeout", "after 1 s")) == "timeout: after 1 s"
    assert str(RequestFailed("timeout", "")) == "timeout"
