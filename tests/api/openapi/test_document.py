"""Tests of `fastovms/parts/openapi/document.py`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import orjson
import pytest

from docs.check_site import loads_of_page, loads_of_style
from fastovms.api.dialect import OPENAI, OVMS, dialect_of
from fastovms.api.request_schemas import CompletionRequest
from fastovms.http.messages import Request
from fastovms.http.routing import Match, Router
from fastovms.parts.openapi.document import body_schema, examples, named, openapi_document
from fastovms.parts.openapi.examples import EXAMPLES
from fastovms.parts.openapi.page import DocsRoutes
from tests.api.chat_models import chat_model
from tests.api.encoder_api import EncoderApi, served_encoder
from tests.fakes import FakeStream, model_info
from tests.paths import ROOT

# The members that a dialect adds to the schema of a body.


NULL = {"type": "null"}
COMPONENT = {
    "type": "object",
    "properties": {
        "model": {"anyOf": [{"type": "string"}, NULL], "default": None},
        "prompt": {"anyOf": [{"type": "string"}, {"type": "array"}, NULL], "default": None},
        "stream": {"anyOf": [{"type": "boolean"}, NULL]},
        "top_p": {"anyOf": [{"type": "number"}, NULL], "default": None},
        "top_k": {"anyOf": [{"type": "integer"}, NULL], "default": None},
        "min_p": {"anyOf": [{"type": "number"}, NULL], "default": None},
        "other": {},
    },
}


@pytest.mark.parametrize(
    ("dialect", "body", "is_valid"),
    [
        (OPENAI, {"prompt": "a"}, True),
        (OPENAI, {"prompt": "a", "model": None, "stream": None, "other": 5}, True),
        (OPENAI, {}, False),
        (OPENAI, {"prompt": None}, False),
        (OPENAI, {"prompt": "a", "top_k": -1}, True),
        (OPENAI, {"prompt": "a", "top_k": 0}, True),
        (OPENAI, {"prompt": "a", "top_k": -2}, False),
        (OPENAI, {"prompt": "a", "top_p": 0}, False),
        (OPENAI, {"prompt": "a", "top_p": 1}, True),
        (OPENAI, {"prompt": "a", "min_p": 1}, True),
        (OVMS, {"prompt": "a"}, False),
        (OVMS, {"prompt": "a", "model": None}, False),
        (OVMS, {"prompt": "a", "model": "m"}, True),
        (OVMS, {"prompt": ["a"], "model": "m"}, True),
        (OVMS, {"prompt": "a", "model": "m", "stream": None}, False),
        (OVMS, {"prompt": "a", "model": "m", "top_k": 0}, False),
        (OVMS, {"prompt": "a", "model": "m", "top_k": None}, True),
        (OVMS, {"prompt": "a", "model": "m", "min_p": 1}, False),
    ],
)
def test_body_schema_accepts_and_refuses_bodies(dialect, body, is_valid):
    schema = body_schema(CompletionRequest, COMPONENT, ("prompt",), dialect)
    assert jsonschema_rs.is_valid(schema, body) is is_valid


# The document describes every route according to OpenAPI and JSON Schema.


DRAFT = "https://json-schema.org/draft/2020-12/schema"
METHODS = ("get", "post", "delete")


@pytest.fixture(scope="module")
def routes(make_api) -> list[tuple[str, str]]:
    return list(make_api().router.routes())


async def load_all() -> None:
    """Loads no parts."""


def described(make_api) -> dict[tuple[str, str], Any]:
    """Returns the operations of all routes."""
    api = make_api()
    api.parts.load_now()
    return api.router.operations


@pytest.fixture(scope="module")
def document(make_api) -> dict[str, Any]:
    """Returns the document as clients receive it."""
    made = openapi_document(described(make_api), model="fake", root_path="/llm", needs_key=True)
    return orjson.loads(orjson.dumps(made))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield method, path, operation


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes(child)


def test_every_route_is_described(routes, document):
    described = {(method.upper(), path) for method, path, _ in operations(document)}
    assert described == {
        (method, path.replace(":path}", "}")) for method, path in routes if path[-1] != "/"
    }


def test_every_reference_leads_somewhere(document):
    references = {node["$ref"] for node in nodes(document) if "$ref" in node}
    assert references
    for reference in references:
        place = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    used = {reference.rpartition("/")[2] for reference in references}
    assert used == {*document["components"]["schemas"], *document["components"]["responses"]}


def test_schemas_are_schemas(document):
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": DRAFT, **schema})


def test_operations_have_names_of_their_own(document):
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    links = {
        link["operationId"]
        for node in nodes(document)
        for link in node.get("links", {}).values()
        if isinstance(link, dict)
    }
    assert "get_v1_responses_id" in links
    assert links <= set(names)


def test_errors_have_the_form_of_their_dialect(document):
    answers = document["components"]["responses"]
    for _, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status != "200":
                name = answer["$ref"].rpartition("/")[2]
                family = dialect_of(path).name
                assert name == f"{family}_{status}"
                [(_, content)] = answers[name]["content"].items()
                assert content["schema"]["$ref"].lower().endswith(f"{family}error")


@pytest.mark.parametrize(
    ("path", "has", "lacks"),
    [
        ("/v1/chat/completions", ["200", "400", "401", "404", "413", "429", "503"], ["412"]),
        ("/v3/chat/completions", ["200", "400", "401", "404", "412", "429", "503"], []),
        ("/v3/responses/{id}", ["200", "400", "404", "412"], ["413"]),
        ("/health", ["200", "503"], ["401", "404", "413"]),
        ("/v1/models/{id}", ["200", "401", "404"], ["413"]),
        ("/v2/models/{name}/infer", ["400", "404"], ["200"]),
    ],
)
def test_operation_lists_the_statuses_of_its_route(document, path, has, lacks):
    operation, *_ = document["paths"][path].values()
    assert set(has) <= set(operation["responses"])
    assert not set(lacks) & set(operation["responses"])


def test_no_status_is_left_out(document):
    """Neither those of the HTTP layer's errors nor those of its checks; 405 is never the status of
    an operation."""
    used = set()
    for path in (ROOT / "fastovms").rglob("*.py"):
        found = re.findall(
            r"(?:Fault|_error|\berror)\((?:[^()]|\n)*?\b([45]\d\d),", path.read_text()
        )
        used.update(found)
    assert {"408", "413", "415", "421", "431", "505"} <= used
    described = {
        status for _, _, operation in operations(document) for status in operation["responses"]
    }
    assert used - described == {"405"}


def test_the_body_depends_on_the_dialect(document):
    schemas = document["components"]["schemas"]
    bounds = {
        name: schemas[name]["properties"]["top_k"]["anyOf"]
        for name in ("CompletionRequest", "OvmsCompletionRequest")
    }
    integer = {"type": "integer"}
    assert bounds["CompletionRequest"] == [
        {**integer, "minimum": 0}, {"type": "null"}, {"const": -1}
    ]  # fmt: skip
    assert bounds["OvmsCompletionRequest"][0] == {**integer, "minimum": 1}
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert schemas["OvmsCompletionRequest"]["required"] == ["model", "prompt"]


def test_members_always_sent_are_required_in_answer_schemas(document):
    schemas = document["components"]["schemas"]
    assert schemas["ModelList"]["required"] == ["object", "data"]
    assert schemas["ModelList"]["properties"]["object"] == {"enum": ["list"]}
    assert "document" not in schemas["RerankResult"]["required"]


def test_where_the_server_is_and_what_it_needs(document, make_api):
    assert document["servers"] == [{"url": "/llm"}]
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/v1/models"]["get"]
    plain = openapi_document(described(make_api), model="fake")
    assert plain["servers"] == [{"url": "/"}]
    assert "security" not in plain


def test_examples_of_answers_are_such_answers(make_api):
    used = set()
    for operation in described(make_api).values():
        if not isinstance(operation.examples, dict):
            used.add(operation.examples)
        _, answered = examples(operation)
        if answered is not None:
            msgspec.json.decode(orjson.dumps(answered), type=named(operation.answer))
    assert used - {None} | {"batches"} == {*EXAMPLES}


@pytest.mark.slow
async def test_examples_of_requests_are_answered(document, make_api, make_state):
    def write(request, index):
        return list(b'{"country":"France","capital":"Paris"}')

    api = make_api(
        write, chat=chat_model(), state=make_state(), model=model_info(max_model_len=2000)
    )
    encoder_api = EncoderApi(served_encoder())
    num_sent = 0
    for method, path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for name, example in content.get("examples", {}).items():
            if "{" in path or path.endswith("/batches"):  # nothing is stored
                continue
            if "/images/" in path or "/audio/" in path:  # their models are other ones
                continue
            stream = FakeStream()
            encodes = path.endswith(("/embeddings", "/rerank", "/score"))
            asked = encoder_api if encodes else api
            response = await asked.call(method.upper(), path, example["value"], stream)
            status = 200 if response is None else response.status
            assert status == 200, (path, name, response)
            num_sent += 1
    assert num_sent > 30
    encoder_api.close()


# The page loads nothing from other servers, and the document is built once.


def page():
    return DocsRoutes(dict, load_all).page(Request("GET", "/docs"))


def test_page_loads_no_resource_of_another_host():
    html = page().body.decode()
    assert loads_of_page(html) == []
    assert loads_of_style(re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]) == []
    assert not re.search(r"https?://", html)
    assert re.findall(r"fetch\(([^)]*?)[,)]", html) == ["address(", '"openapi.json"']
    assert 'const base = new URL("./", location.href)' in html
    assert "return base + target + (query.size" in html


def test_the_policy_lets_this_script_and_this_style_run_and_no_other():
    answer = page()
    assert answer.content_type == "text/html; charset=utf-8"
    fields = dict(answer.headers)
    policy = dict(
        part.strip().split(" ", 1) for part in fields["Content-Security-Policy"].split(";")
    )
    html = answer.body.decode()
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        [content] = re.findall(rf"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert fields["X-Content-Type-Options"] == "nosniff"
    # What the policy would not let run, and what would let a text of the server be one.
    assert not re.search(r"\son\w+=|style=|innerHTML|insertAdjacentHTML|eval\(", html)


async def test_the_document_is_made_once_and_in_a_thread():
    made_in = []

    def build():
        made_in.append(threading.current_thread())
        return {"openapi": "3.1.1"}

    router = Router()
    router.add("GET", "/openapi.json", DocsRoutes(build, load_all).document)
    assert not made_in
    match = router.match("GET", "/openapi.json")
    assert isinstance(match, Match)
    ask = lambda: match.handler(Request("GET", "/openapi.json"))  # noqa: E731
    first = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    first.cancel()  # the client leaves
    answers = await asyncio.gather(ask(), ask())
    assert [orjson.loads(answer.body) for answer in answers] == [{"openapi": "3.1.1"}] * 2
    [thread] = made_in
    assert thread is not threading.main_thread()
    with pytest.raises(asyncio.CancelledError):
        await first
