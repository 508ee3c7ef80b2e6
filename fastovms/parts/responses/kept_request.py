"""The stored data of a background request, with which another process can resume the response."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
import orjson

from fastovms.api.prompt import Prompt
from fastovms.parts.responses.prepare import ResponsesJob
from fastovms.parts.responses.request import ResponsesRequest
from fastovms.parts.responses.run import ResponsePlan
from fastovms.state.store import Resumption

_FORM: Final = 1
"""The version of the stored format. Data of other versions are not read."""
ANY_FILES: Final = "?"
"""A placeholder for the fingerprint of a model whose files were unknown when a response was queued,
before the model had generated anything."""
_SEED_BITS: Final = 32
"""The number of bits of a seed, which every dialect accepts."""


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A background request, without the parts that are stored with its response.

    Attributes:
        model: see `model_key`.
        dialect: the name of the dialect.
        body: the request's body without its input, with the sampling seed.
        created: a Unix time.
        id_key: the key of the item ids; see `numbered_ids`.
        prompt_token_ids, prompt_text: the prompt, because rendering it again might differ:
            templates may insert the date. Empty until the model is loaded.
        client: the address that shares the engine with others; "" = the response's key.
        priority: the priority set by the server; None = the body's.
        items: all items of the model's input, until the prompt is stored, since earlier items and
            documents may change or be deleted in the meantime. None = queued by an older server,
            which did not store the items.
    """

    form: int = _FORM
    model: str
    dialect: str
    body: ResponsesRequest
    created: int
    id_key: str
    prompt_token_ids: list[int]
    prompt_text: str | None
    client: str = ""
    priority: int | None = None
    items: list[msgspec.Raw] | None = None


def resumption_of(
    plan: ResponsePlan, model: str, *, prompt: Prompt | None = None, keeps_items: bool = False
) -> Resumption | None:
    """Returns the data for resuming a request; None = the request cannot be encoded, for example
    because of integers over 64 bits.

    Args:
        model: see `model_key`.
        prompt: the rendered prompt; None = not rendered yet.
        keeps_items: whether to store all items of the model's input, because the prompt is not
            rendered yet.
    """
    items = plan.history.items if keeps_items else None
    try:
        job = StoredJob(
            model=model,
            dialect=plan.envelope.dialect.name,
            body=msgspec.structs.replace(plan.body, input=None),
            created=plan.envelope.created,
            id_key=plan.id_key,
            prompt_token_ids=[] if prompt is None else list(prompt.token_ids),
            prompt_text=None if prompt is None else prompt.text,
            client="" if plan.client == plan.caller.tenant else plan.client,
            priority=plan.caller.priority,
            items=None if items is None else [msgspec.Raw(orjson.dumps(item)) for item in items],
        )
        return Resumption(model, msgspec.json.encode(job))
    except (OverflowError, TypeError, UnicodeEncodeError, msgspec.MsgspecError):
        return None


def prompt_resumption(plan: ResponsePlan, job: ResponsesJob) -> Resumption | None:
    """Returns the data for resuming a request whose prompt is rendered; None = the request has
    images or several samples, or cannot be encoded."""
    if job.candidates.num_samples > 1 or job.chat.images:
        return None
    info, [prompt] = job.asked.model.info, job.prompts
    return resumption_of(plan, model_key(info.fingerprint, info.name), prompt=prompt)


def with_seed(body: ResponsesRequest) -> ResponsesRequest:
    """Returns the request with a fixed sampling seed, so that a replica that resumes the response
    draws the same tokens."""
    if body.seed is not None:
        return body
    return msgspec.structs.replace(body, seed=secrets.randbits(_SEED_BITS))


def read_job(data: bytes) -> StoredJob:
    """Returns the job in the stored data of a response. Raises ValueError if another version of the
    server has written them."""
    try:
        job = msgspec.json.decode(data, type=StoredJob)
    except msgspec.MsgspecError as error:
        raise ValueError("the request was written by another version of the server") from error
    if job.form != _FORM:
        raise ValueError(f"the stored request has the format {job.form}, not {_FORM}")
    return job


def model_key(fingerprint: str, name: str) -> str:
    """Returns the identity of a model. Replicas with the same identity can resume its responses."""
    return f"{fingerprint} {name}"
