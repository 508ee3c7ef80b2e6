"""Makes what answers a request for a response: the generation, and the run that tells of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import Usage
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import BeginSpan, TextGeneration
from fastovms.api.generation.job_generation import generation_of
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.responses.input.input_items import NewId
from fastovms.api.responses.input.response_fields import ResponseFields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.output.echoed_fields import output_form, response_form
from fastovms.api.responses.output.events import ResponseRun
from fastovms.api.responses.output.output_items import OutputForm
from fastovms.api.responses.responses_job import ResponsesJob
from fastovms.api.wire.dialect import Dialect

_CALL_ID_LENGTH: Final = 24


class Answering(NamedTuple):
    """A generation, and the run that its deltas are to be pushed to."""

    generation: TextGeneration
    run: ResponseRun


def answering(
    context: ApiContext,
    envelope: Envelope,
    fields: ResponseFields,
    job: ResponsesJob,
    new_id: Callable[[], str],
    *,
    request_id: str,
    log_fields: dict[str, object],
    begin_span: BeginSpan | None = None,
) -> Answering:
    """Returns what answers a request.

    Args:
        new_id: makes what the ids of items and calls are made of.
        request_id, log_fields, begin_span: see `TextGeneration`.
    """
    dialect = envelope.dialect
    form = output_form(
        job, fields, item_ids(new_id, dialect), lambda: f"call_{new_id()[-_CALL_ID_LENGTH:]}"
    )
    generation = generation_of(
        job, request_id=request_id, log_fields=log_fields, begin_span=begin_span
    )
    run = ResponseRun(
        response_form(job.preparation.body, job.task.params, fields, envelope),
        form,
        dialect,
        usage=lambda: generation.usage,
        unix_time=context.unix_time,
        tells=is_streamed(job.preparation.body) or fields.background,
        for_all=fields.background,
    )
    return Answering(generation, run)


def queued_run(
    context: ApiContext,
    body: ResponsesRequest,
    fields: ResponseFields,
    envelope: Envelope,
    new_id: Callable[[], str],
) -> ResponseRun:
    """Returns the run of a request whose model is not in memory yet; `ResponseRun.adopt` makes it
    complete.

    Raises:
        InvalidField: a field cannot be repeated.
    """
    return ResponseRun(
        response_form(body, None, fields, envelope),
        OutputForm(new_id=item_ids(new_id, envelope.dialect), new_call_id=new_id),
        envelope.dialect,
        usage=lambda: Usage(0, 0, 0),
        unix_time=context.unix_time,
        for_all=fields.background,
    )


def item_ids(new_id: Callable[[], str], dialect: Dialect) -> NewId:
    """Returns what makes ids of items in the dialect's form."""
    separator = dialect.responses.id_separator
    return lambda prefix: f"{prefix}{separator}{new_id()}"
