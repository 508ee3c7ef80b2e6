"""`POST /chat/completions`: answers messages, in one answer or as a stream."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.chat.chat_format import ChatFrames, chat_body
from fastovms.api.chat.chat_job import ChatJob, prepare
from fastovms.api.generation.answer import collect, format_cost, respond, stream_answer
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import merged
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.ranking import best_samples
from fastovms.api.request.sampling import is_streamed
from fastovms.api.request.token_report import num_values
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import ChatRequest
from fastovms.http.routing.messages import Request, Response

_CALL_ID_LENGTH: Final = 9
"""OVMS's. The templates of Mistral's models take ids of no other length."""


class ChatCompletions:
    """The handler of `POST /chat/completions`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Raises RequestError or BackendError while the answer has not begun."""
        context = self._context
        body, model = await context.read(request, ChatRequest, dialect)
        job = await prepare(
            body,
            len(request.body),
            model,
            dialect,
            context.config,
            client=request.sender,
            new_call_id=self._new_call_id,
        )
        terms = job.terms
        new_id = context.new_id()
        envelope = context.envelope("chatcmpl-", new_id, body, model, dialect)
        needs_tokens = terms.report.needs_tokens or terms.candidates.are_ranked
        generation = TextGeneration(
            model,
            [job.task],
            request_id=new_id,
            stopping=terms.stopping,
            skip_special_tokens=terms.skip_special_tokens,
            log_fields=request.log_fields,
            queueing=terms.queueing,
            new_parser=job.new_parser,
            keep=model.chat.tags,
            track=dialect.text_length if needs_tokens else None,
        )
        answer = self._stream if is_streamed(body) else self._complete
        with generation:
            return await answer(request, job, model, envelope, generation)

    def _new_call_id(self) -> str:
        return self._context.new_id()[-_CALL_ID_LENGTH:]

    async def _complete(
        self,
        request: Request,
        job: ChatJob,
        model: ServedModel,
        envelope: Envelope,
        generation: TextGeneration,
    ) -> Response:
        report = job.terms.report
        deltas = await collect(generation.run, generation.num_samples)

        def encode() -> bytes:
            samples = best_samples([merged(parts) for parts in deltas], job.terms.candidates)
            prompt = job.prompt_report(generation)
            body = chat_body(envelope, samples, prompt, job.form, report, generation.usage)
            return orjson.dumps(body)

        cost = format_cost(deltas, report, model.info)
        if report.num_prompt_logprobs is not None:
            cost += len(job.task.token_ids) * num_values(report.num_prompt_logprobs, model.info)
        return await respond(encode, cost)

    async def _stream(
        self,
        request: Request,
        job: ChatJob,
        model: ServedModel,
        envelope: Envelope,
        generation: TextGeneration,
    ) -> None:
        frames = ChatFrames(
            envelope,
            generation,
            job.terms.stream_options,
            job.terms.report,
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
        )
