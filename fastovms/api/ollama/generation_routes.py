"""Answers `POST /api/chat` and `/api/generate`: as lines of JSON, or whole where `stream` is
false."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import orjson

from fastovms.api.generation.answer import Run, collect, format_cost, respond, stream_answer
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import DeltaCallback, merged
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.generation.job_generation import generation_of
from fastovms.api.ollama.answer_lines import (
    JSON_LINES,
    AnswerCollector,
    AnswerLines,
    Members,
    OllamaAnswer,
    Told,
    chat_members,
    generate_members,
    part_head,
)
from fastovms.api.ollama.asking import Asking, asking
from fastovms.api.ollama.ollama_job import OllamaJob, prepare_chat, prepare_prompt
from fastovms.api.ollama.ollama_options import named_as_given
from fastovms.api.ollama.ollama_schema import OllamaChatRequest, OllamaGenerateRequest
from fastovms.api.ollama.raw_job import is_raw, prepare_raw
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.typed_body import hold_model, read_named
from fastovms.api.serving.keep_alive import Departure, departure
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.warning_header import warning_headers
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import HeaderPairs, Request, Response
from fastovms.params import GenerationOutput
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.tokens.fim import FimFinder

_UNBUFFERED: Final[HeaderPairs] = (("X-Accel-Buffering", "no"),)

_CALL_ID_LENGTH: Final = 9
"""The length of a call's id. The templates of Mistral's models take no other length."""

Body = OllamaChatRequest | OllamaGenerateRequest


class _Door(NamedTuple):
    """What the two endpoints differ in.

    Attributes:
        members: makes the members that tell of a part of an answer.
        prepare: checks a request and makes what runs it.
        is_empty: whether there is nothing to answer, so that only the model is moved.
    """

    kind: GenerationKind
    members: Callable[[Told], Members]
    prepare: Callable[[Asking], Awaitable[OllamaJob]]
    is_empty: bool


class OllamaGeneration:
    """The handlers."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._fim = FimFinder()

    async def chat(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers messages; without any, loads or unloads the model.

        Raises:
            RequestError, BackendError: the answer has not begun, and cannot.
        """
        context = self._context
        body, known = await read_named(
            request, OllamaChatRequest, context.models, dialect, context.bodies
        )
        is_empty = not body.messages
        door = _Door(
            GenerationKind.CHAT, chat_members, lambda asked: prepare_chat(asked, body), is_empty
        )
        return await self._answer(request, dialect, body, known, door)

    async def generate(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a prompt, or continues it; without any, loads or unloads the model. Raises as
        `chat` does."""
        context = self._context
        body, known = await read_named(
            request, OllamaGenerateRequest, context.models, dialect, context.bodies
        )
        if body.template:
            raise InvalidField(
                "template is not supported: the model's own is used. With raw the prompt goes to "
                "the model as it is",
                param="template",
            )

        async def prepare(asked: Asking) -> OllamaJob:
            model = asked.preparation.model
            if is_raw(body, model):
                return await prepare_raw(asked, body, self._fim(model.tokenizer))
            return await prepare_prompt(asked, body)

        door = _Door(GenerationKind.TEXT_COMPLETION, generate_members, prepare, not body.prompt)
        return await self._answer(request, dialect, body, known, door)

    async def _answer(
        self, request: Request, dialect: Dialect, body: Body, known: KnownModel, door: _Door
    ) -> Response | None:
        """Answers what there is to answer. A model that comes and goes leaves memory behind it
        where the client wants that, and may."""
        with departure(body.keep_alive, request, known, self._context.models) as leaving:
            if not door.is_empty:
                return await self._generate(request, dialect, body, known, door, leaving.warnings)
            if not leaving.is_wanted:
                await self._hold(request, known)
            return self._moved(request, body, known, door, leaving)

    async def _generate(
        self,
        request: Request,
        dialect: Dialect,
        body: Body,
        known: KnownModel,
        door: _Door,
        warnings: Sequence[str],
    ) -> Response | None:
        context = self._context
        began = _now()
        model = await self._hold(request, known)
        load_time = _now() - began
        with named_as_given():
            asked = asking(context, request, body, model, dialect)
            job = await door.prepare(asked)
        new_id, preparation = context.new_id(), job.preparation
        generation = generation_of(
            job,
            request_id=new_id,
            log_fields=request.log_fields,
            begin_span=context.span_of(request, door.kind, preparation, new_id),
        )
        token_ids = [*job.task.token_ids] if job.tells_context else []
        form = OllamaAnswer(
            asked.model_name,
            self._context.unix_time,
            door.members,
            AnswerCollector(self._new_call_id),
            job.options.report,
            lambda: generation.usage,
            lambda: _now() - request.received_at,
            load_time,
            (lambda: token_ids) if job.tells_context else None,
        )
        run = _noting(generation, token_ids) if job.tells_context else generation.run
        headers = warning_headers([*job.warnings, *warnings], request.id)
        with generation, named_as_given():
            if not is_streamed(preparation.body):
                [deltas] = await collect(run, 1)
                cost = format_cost([deltas], job.options.report, model.info) + len(token_ids)
                return await respond(lambda: form.whole(merged(deltas)), cost, headers)
            await stream_answer(
                request,
                AnswerLines(form, dialect),
                run,
                1,
                context.config,
                handshake=False,
                content_type=JSON_LINES,
                headers=(*headers, *_UNBUFFERED),
            )
            return None

    async def _hold(self, request: Request, known: KnownModel) -> ServedModel:
        tasks = (Task.TEXT_GENERATION,)
        model = await hold_model(request, known, self._context.models, tasks, streams=False)
        assert isinstance(model, ServedModel)
        return model

    def _moved(
        self, request: Request, body: Body, known: KnownModel, door: _Door, leaving: Departure
    ) -> Response:
        """Returns the answer to a request that has only the model moved: where the model is then,
        wherever the client wants it."""
        stays = known.served is not None and not leaving.happens
        head = part_head(body.model or known.name, self._context.unix_time)
        told = door.members(Told())
        end = {"done": True, "done_reason": "load" if stays else "unload"}
        headers = warning_headers(leaving.warnings, request.id)
        return Response(200, orjson.dumps({**head, **told, **end}), headers=headers)

    def _new_call_id(self) -> str:
        return self._context.new_id()[-_CALL_ID_LENGTH:]


def _noting(generation: TextGeneration, token_ids: list[int]) -> Run:
    """Returns what runs a generation of one sample and adds its tokens to a list."""

    def note(output: GenerationOutput) -> None:
        token_ids.extend(output.token_ids)

    async def run(on_delta: DeltaCallback) -> None:
        generation.submit(on_delta, note)
        await generation.finished()

    return run


def _now() -> float:
    return asyncio.get_running_loop().time()
