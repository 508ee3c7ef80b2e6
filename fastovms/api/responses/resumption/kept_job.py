"""Writes what was asked for, so that another process can go on with it: the request as it was sent,
without its input, and the prompt that was made of that."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from typing import Final

import msgspec

from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.responses_job import ResponsesJob
from fastovms.api.wire.dialect import Dialect
from fastovms.state.store import Resumption

_FORM: Final = 1
"""The version of what is written. Another one is not read."""

_ID_SIZE: Final = 16
"""Bytes of an id."""

ANY_FILES: Final = "?"
"""Stands for the fingerprint of a model whose files were not known when a response was queued: the
model had said nothing then."""

_SEED_BITS: Final = 32
"""Bits of a seed, as many as every dialect takes."""


class KeptJob(msgspec.Struct, frozen=True, kw_only=True):
    """A request that runs in the background, without what the store has of it already.

    Attributes:
        model: see `model_key`.
        dialect: its name.
        body: without its input, with the seed by which tokens are drawn.
        created: unix seconds.
        id_key: what the ids of items are made of; see `numbered_ids`.
        prompt_token_ids, prompt_text: the prompt. Made again it might be another: templates may
            tell the date, and what came before a request may be deleted meanwhile. Empty where the
            model was not loaded when the request came; the prompt is then made on resumption.
    """

    form: int = _FORM
    model: str
    dialect: str
    body: ResponsesRequest
    created: int
    id_key: str
    prompt_token_ids: list[int]
    prompt_text: str | None


def resumption_of(
    job: ResponsesJob, dialect: Dialect, created: int, id_key: str
) -> Resumption | None:
    """Returns what others need to go on with a request; None where they could not: what is seen in
    images, and several samples that are told at once, are not kept.

    Args:
        created: unix seconds.
        id_key: see `KeptJob`.
    """
    prompt, task = job.prompt, job.task
    if job.options.candidates.num_samples > 1 or (task.prompt is not None and task.prompt.images):
        return None
    info = job.preparation.model.info
    model = model_key(info.fingerprint, info.name)
    written = write_job(
        KeptJob(
            model=model,
            dialect=dialect.name,
            body=job.preparation.body,
            created=created,
            id_key=id_key,
            prompt_token_ids=list(prompt.token_ids),
            prompt_text=prompt.text,
        )
    )
    return None if written is None else Resumption(model, written)


def queued_resumption(
    body: ResponsesRequest, model: str, dialect: Dialect, created: int, id_key: str
) -> Resumption | None:
    """Returns what others need to resume a request whose model is not loaded yet.

    Args:
        model: see `model_key`.
        created: unix seconds.
        id_key: see `KeptJob`.
    """
    job = KeptJob(
        model=model,
        dialect=dialect.name,
        body=body,
        created=created,
        id_key=id_key,
        prompt_token_ids=[],
        prompt_text=None,
    )
    written = write_job(job)
    return None if written is None else Resumption(model, written)


def with_seed(body: ResponsesRequest) -> ResponsesRequest:
    """Returns a request that says by which seed its tokens are drawn, so that whoever goes on with
    it draws the same ones."""
    if body.seed is not None:
        return body
    return msgspec.structs.replace(body, seed=secrets.randbits(_SEED_BITS))


def write_job(job: KeptJob) -> bytes | None:
    """Returns what `read_job` takes; None where the request has what cannot be written, such as
    integers of more than 64 bits."""
    body = msgspec.structs.replace(job.body, input=None)
    try:
        return msgspec.json.encode(msgspec.structs.replace(job, body=body))
    except (OverflowError, TypeError, UnicodeEncodeError, msgspec.MsgspecError):
        return None


def read_job(data: bytes) -> KeptJob:
    """Returns what was written.

    Raises:
        ValueError: another version of the server has written it.
    """
    try:
        job = msgspec.json.decode(data, type=KeptJob)
    except msgspec.MsgspecError as error:
        raise ValueError("the request was written by another version of the server") from error
    if job.form != _FORM:
        raise ValueError(f"the form of the request is {job.form}, not {_FORM}")
    return job


def numbered_ids(key: str) -> Callable[[], str]:
    """Returns what makes ids of 32 hexadecimal digits: each time the next one of those that the key
    stands for, in whatever process."""
    numbers = count()

    def new_id() -> str:
        text = f"{next(numbers)} {key}".encode()
        return blake2b(text, digest_size=_ID_SIZE).hexdigest()

    return new_id


def model_key(fingerprint: str, name: str) -> str:
    """Returns what identifies a model to those who might go on with its answers."""
    return f"{fingerprint} {name}"
