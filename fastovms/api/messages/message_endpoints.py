"""Answers `POST /messages` and `/messages/count_tokens`: a chat in, one message or a stream out."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.generation.answer import collect, format_cost, respond, stream_answer
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import SampleDelta, Usage, merged
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.job_generation import generation_of
from fastovms.api.messages.message_body import message_body
from fastovms.api.messages.message_frames import MessageFrames
from fastovms.api.messages.messages_job import MessagesJob, count_tokens, names_of, prepare
from fastovms.api.messages.messages_schema import CountTokensRequest, MessagesRequest
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.warning_header import warning_headers
from fastovms.http.routing.messages import Request, Response
from fastovms.params import FinishReason
from fastovms.telemetry.tracing import GenerationKind

_CALL_ID_LENGTH: Final = 24


class Messages:
    """The handlers of the Messages API."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request.

        Raises:
            RequestError, BackendError: the answer has not begun, and cannot.
        """
        context = self._context
        preparation = await context.read(request, MessagesRequest, dialect, names_of)
        job = await prepare(preparation, self._new_call_id)
        preparation = job.preparation
        new_id = context.new_id()
        envelope = context.envelope("msg_", new_id, preparation)
        generation = generation_of(
            job,
            request_id=new_id,
            log_fields=request.log_fields,
            begin_span=context.span_of(request, GenerationKind.CHAT, preparation, envelope.id),
        )
        if job.only_computes_prompt:
            with generation:
                return await self._fill(request, job, envelope, generation)
        answer = self._stream if is_streamed(preparation.body) else self._complete
        with generation:
            return await answer(request, job, envelope, generation)

    async def count_tokens(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the number of tokens that a request's prompt would have.

        Raises:
            RequestError: a field is at fault.
            BackendError: it has images, which cannot be read now.
        """
        preparation = await self._context.read(request, CountTokensRequest, dialect, names_of)

        async def compute(job: MessagesJob) -> Usage:
            new_id = self._context.new_id()
            with generation_of(job, request_id=new_id, log_fields=request.log_fields) as generation:
                await generation.run(_drop)
                return generation.usage

        num_tokens = await count_tokens(preparation, compute)
        return Response(200, orjson.dumps({"input_tokens": num_tokens}))

    def _new_call_id(self) -> str:
        return f"toolu_{self._context.new_id()[-_CALL_ID_LENGTH:]}"

    async def _complete(
        self, request: Request, job: MessagesJob, envelope: Envelope, generation: TextGeneration
    ) -> Response:
        [deltas] = await collect(generation.run, generation.num_samples)

        def encode() -> bytes:
            return orjson.dumps(message_body(envelope, merged(deltas), job.form, generation.usage))

        cost = format_cost([deltas], job.options.report, job.preparation.model.info)
        return await respond(encode, cost, warning_headers(job.warnings, request.id))

    async def _fill(
        self, request: Request, job: MessagesJob, envelope: Envelope, generation: TextGeneration
    ) -> Response:
        """Has the prompt computed and answers with a message that says nothing."""
        await generation.run(_drop)
        usage = generation.usage._replace(completion_tokens=0)
        nothing = SampleDelta(0, "", FinishReason.LENGTH)
        body = message_body(envelope, nothing, job.form, usage)
        return Response(200, orjson.dumps(body), headers=warning_headers(job.warnings, request.id))

    async def _stream(
        self, request: Request, job: MessagesJob, envelope: Envelope, generation: TextGeneration
    ) -> None:
        # The first delta opens the stream, whether it has text or not.
        await stream_answer(
            request,
            MessageFrames(envelope, generation, job.form, request.id),
            generation.run,
            generation.num_samples,
            self._context.config,
            handshake=True,
            headers=warning_headers(job.warnings, request.id),
        )


def _drop(delta: SampleDelta) -> None:
    """Takes a token that nobody has asked for."""
