"""Tests of `fastovms/parts/media/files.py`: files in requests of every API."""

from __future__ import annotations

from base64 import b64encode
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest

from fastovms.errors import NotFound, StateFailed
from fastovms.parts.media import files as api_documents
from fastovms.parts.media.documents import read_pdf
from fastovms.parts.media.files import Documents
from fastovms.server_config import MediaConfig
from tests.api.chat_models import chat_model, prompt_of
from tests.fakes import FakeStream, model_info
from tests.media.pdf_files import pdf_file

CHATS, TURNS, CLAUDE = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PDF = b64encode(pdf_file(["The sum is 7."])).decode()
TEXT = b64encode("Grüße".encode()).decode()


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts, {"type": "text", "text": "Sum?"}]}


def chat(file: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    return {"model": "fake", "messages": [user({"type": "file", "file": file}), *more]}


def turn(file: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    return {"model": "fake", "input": [user({"type": "input_file", **file}), *more]}


def claude(file: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    source: dict[str, Any] = {"type": "file", "file_id": file.get("file_id")}
    if "file_data" in file:
        data = str(file["file_data"]).partition("base64,")[2] or file["file_data"]
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
    document = {"type": "document", "source": source, "title": file.get("filename")}
    return {"model": "fake", "max_tokens": 9, "messages": [user(document), *more]}


FORMS = {CHATS: chat, "/v3/chat/completions": chat, TURNS: turn, CLAUDE: claude}
PLACES = {CHATS: "messages[0].content[0].file", TURNS: "input[0].content[0]",
          CLAUDE: "messages[0].content[0].source"}  # fmt: skip


@pytest.fixture
def make(make_api, tmp_path):
    async def find(tenant: str, id: str) -> Path:
        if tenant or not (tmp_path / id).exists():
            raise NotFound(f"there is no file {id}")
        return tmp_path / id

    made = []

    def api(**limits: int) -> Any:
        documents = Documents(MediaConfig(**limits), find, read_pdf)
        made.append(documents)
        model = model_info(max_model_len=2000)
        return make_api("ok", model=model, chat=chat_model(), documents=documents)

    yield api
    for documents in made:
        documents.close()


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ({"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"}, "The sum is 7."),
        ({"file_data": PDF}, "The sum is 7."),
        ({"file_data": f"data:text/csv;base64,{TEXT}", "filename": "a.csv"}, "Grüße"),
        ({"file_id": "file-1"}, "The sum is 7."),
    ],
)
async def test_a_file_is_read(make, tmp_path, path, file, text):
    (tmp_path / "file-1").write_bytes(pdf_file(["The sum is 7."]))
    api = make()
    response = await api.call("POST", path, FORMS[path](file), FakeStream())
    assert response.status == 200, response.body
    assert f"{text}\nSum?" in prompt_of(api)
    assert ("filename" not in file) or file["filename"] in prompt_of(api)
    assert "Warning" not in dict(response.headers)


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(
    ("file", "member", "words"),
    [
        ({"file_data": "data:application/pdf,abc"}, "data", "base64"),
        ({"file_data": "é"}, "data", "malformed base64"),
        ({"file_data": b64encode(b"\0\1").decode()}, "data", "a PDF or a text"),
        ({"file_data": b64encode(b"x" * 2001).decode()}, "data", "at most 2000 bytes"),
        ({"file_data": b64encode(pdf_file(["a", "b", "c"])).decode()}, "data", "at most 2 pages"),
        ({"file_data": 5}, "data", "a string"),
        ({"file_id": 5}, "file_id", "a string, not 5"),
        ({}, "", "must have"),
        ({"file_id": "file-9"}, "", "there is no file file-9"),
        ({"file_id": "file-1"}, "file_id", "at most 2000 bytes"),
    ],
)
async def test_files_that_are_refused(make, tmp_path, path, file, member, words):
    (tmp_path / "file-1").write_bytes(b"x" * 2001)
    api = make(max_document_bytes=2000, max_document_pages=2)
    response = await api.call("POST", path, FORMS[path](file), FakeStream())
    assert response.status in (400, 404)
    error = orjson.loads(response.body)["error"]
    assert words in error["message"], error
    if member and path != CLAUDE and "must have" not in words:
        member = f"file_{member}" if member == "data" else member
        assert error["param"] == f"{PLACES[path]}.{member}"


@pytest.mark.parametrize("path", [CHATS, TURNS])
@pytest.mark.parametrize(
    ("file", "member", "words"),
    [
        ({"file_data": PDF, "filename": 5}, ".filename", "filename must be a string, not 5"),
        ({"file_data": PDF, "file_id": "file-1"}, "", "file_data or file_id, not both"),
    ],
)
async def test_members_that_are_refused(make, path, file, member, words):
    status, answer = await make().post(path, FORMS[path](file))
    assert (status, answer["error"]["param"]) == (400, PLACES[path] + member)
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("file", [None, 5, "a", [{}]])
async def test_a_file_that_is_no_object_is_refused(make, file):
    status, answer = await make().post(CHATS, chat(file))
    assert (status, answer["error"]["param"]) == (400, PLACES[CHATS])
    assert "file must be an object, not" in answer["error"]["message"]


@pytest.mark.parametrize("path", PLACES)
async def test_repeated_file_counts_towards_the_limits_each_time(make, monkeypatch, tmp_path, path):
    monkeypatch.setattr(api_documents, "MAX_TEXT", 1000)
    (tmp_path / "file-1").write_bytes(b"x" * 800)
    body = FORMS[path]({"file_id": "file-1"})
    content = body.get("messages", body.get("input"))[0]["content"]
    content[:1] = [deepcopy(content[0]) for _ in range(3)]
    status, answer = await make(max_document_bytes=1000).post(path, body)
    assert status == 400
    assert "at most 2000 characters in all, not 2400" in answer["error"]["message"]
    content[:1] = [deepcopy(content[0]) for _ in range(101)]
    status, answer = await make().post(path, body)
    assert status == 400
    assert "at most 100 files, not 103" in answer["error"]["message"]


@pytest.mark.parametrize("path", PLACES)
async def test_an_older_file_that_cannot_be_read_becomes_a_note(make, path):
    api = make()
    more = {"role": "assistant", "content": "7"}, {"role": "user", "content": "Sure?"}
    body = FORMS[path]({"file_id": "file-9", "filename": "a.pdf"}, *more)
    response = await api.call("POST", path, body, FakeStream())
    assert response.status == 200
    assert "file a.pdf: this model cannot read it]" in prompt_of(api)
    assert "cannot read" in dict(response.headers)["Warning"]


@pytest.mark.parametrize("path", PLACES)
async def test_stored_files_that_cannot_be_read(make, monkeypatch, path):
    api = make()

    async def fail(tenant: str, id: str) -> Path:
        raise StateFailed("the disk is broken")

    monkeypatch.setattr(api.context.read_files.__self__, "_find_file", fail)
    file = {"file_id": "file-9", "filename": "a.pdf"}
    response = await api.call("POST", path, FORMS[path](file), FakeStream())
    assert response.status == 503
    more = {"role": "assistant", "content": "7"}, {"role": "user", "content": "Sure?"}
    response = await api.call("POST", path, FORMS[path](file, *more), FakeStream())
    assert response.status == 200


async def test_a_kept_file_is_read_again(make, make_state, make_api):
    async def find(tenant: str, id: str) -> Path:
        return Path(id)

    documents = Documents(MediaConfig(), find, read_pdf)
    model = model_info(max_model_len=2000)
    api = make_api("ok", model=model, chat=chat_model(), documents=documents, state=make_state())
    _, answer = await api.post(TURNS, turn({"file_data": PDF, "filename": "a.pdf"}))
    await api.post(TURNS, {**turn({}), "previous_response_id": answer["id"], "input": "And?"})
    assert "The sum is 7.\nSum?" in prompt_of(api)
    response = await api.call("GET", f"{TURNS}/{answer['id']}/input_items")
    assert orjson.loads(response.body)["data"][0]["content"][0]["file_data"] == PDF
    documents.close()


async def test_texts_of_pdfs_are_kept_within_bounds(make, monkeypatch):
    monkeypatch.setattr(api_documents, "_MAX_CACHED", 30)
    api = make()
    reads = []
    monkeypatch.setattr(
        api.context.read_files.__self__,
        "_read_pdf",
        lambda data, *_: reads.append(data) or "x" * 20,
    )
    one, two = {"file_data": PDF}, {"file_data": b64encode(b"%PDF-other").decode()}
    for file in (one, one, two, one):
        assert (await api.post(CHATS, chat(file)))[0] == 200
    assert len(reads) == 3


async def test_texts_of_pdfs_are_kept_for_their_tenant_alone(make, monkeypatch):
    api = make()
    reads = []
    monkeypatch.setattr(
        api.context.read_files.__self__, "_read_pdf", lambda data, *_: reads.append(data) or "text"
    )
    for tenant, num_reads in (("a", 1), ("b", 2), ("a", 2), ("b", 2)):
        await api.call("POST", CHATS, chat({"file_data": PDF}), FakeStream(), tenant=tenant)
        assert len(reads) == num_reads


async def test_pdf_without_pypdf_is_refused_with_the_extra_to_install(make, monkeypatch):
    monkeypatch.setattr(api_documents, "can_read_pdf", lambda: False)
    status, answer = await make().post(CHATS, chat({"file_data": PDF}))
    assert status == 400
    assert "install fastovms with the extra documents" in answer["error"]["message"]
