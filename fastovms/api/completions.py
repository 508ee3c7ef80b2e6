"""`POST /completions`: continues prompts, in one answer or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from fastovms.api.body import decode
from fastovms.api.completion_format import (
    CompletionFrames,
    Envelope,
    Opening,
    PromptReport,
    completion_body,
    make_opening,
)
from fastovms.api.completion_job import CompletionJob, prepare
from fastovms.api.dialect import Dialect
from fastovms.api.echo import NO_ECHO, make_echo
from fastovms.api.fim import find_fim_tokens
from fastovms.api.generate import SampleDelta, TextGeneration, merged
from fastovms.api.logprobs import mean_logprob
from fastovms.api.sampling import is_streamed, request_id
from fastovms.api.schemas import CompletionRequest, ModelField
from fastovms.api.scoring import score_prompts
from fastovms.api.served import ServedModel, ServedModels
from fastovms.api.sse import ClientTooSlow, DeltaStream
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import ALL_LOGPROBS, FinishReason, TokenLogprobs

_MUCH: Final = 2000
"""Tokens and log probabilities from which an answer is formatted in a thread."""

PromptLogprobs = Sequence[Sequence[TokenLogprobs | None]]


class Completions:
    """The handler of `POST /completions`, for every dialect."""

    def __init__(
        self,
        models: ServedModels,
        config: ApiConfig,
        *,
        new_id: Callable[[], str],
        unix_time: Callable[[], float],
        system_fingerprint: str,
    ) -> None:
        """`new_id` makes unique hexadecimal ids."""
        self._models = models
        self._config = config
        self._new_id = new_id
        self._unix_time = unix_time
        self._system_fingerprint = system_fingerprint
        self._fim = {model.info.name: find_fim_tokens(model.tokenizer) for model in models}

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Raises RequestError or BackendError while the answer has not begun."""
        body = self._decode(request.body, dialect)
        model = self._models.find(body.model, dialect)
        request.log_fields["model"] = model.info.name
        request.log_fields["stream"] = is_streamed(body)
        job = await prepare(body, model, dialect, self._config, self._fim[model.info.name])
        new_id = self._new_id()
        envelope = Envelope(
            id=f"cmpl-{request_id(body, new_id)}",
            created=int(self._unix_time()),
            model=model.info.name,
            system_fingerprint=self._system_fingerprint,
            dialect=dialect,
        )
        needs_tokens = job.report.needs_tokens or job.candidates.are_ranked
        generation = TextGeneration(
            model,
            job.tasks,
            request_id=new_id,
            stopping=job.stopping,
            skip_special_tokens=job.skip_special_tokens,
            log_fields=request.log_fields,
            queueing=job.queueing,
            continues_prompt=True,
            track=dialect.text_length if needs_tokens else None,
        )
        prompt_logprobs: PromptLogprobs | None = None
        if job.num_prompt_logprobs is not None and (is_streamed(body) or job.max_tokens == 0):
            scores = await score_prompts(
                model.backend,
                [task.token_ids for task in job.tasks],
                job.num_prompt_logprobs,
                request_id=f"{new_id}-score",
                queueing=job.queueing,
            )
            prompt_logprobs = [score.logprobs for score in scores]
            generation.note_scored([score.num_cached_tokens for score in scores])
        answer = self._stream if is_streamed(body) else self._complete
        with generation:
            return await answer(request, job, model, envelope, generation, prompt_logprobs)

    def _decode(self, data: bytes, dialect: Dialect) -> CompletionRequest:
        """Where a model must be named, its fault goes before those of the other fields."""
        try:
            return decode(data, CompletionRequest)
        except InvalidField:
            if dialect.model_required:
                self._models.find(decode(data, ModelField).model, dialect)
            raise

    async def _complete(
        self,
        request: Request,
        job: CompletionJob,
        model: ServedModel,
        envelope: Envelope,
        generation: TextGeneration,
        prompt_logprobs: PromptLogprobs | None,
    ) -> Response:
        deltas: list[list[SampleDelta]] = [[] for _ in range(generation.num_samples)]
        await _generate(job, generation, lambda delta: deltas[delta.choice].append(delta))
        if prompt_logprobs is None and job.num_prompt_logprobs is not None:
            prompt_logprobs = generation.prompt_logprobs

        def encode() -> bytes:
            samples = _best([merged(parts) for parts in deltas], job)
            prompts = _prompt_reports(job, model, envelope.dialect, prompt_logprobs)
            body = completion_body(envelope, samples, prompts, job.report, generation.usage)
            return orjson.dumps(body)

        num_tokens = sum(len(delta.tokens) for parts in deltas for delta in parts)
        if job.report.num_logprobs is not None:
            num_tokens *= 1 + _num_listed(job.report.num_logprobs, model)
        if num_tokens + _prompt_cost(job, model) < _MUCH:
            return Response(200, encode())
        return Response(200, await asyncio.to_thread(encode))

    async def _stream(
        self,
        request: Request,
        job: CompletionJob,
        model: ServedModel,
        envelope: Envelope,
        generation: TextGeneration,
        prompt_logprobs: PromptLogprobs | None,
    ) -> None:
        def make_openings() -> list[Opening]:
            prompts = _prompt_reports(job, model, envelope.dialect, prompt_logprobs)
            return [make_opening(prompt, job.report) for prompt in prompts]

        much = _prompt_cost(job, model) >= _MUCH
        openings = await asyncio.to_thread(make_openings) if much else make_openings()
        stream = request.stream()
        frames = CompletionFrames(
            envelope,
            generation,
            job.stream_options,
            job.report,
            openings=[opening for opening in openings for _ in range(job.candidates.n)],
        )
        deltas = DeltaStream(
            stream,
            frames,
            num_samples=generation.num_samples,
            handshake=envelope.dialect.handshake,
            max_pending_chars=self._config.max_pending_chars,
        )
        try:
            await _generate(job, generation, deltas.push)
        except ClientTooSlow:
            return
        except Exception as error:
            if not stream.started:
                raise
            deltas.fail(error)


