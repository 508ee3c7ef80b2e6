"""Tests of `fastovms/parts/batches/endpoints.py`."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from msgspec import structs
from openai.types import Batch

from fastovms.errors import MalformedBody
from fastovms.params import LOWEST_PRIORITY, Task
from fastovms.parts.batches.endpoints import BatchRequest
from fastovms.parts.batches.service import BatchService
from fastovms.parts.batches.store import FileRecord
from fastovms.server_config import BatchConfig, FilesConfig
from tests.api.documented_values import of_files_and_batches
from tests.api.encoder_api import EncoderApi, served_encoder

# The endpoints of batches, whose lines are answered by the endpoints of models.


URL = "/v1/completions"


class Site:
    def __init__(self, api, path) -> None:
        self.api = api
        self.service = BatchService(path, FilesConfig(), BatchConfig(), time.time)
        self.service.start(api.router, api.context, lambda: 0)
        self.store = self.service._store

    async def add_input(self, *lines: dict, purpose: str = "batch", tenant: str = "") -> str:
        id = f"file-{len(self.store)}"
        partial = self.store.new_partial()
        partial.write_text("\n".join(map(json.dumps, lines)))
        await self.store.add(
            partial,
            FileRecord(
                id=id,
                tenant=tenant,
                name="a",
                purpose=purpose,
                size=partial.stat().st_size,
                created_at=1,
            ),
        )
        return id

    async def ask(self, method: str, path: str, body: object = None, tenant: str = ""):
        response = await self.api.call(method, f"/v1/batches{path}", body, tenant=tenant)
        return response.status, json.loads(response.body)

    async def create(self, **fields):
        body = {"endpoint": URL, "completion_window": "24h", **fields}
        return await self.ask("POST", "", body)

    async def ended(self, id: str) -> Batch:
        await asyncio.wait(self.service._runner._tasks.values())
        status, body = await self.ask("GET", f"/{id}")
        assert status == 200
        return Batch(**body)

    def results(self, id: str) -> dict[str, dict]:
        lines = map(json.loads, self.store.path_of(id).read_text().splitlines())
        return {line["custom_id"]: line for line in lines}


@pytest.fixture
async def site(make_api, tmp_path):
    site = Site(make_api("xyz"), tmp_path)
    yield site
    await site.service.close()


def line(custom_id: str, url: str = URL, **body: object) -> dict:
    body = {"model": "fake", "prompt": "ab", **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


async def test_lines_are_answered_behind_all_others(site) -> None:
    lines = [
        line("a", priority=-5),
        line("b", n=0),
        line("c", stream=True),
        line("d", prompt=5),
        line("e", max_tokens=2),
    ]
    id = await site.add_input(*lines)
    status, made = await site.create(input_file_id=id, metadata={"x": "y"})
    assert (status, made["status"], made["metadata"]) == (200, "validating", {"x": "y"})
    batch = await site.ended(made["id"])
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (4, 6)
    good, bad = site.results(batch.output_file_id), site.results(batch.error_file_id)
    assert good["a"]["response"]["body"]["choices"][0]["text"] == "xyz"
    assert set(good) == {"a", "e"}
    assert {id: found["response"]["status_code"] for id, found in bad.items()} == {
        "b": 400,
        "c": 400,
        "d": 400,
    }
    assert {request.priority for request in site.api.backend.submitted} == {LOWEST_PRIORITY}
    assert [found["id"] for found in (await site.ask("GET", ""))[1]["data"]] == [made["id"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "prompt": None}),
        ("/v1/responses", {"input": "a", "prompt": None}),
        ("/v3/completions", {}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "prompt": None},
        ),
    ],
)
async def test_batch_runs_at_each_endpoint_with_lowest_priority(
    make_api, tmp_path, path: str, body: dict
) -> None:
    from tests.api.chat_models import chat_model

    site = Site(make_api("xyz", chat=chat_model()), tmp_path)
    id = await site.add_input(line("a", path, **body))
    _, made = await site.create(input_file_id=id, endpoint=path)
    batch = await site.ended(made["id"])
    assert (batch.request_counts.completed, batch.errors) == (1, None)
    assert batch.usage.output_tokens == 4
    [request] = site.api.backend.submitted
    assert request.priority == LOWEST_PRIORITY
    await site.service.close()


PAIRS = {"query": "a", "documents": ["b", "c"]}
TEXTS = {"queries": "a", "documents": "b"}


@pytest.mark.parametrize(
    ("task", "path", "body", "answer"),
    [
        (Task.EMBEDDINGS, "/v1/embeddings", {"input": "ab"}, "data"),
        (Task.EMBEDDINGS, "/v3/embeddings", {"input": "ab"}, "data"),
        (Task.EMBEDDINGS, "/v1/score", TEXTS, "data"),
        (Task.RERANK, "/v1/rerank", PAIRS, "results"),
        (Task.RERANK, "/v3/rerank", PAIRS, "results"),
        (Task.RERANK, "/v1/score", TEXTS, "data"),
    ],
)
async def test_encoder_batch_completes_valid_lines_at_lowest_priority(
    tmp_path, task: Task, path: str, body: dict, answer: str
) -> None:
    site = Site(EncoderApi(served_encoder(task)), tmp_path)
    id = await site.add_input(line("a", path, prompt=None, **body), line("b", path, priority="x"))
    _, made = await site.create(input_file_id=id, endpoint=path)
    batch = await site.ended(made["id"])
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    [found] = site.results(batch.output_file_id).values()
    assert found["response"]["body"][answer]
    assert set(site.api.backend.priorities) == {LOWEST_PRIORITY}
    await site.service.close()
    site.api.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": "file-1"}, "input_file_id"),
        ({"input_file_id": "file-2"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": None}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "1w"}, "completion_window"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "x"}}, "output_expires_after.anchor"),
    ],
)
async def test_invalid_batch_is_refused(site, fields, param) -> None:
    id = await site.add_input(line("a"))
    await site.add_input(line("a"), purpose="user_data")
    await site.add_input(line("a"), tenant="other")
    status, body = await site.create(**{"input_file_id": id, **fields})
    assert (status, body["error"]["param"]) == (400, param)
    assert (await site.ask("GET", ""))[1]["data"] == []


async def test_running_batch_can_be_cancelled(site) -> None:
    site.api.backend.paused = True
    id = await site.add_input(line("a"), line("b"))
    _, made = await site.create(input_file_id=id)
    while not site.api.backend.submitted:  # noqa: ASYNC110 (threads read the line)
        await asyncio.sleep(0.001)
    status, body = await site.ask("POST", f"/{made['id']}/cancel")
    assert (status, body["status"]) == (200, "cancelling")
    assert (await site.ended(made["id"])).status == "cancelled"
    assert (await site.ask("POST", f"/{made['id']}/cancel"))[0] == 200


async def test_batch_is_hidden_from_other_tenants(site) -> None:
    id = await site.add_input(line("a"))
    _, made = await site.create(input_file_id=id)
    for method, path in (("GET", ""), ("POST", "/cancel")):
        status, _ = await site.ask(method, f"/{made['id']}{path}", tenant="b")
        assert status == 404
    assert (await site.ask("GET", "", tenant="b"))[1]["data"] == []
    assert (await site.ended(made["id"])).status == "completed"
    status, _ = await site.ask("POST", f"/{made['id']}/cancel")
    assert status == 400


@pytest.mark.parametrize("has_directory", [True, False])
async def test_server_without_batches_answers_with_the_reason(
    make_api, tmp_path, has_directory: bool
) -> None:
    """A file in place of the directory of batches makes batches unavailable."""
    (tmp_path / "batches").touch()
    site = Site(make_api("x"), tmp_path if has_directory else None)
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/batch_a", None),
        ("POST", "/batch_a/cancel", None),
        ("POST", "", {}),
    ):
        status, answer = await site.ask(method, path, body)
        words = "batches: Not a directory" if has_directory else "see --state-dir"
        assert status == (503 if has_directory else 400)
        assert words in answer["error"]["message"]
    if has_directory:
        assert (await site.api.call("GET", "/v1/files")).status == 200
    await site.service.close()


async def test_batch_with_an_unreadable_record_answers_503(make_api, tmp_path) -> None:
    (tmp_path / "batches" / "records").mkdir(parents=True, mode=0o700)
    (tmp_path / "batches" / "records" / "batch_a.json").write_text("{}")
    site = Site(make_api("x"), tmp_path)
    assert (await site.ask("GET", "/batch_a"))[0] == 503
    assert (await site.ask("GET", "/batch_b"))[0] == 404
    await site.service.close()


@pytest.mark.parametrize(
    ("fields", "age"),
    [
        ({}, 30 * 24 * 3600),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, 3600),
    ],
)
async def test_result_files_expire_after_the_requested_or_default_age(
    site, fields: dict, age: int
) -> None:
    id = await site.add_input(line("a"), line("b", prompt=5))
    _, made = await site.create(input_file_id=id, **fields)
    batch = await site.ended(made["id"])
    for id in (batch.output_file_id, batch.error_file_id):
        file = site.store.find("", id)
        assert file.expires_at - file.created_at == age


async def test_a_start_erases_what_has_expired(make_api, tmp_path) -> None:
    site = Site(make_api("xyz"), tmp_path)
    id = await site.add_input(line("a"))
    record = site.store.find("", id)
    expired = structs.replace(record, id="file-old", expires_at=5)
    partial = site.store.new_partial()
    partial.write_bytes(b"x" * record.size)
    await site.store.add(partial, expired)
    path = site.store.path_of("file-old")
    assert path.exists()
    await site.service.close()
    site = Site(make_api("xyz"), tmp_path)
    await site.service.close()
    assert not path.exists()
    assert len(site.store) == 1


BATCH_ROWS = {
    field: values
    for field, values in of_files_and_batches().items()
    if field != "purpose" and "[" not in field
}


def test_every_field_has_a_row() -> None:
    assert set(BATCH_ROWS) == set(BatchRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("field", "members", "is_taken"),
    [
        (field, members, is_taken)
        for field, values in BATCH_ROWS.items()
        for is_taken, examples in zip((True, False), values, strict=True)
        for members in examples
    ],
)
async def test_documented_batch_values_are_accepted_or_refused(
    site, field: str, members: dict, is_taken: bool
) -> None:
    await site.add_input(line("a"))
    await site.add_input(line("a"), purpose="user_data")
    fields = {"input_file_id": "file-0", "endpoint": URL, "completion_window": "24h", **members}
    for prefix in ("/v1", "/v3", "/v3/v1"):
        status, answer = await site.api.post(f"{prefix}/batches", fields)
        if is_taken:
            assert status == 200, answer
        else:
            error = answer["error"]
            named = error["param"] if prefix == "/v1" else error
            assert (status, field in named) == (400, True), answer


# The endpoints that batches may use.


@pytest.mark.parametrize(
    ("url", "exists"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/responses", True),
        ("/v3/completions", True),
        ("/v2/rerank", True),
        ("/v2/completions", False),
        ("/v1/batches", False),
        ("/v1/models", False),
        ("/v1/responses/x", False),
        ("completions", False),
        ("http://other/v1/completions", False),
    ],
)
def test_only_routes_that_run_a_model_are_batch_endpoints(make_api, url: str, exists: bool) -> None:
    from fastovms.parts.batches.endpoints import BatchEndpoints

    api = make_api()
    endpoints = BatchEndpoints(api.router, api.context.models, 10)
    assert endpoints.exists(url) is exists
    rules = endpoints.rules(None)
    assert rules.find_model("fake", "/v1/completions") == "fake"
    assert rules.find_model("other", "/v1/completions") is None
    assert rules.find_model(None, "/v3/completions") is None
    assert "/v1/completions" in endpoints.all()
    with pytest.raises(MalformedBody, match="nested more than 100 levels"):
        rules.weigh(b"[" * 101 + b"]" * 101)
