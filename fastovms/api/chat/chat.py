"""Answers `POST /chat/completions`: messages in, one answer or a stream out."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.chat.chat_body import chat_body
from fastovms.api.chat.chat_frames import ChatFrames
from fastovms.api.chat.chat_job import ChatJob, names_of, prepare
from fastovms.api.generation.answer import collect, format_cost, respond, stream_answer
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import merged
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.job_generation import generation_of
from fastovms.api.generation.ranking import best_samples
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.tokens.token_report import num_values
from fastovms.api.wire.bodies.request_schemas import ChatRequest
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.warning_header import warning_headers
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import GenerationKind

_CALL_ID_LENGTH: Final = 9
"""The length of a call's id in OVMS. The templates of Mistral's models take no other length."""


class ChatCompletions:
    """The handler of `POST /chat/completions`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request.

        Raises:
            RequestError, BackendError: the answer has not begun, and cannot.
        """
        context = self._context
        preparation = await context.read(request, ChatRequest, dialect, names_of)
        job = await prepare(preparation, self._new_call_id)
        new_id = context.new_id()
        envelope = context.envelope("chatcmpl-", new_id, preparation)
        generation = generation_of(
            job,
            request_id=new_id,
            log_fields=request.log_fields,
            begin_span=context.span_of(request, GenerationKind.CHAT, preparation, envelope.id),
        )
        answer = self._stream if is_streamed(preparation.body) else self._complete
        with generation:
            return await answer(request, job, envelope, generation)

    def _new_call_id(self) -> str:
        return self._context.new_id()[-_CALL_ID_LENGTH:]

    async def _complete(
        self, request: Request, job: ChatJob, envelope: Envelope, generation: TextGeneration
    ) -> Response:
        report, model = job.options.report, job.preparation.model
        deltas = await collect(generation.run, generation.num_samples)

        def encode() -> bytes:
            samples = best_samples([merged(parts) for parts in deltas], job.options.candidates)
            prompt = job.prompt_report(generation)
            body = chat_body(envelope, samples, prompt, job.form, report, generation.usage)
            return orjson.dumps(body)

        cost = format_cost(deltas, report, model.info)
        if report.num_prompt_logprobs is not None:
            cost += len(job.task.token_ids) * num_values(report.num_prompt_logprobs, model.info)
        return await respond(encode, cost, warning_headers(job.warnings, request.id))

    async def _stream(
        self, request: Request, job: ChatJob, envelope: Envelope, generation: TextGeneration
    ) -> None:
        frames = ChatFrames(
            envelope,
            generation,
            job.options.stream_options,
            job.options.report,
            job.form,
            job.prompt_report(generation),
        )
        # The first delta opens the stream with the role, whether it has text or not.
        await stream_answer(
            request,
            frames,
            generation.run,
            generation.num_samples,
            self._context.config,
            handshake=True,
            headers=warning_headers(job.warnings, request.id),
        )
