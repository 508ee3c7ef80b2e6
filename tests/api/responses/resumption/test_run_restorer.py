"""A run is made again of what is kept, or its response fails and says why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fastovms.api.responses.background import BackgroundRun
from fastovms.api.responses.output.response_object import ResponseStatus, failed
from fastovms.api.responses.resumption.run_restorer import CannotGoOn, RunRestorer
from fastovms.state.store import CutResponse, EventPack, ResponseKey
from tests.api.responses.conftest import V1, V3
from tests.api.responses.resumption.test_resumer import cut_after, start, take_over
from tests.api.responses.test_background import BODY, get, replayed


async def cut(make_replicas, path: str = V1) -> tuple[RunRestorer, ResponseKey, CutResponse, Any]:
    """A response of which three tokens are known, in the hands of another replica."""
    (a, b), clock = make_replicas("a", "b", resumes=True)
    id = await start(a.api, BODY, path)
    await cut_after(a, [id], 3)
    b.keeper._resumer = None
    await take_over(b, clock)
    [response] = await b.store.take_over(b.resumer.models(), 1)
    assert response.model == b.resumer.models()[0]
    found = await b.store.begin_attempt(*response.key)
    assert found is not None
    return RunRestorer(b.api.context, b.store), response.key, found, b.api


async def restored(restorer: RunRestorer, key: ResponseKey, found: CutResponse) -> BackgroundRun:
    async with restorer.held(restorer.models()[0]) as model:
        return await restorer.restored(key, found, model)


def delta_of(event: bytes) -> str:
    return orjson.loads(event).get("delta", "")


async def test_it_stands_where_it_was_cut(make_replicas):
    restorer, key, found, api = await cut(make_replicas)
    run = await restored(restorer, key, found)
    run.go_on()
    [request] = api.backend.submitted
    assert bytes(request.generated_token_ids) == b"Hel"
    assert request.priority == -1, "it came before those that wait now"
    assert "".join(delta_of(event) for _, event in run.log.events()) == "Hel"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found._replace(job=b"{}"), "written by another version of the server"),
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
        await restored(restorer, key, change(found))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("0 fake", "the model fake has changed since the response was begun"),
        ("0 gone", "the model gone is no longer served since the response was begun"),
    ],
)
async def test_there_is_no_such_model_any_more(make_api, make_state, key, message):
    api = make_api()
    with pytest.raises(CannotGoOn, match=message):
        async with RunRestorer(api.context, make_state().store).held(key):
            pass


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize(
    ("status", "last"), [(failed("gone"), "failed"), (ResponseStatus("cancelled"), "incomplete")]
)
async def test_what_has_ended_tells_what_was_said(make_replicas, path, status, last):
    restorer, key, found, api = await cut(make_replicas, path)
    late = EventPack(found.packs[-1].first + 99, found.packs[-1].data)
    assert await restorer._store.add_events(*key, late), "damaged: others are missing before it"
    await restorer.end(key, status)
    body = await get(api, key.id)
    assert (body["status"], body["error"]) == (status.name, status.error)
    events = await replayed(api, key.id, path)
    assert [event["sequence_number"] for event in events[:-1]] == list(range(len(events) - 1))
    assert events[-2]["type"] == f"response.{last}"
    assert "".join(event.get("delta", "") for event in events[:-1]) == "Hel"
