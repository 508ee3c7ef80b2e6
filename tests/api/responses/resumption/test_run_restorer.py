"""A run is made again of what is kept, or its response fails and says why."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from fastovms.api.responses.resumption.kept_job import read_job, write_job
from fastovms.api.responses.resumption.run_restorer import CannotGoOn, RunRestorer
from fastovms.state.store import CutResponse, EventPack, ResponseKey
from tests.api.responses.conftest import V1, V3
from tests.api.responses.resumption.test_resumer import cut_after, start, take_over
from tests.api.responses.test_background import BODY, get, replayed


async def cut(make_replicas, path: str = V1) -> tuple[RunRestorer, ResponseKey, CutResponse, Any]:
    """A response of which three tokens are known, in the hands of another replica."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY, path)
    await cut_after(a, id, 3)
    b.keeper._resumer = None
    await take_over(b, clock)
    [key] = await b.store.take_over(b.resumer.models(), 1)
    found = await b.store.begin_attempt(*key)
    assert found is not None
    return RunRestorer(b.api.context, b.store), key, found, b.api


def delta_of(event: bytes) -> str:
    return orjson.loads(event).get("delta", "")


async def test_it_stands_where_it_was_cut(make_replicas):
    restorer, key, found, api = await cut(make_replicas)
    async with restorer.restored(key, found) as run:
        run.go_on()
    [request] = api.backend.submitted
    assert bytes(request.generated_token_ids) == b"Hel"
    assert "".join(delta_of(event) for _, event in run.log.events()) == "Hel"


def other_model(found: CutResponse, key: str) -> CutResponse:
    job = write_job(msgspec.structs.replace(read_job(found.job), model=key))
    assert job is not None
    return found._replace(job=job)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found._replace(job=b"{}"), "written by another version of the server"),
        (lambda found: other_model(found, "0 fake"), "the model fake has changed"),
        (lambda found: other_model(found, "0 gone"), "the model gone is no longer served"),
        (
            lambda found: found._replace(packs=[found.packs[0]._replace(outputs=b"other")]),
            "is not as it was kept",
        ),
        (
            lambda found: found._replace(packs=[EventPack(3, found.packs[0].data, None)]),
            "there are no events from 0 to 3",
        ),
    ],
)
async def test_nobody_can_go_on(make_replicas, change, message):
    restorer, key, found, _ = await cut(make_replicas)
    with pytest.raises(CannotGoOn, match=message):
        async with restorer.restored(key, change(found)):
            pass


@pytest.mark.parametrize("path", [V1, V3])
async def test_what_has_failed_tells_what_was_said(make_replicas, path):
    restorer, key, found, api = await cut(make_replicas, path)
    await restorer.fail(key, found, "gone")
    body = await get(api, key.id)
    assert (body["status"], body["error"]["message"]) == ("failed", "gone")
    events = await replayed(api, key.id, path)
    assert [event["sequence_number"] for event in events[:-1]] == list(range(len(events) - 1))
    assert events[-2]["type"] == "response.failed"
    assert "".join(event.get("delta", "") for event in events[:-1]) == "Hel"
