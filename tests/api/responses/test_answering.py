"""The generation and the run that answer a request for a response."""

from __future__ import annotations

from itertools import count

import pytest

from fastovms.api.responses.answering import item_ids
from fastovms.api.wire.dialect import OPENAI, OVMS
from tests.api.responses.conftest import TOOL, V1, V3, ask


@pytest.mark.parametrize(
    ("dialect", "ids"), [(OPENAI, ["msg_0", "rs_1"]), (OVMS, ["msg-0", "rs-1"])]
)
def test_ids_have_the_form_of_the_dialect(dialect, ids):
    numbers = count()
    new_id = item_ids(lambda: str(next(numbers)), dialect)
    assert [new_id("msg"), new_id("rs")] == ids


@pytest.mark.parametrize("path", [V1, V3])
async def test_calls_have_ids_of_their_own(make, path):
    script = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    body = {"model": "fake", "input": "Hi", "tools": [TOOL]}
    status, answer = await ask(make(script * 2), "POST", path, body)
    assert status == 200
    ids = [item["call_id"] for item in answer["output"]]
    assert len(set(ids)) == 2
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)
