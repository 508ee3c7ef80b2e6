"""Tests every case of http_cases.json and `more_cases` over a real socket."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import CASES, Case

_SHORT = {"head_timeout": 0.2, "body_timeout": 0.2}
_SAMPLE = json.loads((Path(__file__).parent / "http_cases.json").read_text())["cases"]


def _pieces(case: dict[str, Any]) -> list[bytes]:
    if "raw" in case:
        return [ast.literal_eval(case["raw"])]
    if "parts" in case:
        return [b"".join(ast.literal_eval(text) * count for text, count in case["parts"])]
    return [ast.literal_eval(piece) for piece, _ in case["send"]]


@pytest.mark.slow
@pytest.mark.parametrize("case", _SAMPLE, ids=lambda case: case["id"])
async def test_case_of_the_json_file_gets_an_expected_answer(
    case: dict[str, Any], start: Start
) -> None:
    running = await start(**(_SHORT if "408" in case["expect"] else {}))
    pieces = _pieces(case)
    method = pieces[0].split(b" ")[0].decode("latin-1")
    at_end = 9 if case.get("close_after") else 1 + len(case.get("then", []))
    conversation = await talk(running.port, *pieces, answers=at_end)
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


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_own_case_gets_its_expected_statuses(case: Case, start: Start) -> None:
    running = await start(**(_SHORT if 408 in case.statuses or not case.raw else {}))
    methods = ["HEAD"] * case.raw.count(b"HEAD /") + ["GET"]
    at_end = len(case.statuses) + case.closed
    conversation = await talk(running.port, case.raw, answers=at_end)
    answers = conversation.answers(methods)
    assert [answer.status for answer in answers] == [s for s in case.statuses if s != 100]
    assert conversation.data.startswith(b"HTTP/1.1 100 Continue\r\n\r\n") == (100 in case.statuses)
    assert conversation.closed == case.closed
    assert not conversation.reset
    if case.body is not None:
        assert answers[0].body == case.body
    for answer in answers:
        assert "date" in answer.headers
        assert "x-request-id" in answer.headers
    if answers and case.closed:
        assert answers[-1].headers["connection"] == "close"
    assert all(request.path != "/smuggled" for request in running.site.requests)


def test_there_are_enough_cases() -> None:
    assert len(_SAMPLE) + len(CASES) >= 150
    assert len({case.id for case in CASES}) == len(CASES)
