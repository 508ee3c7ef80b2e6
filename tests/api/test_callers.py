"""Tests of `ApiContext.preparation`: all work that an endpoint submits to a model carries the
client's API key and the priority that the server has set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import pytest

from fastovms.api.client_request import ClientRequest
from fastovms.http.messages import Caller
from fastovms.params import LOWEST_PRIORITY, Task
from fastovms.parts.responses.run import ResponsePlan
from tests.api.chat_models import chat_model
from tests.api.encoder_api import served_encoder
from tests.fakes import FakeStream, model_info

KEY: Final = "k" * 64
FORMAT = {"type": "json_object"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "fake", "prompt": "Hi"}
RESPONSE = {"model": "fake", "input": "Hi"}
LONG = [{"role": role, "content": "Hello " * 9} for role in ("user", "assistant", "user") * 3]
COMPACTING = [{"type": "compaction", "compact_threshold": 200}]
QUESTION = {"type": "predicate", "instructions": "It rains."}
TEXTS: dict[str, Any] = {
    "/v1/chat/completions": {
        "": CHAT,
        "stream": {**CHAT, "stream": True},
        "samples": {**CHAT, "n": 2},
        "grammar": {**CHAT, "response_format": FORMAT},
    },
    "/v1/completions": {
        "": TEXT,
        "prompts": {**TEXT, "prompt": ["a", "b"]},
        "scores": {**TEXT, "echo": True, "logprobs": 1, "max_tokens": 0},
        "scores of a stream": {**TEXT, "echo": True, "logprobs": 1, "stream": True},
        "beams": {**TEXT, "n": 2, "use_beam_search": True, "temperature": 0},
        "grammar": {**TEXT, "response_format": FORMAT},
    },
    "/v1/messages": {
        "": {**CHAT, "max_tokens": 5},
        "stream": {**CHAT, "max_tokens": 5, "stream": True},
        "cache filled": {**CHAT, "max_tokens": 0},
    },
    "/v1/responses": {
        "": RESPONSE,
        "stream": {**RESPONSE, "stream": True},
        "samples": {**RESPONSE, "best_of": 2, "temperature": 1},
        "background": {**RESPONSE, "background": True},
        "background stream": {**RESPONSE, "background": True, "stream": True},
        "prewarm": {**RESPONSE, "prompt_cache_options": {"prewarm": True}},
        "compaction": {**RESPONSE, "input": LONG, "context_management": COMPACTING},
        "grammar": {**RESPONSE, "text": {"format": FORMAT}},
    },
    "/v1/responses/compact": {"": {**RESPONSE, "input": LONG}},
    "/api/chat": {
        "": CHAT,
        "whole": {**CHAT, "stream": False},
        "grammar": {**CHAT, "format": "json"},
    },
    "/api/generate": {
        "": TEXT,
        "raw": {**TEXT, "raw": True},
        "whole": {**TEXT, "stream": False},
        "grammar": {**TEXT, "format": "json"},
    },
    "/v1/decisions": {"": {**RESPONSE, "questions": [QUESTION, QUESTION]}},
}  # fmt: skip
ENCODED: dict[str, Any] = {
    "/v1/embeddings": (Task.EMBEDDINGS, RESPONSE),
    "/api/embed": (Task.EMBEDDINGS, RESPONSE),
    "/api/embeddings": (Task.EMBEDDINGS, TEXT),
    "/v1/rerank": (Task.RERANK, {"model": "fake", "query": "a", "documents": ["b"]}),
    "/rerank": (Task.RERANK, {"model": "fake", "query": "a", "documents": ["b"]}),
    "/v2/rerank": (Task.RERANK, {"model": "fake", "query": "a", "documents": ["b"]}),
    "/v1/score": (Task.RERANK, {"model": "fake", "text_1": "a", "text_2": "b"}),
    "/score": (Task.RERANK, {"model": "fake", "text_1": "a", "text_2": "b"}),
}
ASK_NO_MODEL: Final = (
    *("input_tokens", "tokenize", "detokenize", "count_tokens", "conversations", "items", "{id}"),
    *("cancel", "reload", "load", "unload", "ping", "infer", "files", "batches"),
    *("load_lora_adapter", "unload_lora_adapter"),
    *("show", "pull", "push", "create", "copy", "{digest}"),
)
"""The last parts of paths whose requests do not run a model for the client."""
SPEECH: Final = ("transcriptions", "translations", "speech")
"""The paths of speech: see `test_audio.py` and `test_speech_out.py`."""
IMAGES: Final = ("generations", "edits")
"""The paths of images: see `test_images.py`."""


@pytest.fixture
def api(make_api: Callable[..., Any], make_state: Callable[..., Any]) -> Any:
    model = model_info(max_model_len=4000)
    api = make_api("Hello!", model=model, chat=chat_model(), state=make_state())
    api.clients = []
    compile_grammar = api.backend.compile_grammar

    async def compile_for(grammar: Any, client: str) -> Any:
        api.clients.append(client)
        return await compile_grammar(grammar, client)

    api.backend.compile_grammar = compile_for
    return api


@pytest.mark.parametrize("own", [None, 5])
@pytest.mark.parametrize("given", [None, LOWEST_PRIORITY])
@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, bodies in TEXTS.items() for name in bodies]
)
async def test_request_for_text_carries_its_key(api, path, name, given, own):
    body = TEXTS[path][name]
    takes_priority = own is not None and not path.startswith("/api/")
    if takes_priority:
        body = {**body, "priority": own}
    stream = FakeStream()
    response = await api.call("POST", path, body, stream, tenant=KEY, priority=given)
    assert response is None or response.status == 200, response.body
    await api.backend.received.wait()
    expected = given if given is not None else own if takes_priority else 0
    found = {(one.tenant, one.owner, one.priority) for one in api.backend.submitted}
    assert found == {(KEY, KEY, expected)}
    assert set(api.clients) == ({KEY} if name == "grammar" else set())


@pytest.mark.parametrize("given", [None, LOWEST_PRIORITY])
@pytest.mark.parametrize("path", ENCODED)
async def test_request_for_vectors_carries_its_key(make_encoder_api, path, given):
    task, body = ENCODED[path]
    served = served_encoder(task)
    api = make_encoder_api(served)
    response = await api.call("POST", path, body, tenant=KEY, priority=given)
    assert response.status == 200, response.body
    assert [client for _, client in served.backend.encoded] == [KEY]
    assert served.backend.priorities == [given or 0]


def test_every_path_that_asks_a_model_is_in_a_table(api):
    paths = {path for method, path in api.router.routes() if method == "POST"}
    known = {*TEXTS, *ENCODED}
    as_v1 = {path.replace("/v3/v1/", "/v1/").replace("/v3/", "/v1/") for path in paths}
    rest = {path.rstrip("/").rpartition("/")[2] for path in as_v1 - known}
    assert rest - set(ASK_NO_MODEL) == {*SPEECH, *IMAGES}


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (ClientRequest, ("caller", "client")),
        (Caller, ("tenant",)),
        (ResponsePlan, ("caller", "client")),
    ],
)
def test_key_has_no_default_and_no_position(record, names):
    parameters = inspect.signature(record).parameters
    for name in names:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is inspect.Parameter.empty
