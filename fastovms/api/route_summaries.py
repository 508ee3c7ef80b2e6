"""Says what each route does in one line, for the documentation; a test compares it with the routes.

A route that every dialect has stands here by its path behind the dialect's prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ROUTE_SUMMARIES: Final[Mapping[str, Mapping[str, str]]] = {
    "Text generation": {
        "POST /completions": "Continues one or many prompts, given as text or as token ids, whole "
        "or as a stream; takes every field of OpenAI, vLLM and OVMS.",
        "POST /chat/completions": "Answers messages through the model's template, whole or as a "
        "stream; with tools, reasoning and structured answers.",
    },
    "Responses": {
        "POST /responses": "Makes a response of text, reasoning and calls as items: whole, as a "
        "stream or in the background.",
        "POST /responses/input_tokens": "Counts the tokens that the request's prompt would have.",
        "POST /responses/compact": "Answers 404: this server does not compact what came before.",
        "GET /responses/{id}": "Returns a stored response; `?stream=true` follows one that runs "
        "in the background, `&starting_after=N` from any event.",
        "DELETE /responses/{id}": "Deletes a stored response, and cancels it first if it runs.",
        "POST /responses/{id}/cancel": "Cancels a response that runs in the background.",
        "GET /responses/{id}/input_items": "Lists the input of a stored response.",
    },
    "Conversations": {
        "POST /conversations": "Makes a conversation, with its first items if some are given.",
        "GET /conversations/{id}": "Returns a conversation, without its items.",
        "POST /conversations/{id}": "Changes the metadata of a conversation.",
        "DELETE /conversations/{id}": "Deletes a conversation.",
        "GET /conversations/{id}/items": "Lists the items of a conversation.",
        "POST /conversations/{id}/items": "Adds items to a conversation.",
        "GET /conversations/{id}/items/{item_id}": "Returns one item of a conversation.",
        "DELETE /conversations/{id}/items/{item_id}": "Deletes one item of a conversation.",
    },
    "Tokens": {
        "POST /tokenize": "Returns the token ids of a prompt or of messages, in vLLM's form.",
        "POST /v3/tokenize": "Returns the token ids of one or several texts, in OVMS's form.",
        "POST /v3/v1/tokenize": "Returns the token ids of one or several texts, in OVMS's form.",
        "POST /detokenize": "Returns the text of token ids, in vLLM's form.",
    },
    "Models": {
        "GET /models": "Lists the models, below `/v1` with their `max_model_len`.",
        "GET /models/{id}": "Describes one model as the list does.",
        "GET /v1/config": "Returns the status of every model, as OVMS does.",
        "POST /v1/config/reload": "Returns the same status; models are loaded at start only.",
        "GET /v2/models/{name}": "Returns KServe's metadata of a model.",
        "GET /v2/models/{name}/versions/{version}": "Returns the same; the only version is 1.",
        "GET /v2/models/{name}/ready": "Answers 200 when the model can be asked, 503 when it has "
        "failed.",
        "GET /v2/models/{name}/versions/{version}/ready": "Answers the same; the only version is "
        "1.",
        "POST /v2/models/{name}/infer": "Refuses tensors, which a language model does not take.",
        "POST /v2/models/{name}/versions/{version}/infer": "Refuses tensors, too.",
    },
    "Health and monitoring": {
        "GET /health": "Answers 200, or 503 while models load and after an engine has failed.",
        "GET /ping": "Answers as `/health` does.",
        "POST /ping": "Answers as `/health` does.",
        "GET /ready": "Answers as `/health` does, and 503 too once the server is about to shut "
        "down.",
        "GET /v2/health/ready": "Answers as `/ready` does.",
        "GET /v2/health/live": "Answers 200 for as long as the process answers at all.",
        "GET /version": "Returns the version of the server.",
        "GET /v2": "Returns the server's name and version in KServe's form.",
        "GET /metrics": "Returns Prometheus metrics.",
    },
}
"""Method and path of each route, by the sections of the page."""
