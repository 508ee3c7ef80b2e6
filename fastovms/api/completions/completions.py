"""Answers `POST /completions`: continues prompts, in one answer or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson

from fastovms.api.completions.completion_body import CompletionPromptReport, completion_body
from fastovms.api.completions.completion_frames import ChoiceOpening, CompletionFrames, make_opening
from fastovms.api.completions.completion_job import CompletionJob, names_of, prepare
from fastovms.api.completions.echo import NO_ECHO, make_echo
from fastovms.api.generation.answer import collect, format_cost, respond, stream_answer
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import DeltaCallback, SampleDelta, merged
from fastovms.api.generation.envelope import Envelope
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.ranking import best_samples
from fastovms.api.generation.scoring import score_prompts
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.prompting import offload
from fastovms.api.request.tokens.token_report import num_values
from fastovms.api.wire.bodies.request_schemas import CompletionRequest
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.warning_header import warning_headers
from fastovms.http.routing.messages import Request, Response
from fastovms.params import FinishReason, TokenLogprobs
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.tokens.fim import FimFinder

PromptLogprobs = Sequence[Sequence[TokenLogprobs | None]]


class Completions:
    """The handler of `POST /completions`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._fim = FimFinder()

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request.

        Raises:
            RequestError, BackendError: the answer has not begun, and cannot.
        """
        context = self._context
        preparation = await context.read(request, CompletionRequest, dialect, names_of)
        body, model = preparation.body, preparation.model
        job = await prepare(preparation, self._fim(model.tokenizer))
        new_id = context.new_id()
        envelope = context.envelope("cmpl-", new_id, preparation)
        generation = TextGeneration(
            model,
            job.tasks,
            job.options,
            request_id=new_id,
            log_fields=request.log_fields,
            measure=dialect.text_length,
            begin_span=context.span_of(
                request, GenerationKind.TEXT_COMPLETION, preparation, envelope.id
            ),
        )
        answer = self._stream if is_streamed(body) else self._complete
        with generation:
            prompt_logprobs: PromptLogprobs | None = None
            if job.num_prompt_logprobs is not None and (is_streamed(body) or not job.generates):
                scores = await score_prompts(
                    model.backend,
                    [task.token_ids for task in job.tasks],
                    job.num_prompt_logprobs,
                    request_id=f"{new_id}-score",
                    queueing=job.options.queueing,
                )
                prompt_logprobs = [score.logprobs for score in scores]
                generation.note_scored([score.num_cached_tokens for score in scores])
            return await answer(request, job, envelope, generation, prompt_logprobs)

    async def _complete(
        self,
        request: Request,
        job: CompletionJob,
        envelope: Envelope,
        generation: TextGeneration,
        prompt_logprobs: PromptLogprobs | None,
    ) -> Response:
        report, model = job.options.report, job.preparation.model
        deltas = await collect(partial(_generate, job, generation), generation.num_samples)
        if prompt_logprobs is None and job.num_prompt_logprobs is not None:
            prompt_logprobs = generation.prompt_logprobs

        def encode() -> bytes:
            samples = best_samples([merged(parts) for parts in deltas], job.options.candidates)
            prompts = _prompt_reports(job, prompt_logprobs)
            body = completion_body(envelope, samples, prompts, report, generation.usage)
            return orjson.dumps(body)

        cost = format_cost(deltas, report, model.info) + _prompt_cost(job)
        return await respond(encode, cost, warning_headers(job.warnings, request.id))

    async def _stream(
        self,
        request: Request,
        job: CompletionJob,
        envelope: Envelope,
        generation: TextGeneration,
        prompt_logprobs: PromptLogprobs | None,
    ) -> None:
        def make_openings() -> list[ChoiceOpening]:
            prompts = _prompt_reports(job, prompt_logprobs)
            return [make_opening(prompt, job.options.report) for prompt in prompts]

        openings = await offload.run(make_openings, _prompt_cost(job))
        frames = CompletionFrames(
            envelope,
            generation,
            job.options.stream_options,
            job.options.report,
            openings=[opening for opening in openings for _ in range(job.options.candidates.n)],
        )
        await stream_answer(
            request,
            frames,
            partial(_generate, job, generation),
            generation.num_samples,
            self._context.config,
            handshake=envelope.dialect.handshake,
            headers=warning_headers(job.warnings, request.id),
        )


async def _generate(
    job: CompletionJob, generation: TextGeneration, on_delta: DeltaCallback
) -> None:
    if job.generates:
        await generation.run(on_delta)
        return
    for index in range(generation.num_samples):
        on_delta(SampleDelta(index, "", FinishReason.LENGTH))


def _prompt_reports(
    job: CompletionJob, prompt_logprobs: PromptLogprobs | None
) -> list[CompletionPromptReport]:
    model, dialect = job.preparation.model, job.preparation.dialect
    with_logprobs = job.options.report.num_logprobs is not None and prompt_logprobs is not None
    reports = []
    for position, (prompt, task) in enumerate(zip(job.prompts, job.tasks, strict=True)):
        logprobs = () if prompt_logprobs is None else prompt_logprobs[position]
        echo = NO_ECHO
        if job.is_echoed:
            echo = make_echo(
                prompt,
                logprobs if with_logprobs else None,
                model.tokenizer,
                dialect.text_length,
                skip_special_tokens=job.options.skip_special_tokens,
            )
        reports.append(CompletionPromptReport(echo, task.token_ids, logprobs))
    return reports


def _prompt_cost(job: CompletionJob) -> int:
    """Returns how much there is to format about the prompts: their tokens and log probabilities."""
    if not job.is_echoed and job.num_prompt_logprobs is None:
        return 0
    num_tokens = sum(len(task.token_ids) for task in job.tasks)
    if job.num_prompt_logprobs is None:
        needs_decoding = any(prompt.text is None for prompt in job.prompts)
        return num_tokens if needs_decoding else 0
    return num_tokens * num_values(job.num_prompt_logprobs, job.preparation.model.info)
