"""Every row of the compatibility table holds: what it takes is taken, what it refuses is refused by
its name, below both prefixes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fastovms.api.schemas import CompletionRequest
from tests.fakes import FakeStream

TABLE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BODY = {"model": "fake", "prompt": "ab"}
PREFIXES = ("/v1", "/v3", "/v3/v1")


class Row(NamedTuple):
    field: str
    takes: dict[str, list[dict]]
    refuses: dict[str, list[dict]]


def quoted(text: str, field: str) -> list[dict]:
    """The values in backticks, as members of a body."""
    values = [json.loads(value) for value in re.findall(r"`([^`]+)`", text)]
    return [
        value if isinstance(value, dict) and field in value else {field: value} for value in values
    ]


def examples(cell: str, field: str) -> tuple[list[dict], list[dict]]:
    found = re.search(r"[Tt]akes (.+), refuses (.+)$", cell)
    assert found is not None, f"{field}: a cell says what it takes and refuses: {cell}"
    return quoted(found[1], field), quoted(found[2], field)


def rows() -> Iterator[Row]:
    for line in TABLE.read_text().partition("## Completions")[2].splitlines():
        if not line.startswith("| `"):
            continue
        name, *others, v1, v3 = (cell.strip() for cell in line.strip("|").split(" | "))
        assert len(others) == 3, line
        field = name.strip("` |")
        of_v1 = examples(v1, field)
        of_v3 = of_v1 if "akes " not in v3 else examples(v3, field)
        yield Row(
            field,
            {prefix: (of_v1 if prefix == "/v1" else of_v3)[0] for prefix in PREFIXES},
            {prefix: (of_v1 if prefix == "/v1" else of_v3)[1] for prefix in PREFIXES},
        )


ROWS = list(rows())


def cases(which: str) -> list[tuple[str, str, dict]]:
    return [
        (prefix, row.field, members)
        for row in ROWS
        for prefix, values in getattr(row, which).items()
        for members in values
    ]


def test_every_field_has_a_row():
    assert sorted(row.field for row in ROWS) == sorted(CompletionRequest.__struct_fields__)
    for row in ROWS:
        for prefix in PREFIXES:
            assert row.takes[prefix], row.field
            assert row.refuses[prefix], row.field


@pytest.mark.parametrize(("prefix", "field", "members"), cases("takes"))
async def test_what_is_taken(make_api, prefix, field, members):
    stream = FakeStream()
    body = json.dumps({**BODY, **members}).encode()
    response = await make_api("xyz").call("POST", f"{prefix}/completions", body, stream)
    if members.get("stream"):
        assert response is None
        assert stream.events[-1] == "[DONE]"
        assert not any("error" in event for event in stream.events[:-1])
    else:
        assert response is not None
        assert response.status == 200, response.body


@pytest.mark.parametrize(("prefix", "field", "members"), cases("refuses"))
async def test_what_is_refused(make_api, prefix, field, members):
    api = make_api("xyz")
    status, answer = await api.post(f"{prefix}/completions", {**BODY, **members})
    error = answer["error"]
    if prefix == "/v1":
        assert field in error["param"] or field in error["message"]
        error = error["message"]
    assert field in error, error
    unknown = members == {"model": "other"}
    of_body = prefix != "/v1" and field in ("model", "stream")
    assert status == (404 if unknown else 412 if of_body else 400)
    assert api.backend.submitted == []
