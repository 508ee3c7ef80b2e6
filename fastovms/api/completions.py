"""`POST /completions`: continues prompts, in one answer or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from msgspec import UNSET

from fastovms.api.body import decode
from fastovms.api.completion_format import CompletionFrames, Envelope, completion_body
from fastovms.api.dialect import Dialect
from fastovms.api.generate import PromptTask, SampleDelta, TextGeneration
from fastovms.api.prompts import (
    Prompt,
    encode_prompts,
    fit_max_tokens,
    prompt_name,
    split_prompts,
)
from fastovms.api.sampling import (
    Stopping,
    check_ranges,
    check_supported,
    is_streamed,
    num_samples,
    sampling_params,
    stopping,
    stream_options,
)
from fastovms.api.schemas import CompletionRequest, StreamOptions
from fastovms.api.served import ServedModel, ServedModels
from fastovms.api.sse import ClientTooSlow, DeltaStream
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import FinishReason


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has passed every check."""

    tasks: list[PromptTask]
    echoes: list[str]
    n: int
    max_tokens: int | None
    stopping: Stopping
    skip_special_tokens: bool
    stream_options: StreamOptions


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

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Raises RequestError or BackendError while the answer has not begun."""
        body = decode(request.body, CompletionRequest)
        model = self._models.find(body.model, dialect)
        job = await self._prepare(body, model, dialect)
        envelope = Envelope(
            id=f"cmpl-{self._new_id()}",
            created=int(self._unix_time()),
            model=model.info.name,
            system_fingerprint=self._system_fingerprint,
            dialect=dialect,
        )
        generation = TextGeneration(
            model,
            job.tasks,
            request_id=envelope.id,
            stopping=job.stopping,
            skip_special_tokens=job.skip_special_tokens,
            log_fields=request.log_fields,
        )
        answer = self._stream if is_streamed(body) else self._complete
        with generation:
            return await answer(request, job, envelope, generation)

    async def _prepare(self, body: CompletionRequest, model: ServedModel, dialect: Dialect) -> _Job:
        check_ranges(body, dialect)
        n = num_samples(body, dialect)
        check_supported(body)
        options = stream_options(body, dialect)
        stop = stopping(body, dialect, self._config)
        requested = None if body.max_tokens is UNSET else body.max_tokens
        if requested == 0 and not body.echo:
            raise InvalidField(
                "max_tokens must be at least 1, not 0, unless echo is true", param="max_tokens"
            )
        texts = split_prompts(body.prompt, model.info, self._config)
        if len(texts) * n > self._config.max_choices:
            raise InvalidField(
                f"n must be at most {self._config.max_choices // len(texts)} with {len(texts)} "
                f"prompts, not {n}",
                param="n",
            )
        add_special_tokens = body.add_special_tokens is not False
        prompts = await encode_prompts(
            texts, model.tokenizer, model.info, add_special_tokens=add_special_tokens
        )
        max_tokens = requested
        if max_tokens is None:
            max_tokens = dialect.default_max_tokens or model.info.defaults.max_new_tokens
        tasks = []
        for position, prompt in enumerate(prompts):
            fitting = fit_max_tokens(
                len(prompt.token_ids),
                max_tokens,
                model.info,
                clamp=requested is None or dialect.clamps_max_tokens,
                name=prompt_name(position, len(prompts)),
            )
            params = sampling_params(body, dialect, model.info, n=n, max_tokens=fitting)
            tasks.append(PromptTask(prompt.token_ids, params))
        return _Job(
            tasks=tasks,
            echoes=await _echoes(prompts, model) if body.echo else [],
            n=n,
            max_tokens=max_tokens,
            stopping=stop,
            skip_special_tokens=body.skip_special_tokens is not False,
            stream_options=options,
        )

    async def _complete(
        self, request: Request, job: _Job, envelope: Envelope, generation: TextGeneration
    ) -> Response:
        texts = [[_echo(job, index)] for index in range(generation.num_samples)]
        last: dict[int, SampleDelta] = {}

        def collect(delta: SampleDelta) -> None:
            texts[delta.choice].append(delta.text)
            if delta.finish_reason is not None:
                last[delta.choice] = delta

        await self._generate(job, generation, collect)
        choices = [last[index]._replace(text="".join(text)) for index, text in enumerate(texts)]
        return Response(200, orjson.dumps(completion_body(envelope, choices, generation.usage)))

    async def _stream(
        self, request: Request, job: _Job, envelope: Envelope, generation: TextGeneration
    ) -> Response | None:
        stream = request.stream()
        frames = CompletionFrames(
            envelope,
            generation,
            job.stream_options,
            echoes=[_echo(job, index) for index in range(generation.num_samples)],
        )
        deltas = DeltaStream(
            stream,
            frames,
            num_samples=generation.num_samples,
            handshake=envelope.dialect.handshake,
            max_pending_chars=self._config.max_pending_chars,
        )
        try:
            await self._generate(job, generation, deltas.push)
        except ClientTooSlow:
            return None
        except Exception as error:
            if not stream.started:
                raise
            deltas.fail(error)
        return None

    @staticmethod
    async def _generate(
        job: _Job, generation: TextGeneration, on_delta: Callable[[SampleDelta], None]
    ) -> None:
        if job.max_tokens != 0:
            await generation.run(on_delta)
            return
        for index in range(generation.num_samples):
            on_delta(SampleDelta(index, "", FinishReason.LENGTH))


def _echo(job: _Job, index: int) -> str:
    """What stands before the text of a choice."""
    return job.echoes[index // job.n] if job.echoes else ""


async def _echoes(prompts: list[Prompt], model: ServedModel) -> list[str]:
    def texts() -> list[str]:
        decode_ids = model.tokenizer.decode
        return [
            decode_ids(prompt.token_ids) if prompt.text is None else prompt.text
            for prompt in prompts
        ]

    if all(prompt.text is not None for prompt in prompts):
        return texts()
    return await asyncio.to_thread(texts)