async def _generate(
    job: CompletionJob, generation: TextGeneration, on_delta: Callable[[SampleDelta], None]
) -> None:
    if job.max_tokens != 0:
        await generation.run(on_delta)
        return
    for index in range(generation.num_samples):
        on_delta(SampleDelta(index, "", FinishReason.LENGTH))


def _best(samples: Sequence[SampleDelta], job: CompletionJob) -> Sequence[SampleDelta]:
    """Of each prompt's samples those that are returned: the likeliest, if there are more."""
    n, num_samples = job.candidates.n, job.candidates.num_samples
    if num_samples == n:
        return samples
    chosen: list[SampleDelta] = []
    for start in range(0, len(samples), num_samples):
        ranked = sorted(
            samples[start : start + num_samples],
            key=lambda sample: mean_logprob(sample.tokens),
            reverse=True,
        )
        chosen += ranked[:n]
    return chosen


def _prompt_reports(
    job: CompletionJob,
    model: ServedModel,
    dialect: Dialect,
    prompt_logprobs: PromptLogprobs | None,
) -> list[PromptReport]:
    with_logprobs = job.report.num_logprobs is not None and prompt_logprobs is not None
    reports = []
    for position, (prompt, task) in enumerate(zip(job.prompts, job.tasks, strict=True)):
        logprobs = () if prompt_logprobs is None else prompt_logprobs[position]
        echo = NO_ECHO
        if job.echo:
            echo = make_echo(
                prompt,
                logprobs if with_logprobs else None,
                model.tokenizer,
                dialect.text_length,
                skip_special_tokens=job.skip_special_tokens,
            )
        reports.append(PromptReport(echo, task.token_ids, logprobs))
    return reports


def _prompt_cost(job: CompletionJob, model: ServedModel) -> int:
    """What there is to format about the prompts: their tokens and log probabilities."""
    if not job.echo and job.num_prompt_logprobs is None:
        return 0
    num_tokens = sum(len(task.token_ids) for task in job.tasks)
    if job.num_prompt_logprobs is None:
        needs_decoding = any(prompt.text is None for prompt in job.prompts)
        return num_tokens if needs_decoding else 0
    return num_tokens * (1 + _num_listed(job.num_prompt_logprobs, model))


def _num_listed(num_top: int, model: ServedModel) -> int:
    return model.info.vocab_size if num_top == ALL_LOGPROBS else num_top
