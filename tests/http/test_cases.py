"""Every case of http_cases.json (and of our own more_cases.json) over a real socket."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.client import talk
from tests.http.conftest import Start

_HERE = Path(__file__).parent
_CASES = [
    case
    for name in ("http_cases.json",)
    for case in json.loads((_HERE / name).read_text())["cases"]
]


def _pieces(case: dict[str, Any]) -> list[bytes]:
    if "raw" in case:
        return [ast.literal_eval(case["raw"])]
    if "parts" in case:
        return [b"".join(ast.literal_eval(text) * count for text, count in case["parts"])]
    return [ast.literal_eval(piece) for piece, _ in case["send"]]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["id"])
async def test_case(case: dict[str, Any], start: Start) -> None:
    running = await start()
    pieces = _pieces(case)
    method = pieces[0].split(b" ")[0].decode("latin-1")
    conversation = await talk(running.port, *pieces)
    answers = conversation.answers([method])
    assert len(answers) <= case["max_responses"]
    assert not conversation.reset

    outcomes = [str(answer.status) for answer in answers]
    if not outcomes:
        assert conversation.closed, "neither an answer nor a close"
        outcomes = ["close"]
    assert outcomes[0] in case["expect"]
    for expected, outcome in zip(case.get("then", []), outcomes[1:], strict=True):
        assert outcome in expected
    if "close_after" in case:
        assert conversation.closed is case["close_after"]
    if "echo" in case and outcomes[0] == "200":
        assert answers[0].body == case["echo"].encode()
    assert all(request.path != "/smuggled" for request in running.site.requests)
