"""Tests every row of the compatibility tables below both prefixes: its accepted values are
accepted, and its refused values are refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from fastovms.api.request_schemas import ChatRequest, CompletionRequest, GenerationFields
from fastovms.params import Task
from fastovms.parts.embeddings.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from fastovms.parts.messages.request import CountTokensRequest, MessagesRequest
from fastovms.parts.ollama.models import OllamaEmbeddingsRequest, OllamaEmbedRequest
from fastovms.parts.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNamed,
    OllamaOptions,
    OllamaTextFields,
)
from fastovms.parts.responses.request import ResponsesRequest
from tests.api.chat_models import chat_model
from tests.api.documented_values import examples, section_of
from tests.api.encoder_api import EncoderApi, served_encoder
from tests.fakes import FakeStream, model_info

PREFIXES = ("/v1", "/v3")  # `/v3/v1` has the routes of `/v3`, see `test_routes`


class Row(NamedTuple):
    field: str
    takes: dict[str, list[dict]]
    refuses: dict[str, list[dict]]


class Table(NamedTuple):
    """The section of an endpoint with the fields that it requires, a body for the other fields, the
    number of servers it is compared with, the member that contains its fields, and the rows of
    other sections."""

    title: str
    path: str
    fields: frozenset[str]
    body: dict[str, Any]
    prefixes: tuple[str, ...] = PREFIXES
    num_others: int = 3
    within: str | None = None
    skips: frozenset[str] = frozenset()


def ollama(
    title: str, path: str, fields: Iterable[str], body: dict[str, Any], within: str | None = None
) -> Table:
    return Table(f"Ollama's {title}", path, frozenset(fields), body, ("/api",), 1, within)


OF_ALL = frozenset(GenerationFields.__struct_fields__)
OF_CHAT = frozenset(ChatRequest.__struct_fields__) - OF_ALL
OF_ANSWERS = frozenset({"max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k"})
"""The fields that control how an answer is generated, which counting tokens does not have."""
OLLAMA_CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "stream": False}
TABLES = (
    Table(
        "Completions",
        "completions",
        frozenset(CompletionRequest.__struct_fields__),
        {"model": "fake", "prompt": "ab"},
    ),
    Table(
        "Chat completions",
        "chat/completions",
        OF_CHAT,
        {"model": "fake", "messages": [{"role": "user", "content": "a"}]},
    ),
    Table(
        "Responses",
        "responses",
        frozenset(ResponsesRequest.__struct_fields__) - OF_ALL,
        {"model": "fake", "input": "a"},
    ),
    Table(
        "Messages",
        "messages",
        frozenset(MessagesRequest.__struct_fields__) - OF_ALL
        | {"model", "stream", "temperature", "top_p", "top_k"},
        {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
        prefixes=("/v1",),
        num_others=1,
    ),
    Table(
        "Messages",
        "messages/count_tokens",
        frozenset(CountTokensRequest.__struct_fields__) - OF_ALL - OF_ANSWERS | {"model"},
        {"model": "fake", "messages": [{"role": "user", "content": "a"}]},
        prefixes=("/v1",),
        num_others=1,
        skips=OF_ANSWERS,
    ),
    Table(
        "Embeddings",
        "embeddings",
        frozenset(EmbeddingRequest.__struct_fields__),
        {"model": "fake", "input": "a"},
    ),
    Table(
        "Rerank",
        "rerank",
        frozenset(RerankRequest.__struct_fields__),
        {"model": "fake", "query": "a", "documents": ["b", "c"]},
        prefixes=("", "/v1", "/v2", "/v3", "/v3/v1"),
    ),
    Table(
        "Score",
        "score",
        frozenset(ScoreRequest.__struct_fields__),
        {"model": "fake", "text_1": "a", "text_2": ["b", "c"]},
        prefixes=("", *PREFIXES),
    ),
    ollama("chats", "chat", OllamaChatRequest.__struct_fields__, OLLAMA_CHAT),
    ollama("options", "chat", OllamaOptions.__struct_fields__, OLLAMA_CHAT, "options"),
    ollama(
        "prompts",
        "generate",
        {*OllamaGenerateRequest.__struct_fields__} - {*OllamaTextFields.__struct_fields__},
        {"model": "fake", "prompt": "a", "stream": False},
    ),
    ollama(
        "embeddings",
        "embed",
        OllamaEmbedRequest.__struct_fields__,
        {"model": "fake", "input": "a"},
    ),
    ollama(
        "older embeddings",
        "embeddings",
        OllamaEmbeddingsRequest.__struct_fields__,
        {"model": "fake", "prompt": "a"},
    ),
    ollama("models", "show", {*OllamaNamed.__struct_fields__} - {"stream"}, {"model": "fake"}),
)
ENCODING = ("embed", "embeddings", "rerank", "score")


def rows(table: Table) -> Iterator[Row]:
    for line in section_of(table.title).splitlines():
        if not line.startswith("| `"):
            continue
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        v1, *rest = cells[table.num_others :]
        assert len(rest) == (len(table.prefixes) > 1), line
        field = name.strip("` |")
        if field in table.skips:
            continue
        of_v1 = examples(v1, field)
        of_v3 = examples(rest[0], field) if rest and "akes " in rest[0] else of_v1
        yield Row(
            field,
            {prefix: (of_v3 if "/v3" in prefix else of_v1)[0] for prefix in table.prefixes},
            {prefix: (of_v3 if "/v3" in prefix else of_v1)[1] for prefix in table.prefixes},
        )


def cases(which: str) -> list[tuple[str, dict, str, dict]]:
    return [
        (
            f"{prefix}/{table.path}",
            table.body,
            row.field,
            {table.within: members} if table.within else members,
        )
        for table in TABLES
        for row in rows(table)
        for prefix, values in getattr(row, which).items()
        for members in values
    ]


@pytest.fixture
def make(make_api, make_state):
    made = []

    def api(path: str):
        name = path.rpartition("/")[2]
        if name not in ENCODING:
            return make_api("xyz", model=model_info(), chat=chat_model(), state=make_state())
        task = Task.EMBEDDINGS if name.startswith("embed") else Task.RERANK
        made.append(EncoderApi(served_encoder(task)))
        return made[-1]

    yield api
    for each in made:
        each.close()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.title} {table.path}")
def test_every_field_has_a_row(table):
    assert sorted(row.field for row in rows(table)) == sorted(table.fields)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "field", "members"), cases("takes"))
async def test_accepted_member_is_answered(make, path, body, field, members):
    stream, asked = FakeStream(), {**body, **members}
    response = await make(path).call("POST", path, asked, stream)
    if path in ("/api/chat", "/api/generate") and asked["stream"] is not False:
        assert response is None
        assert [line["done"] for line in stream.lines][-2:] == [False, True]
    elif members.get("stream"):
        assert response is None
        assert stream.events[-1] in ("[DONE]", {"type": "message_stop"})
        assert not any("error" in event for event in stream.events[:-1])
    else:
        assert response is not None
        assert response.status == 200, response.body


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "field", "members"), cases("refuses"))
async def test_refused_field_is_named(make, path, body, field, members):
    api = make(path)
    status, answer = await api.post(path, {**body, **members})
    error = answer["message"] if path == "/v2/rerank" else answer["error"]
    if path.startswith(("/v1", "/rerank", "/score")):
        assert field in error.get("param", "") or field in error["message"]
        error = error["message"]
    assert field in error, error
    unknown = members == {"model": "other"}
    of_body = path.startswith("/v3") and field in ("model", "stream")
    assert status == (404 if unknown else 412 if of_body else 400)
    assert api.backend.submitted == []
