"""The dependencies shared by all generating endpoints: models, configuration, metrics, ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastovms.api import offload
from fastovms.api.answer import SYSTEM_FINGERPRINT, Envelope
from fastovms.api.body import BodyReader
from fastovms.api.client_request import ClientRequest, FieldNames, RequestDocument
from fastovms.api.dialect import Dialect
from fastovms.api.fields import is_streamed, request_id
from fastovms.api.generate import BeginSpan, TextGeneration
from fastovms.api.prepare import ModelInput
from fastovms.api.request_schemas import GenerationFields
from fastovms.api.served import ServedModel, ServedModels
from fastovms.api.typed_body import hold_model, read_named
from fastovms.config import ApiConfig
from fastovms.http.messages import Budget, Request
from fastovms.params import SamplingParams, Task
from fastovms.telemetry.tracing import GenerationKind, GenerationSpan, GenerationStart, Tracer

Body = TypeVar("Body", bound=GenerationFields)


_CALL_ID_LENGTH: Final = 9


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The dependencies of handlers.

    Attributes:
        new_id: creates unique ids of 32 random hexadecimal digits.
        find_budget: returns the limits of a tenant's API key, for work without a client.
        tracer: records spans of generations; None = no spans are recorded.
        read_files: replaces the documents of a request by their texts, and returns the total number
            of characters; None = no model can read documents.
    """

    models: ServedModels
    config: ApiConfig
    new_id: Callable[[], str]
    unix_time: Callable[[], float]
    bodies: BodyReader
    find_budget: Callable[[str], Budget | None] = lambda tenant: None
    system_fingerprint: str = SYSTEM_FINGERPRINT
    tracer: Tracer | None = None
    read_files: Callable[[Request, Sequence[RequestDocument]], Awaitable[int]] | None = None

    def new_call_id(self) -> str:
        """Returns an id for a tool call, with the length of OVMS's ids, which the templates of
        Mistral's models require."""
        return self.new_id()[-_CALL_ID_LENGTH:]

    async def read_documents(
        self, request: Request, find: Callable[[], Iterable[RequestDocument]], size: int
    ) -> int:
        """Replaces the documents of a request by their texts. Returns the total number of
        characters. Raises RequestError if a document of the last message cannot be read. `find`
        returns the documents, in time proportional to `size`."""
        if self.read_files is None:
            return 0
        given = await offload.run(lambda: list(find()), size)
        return await self.read_files(request, given) if given else 0

    async def read(
        self,
        request: Request,
        schema: type[Body],
        dialect: Dialect,
        names_of: Callable[[Body], FieldNames],
    ) -> ClientRequest[Body]:
        """Reads a body and finds its model. Records the model and whether the answer is streamed
        for logs and metrics. The model stays loaded until the request ends. If the model must be
        loaded first, a client that wants a stream gets SSE comments while it waits. Raises
        BackendError if the model cannot be loaded now, RequestError if it does not generate text,
        and the errors of `read_named`."""
        body, known = await read_named(request, schema, self.models, dialect, self.bodies)
        tasks, streams = (Task.TEXT_GENERATION,), is_streamed(body)
        model = await hold_model(request, known, self.models, tasks, streams=streams)
        assert isinstance(model, ServedModel)
        return self.asked(request, body, model=model, dialect=dialect, names=names_of(body))

    def asked(
        self,
        request: Request,
        body: Body,
        *,
        model: ServedModel,
        dialect: Dialect,
        names: FieldNames,
        text_format: Mapping[str, Any] | None = None,
        new_id: str | None = None,
    ) -> ClientRequest[Body]:
        """Returns the record of a decoded request, and records whether the answer is streamed.
        `new_id` is its id; "" = create one."""
        request.log_fields["stream"] = is_streamed(body)
        return ClientRequest(
            id=new_id or self.new_id(),
            body=body,
            size=len(request.body),
            model=model,
            dialect=dialect,
            config=self.config,
            names=names,
            caller=request.caller,
            client=request.sender,
            text_format=text_format,
        )

    def envelope(
        self, prefix: str, new_id: str, body: GenerationFields, model: str, dialect: Dialect
    ) -> Envelope:
        """Returns the fields that are repeated in every part of an answer.

        Args:
            prefix: the beginning of the answer's id.
            new_id: the rest of the id, unless the client has given an id.
            model: the name of the model.
        """
        return Envelope(
            id=f"{prefix}{request_id(body, new_id)}",
            created=int(self.unix_time()),
            model=model,
            system_fingerprint=self.system_fingerprint,
            dialect=dialect,
        )

    def start_generation(
        self,
        request: Request,
        given: ModelInput[Any],
        prefix: str,
        kind: GenerationKind = GenerationKind.CHAT,
    ) -> tuple[Envelope, TextGeneration]:
        """Returns the fields that are repeated in every part of an answer, and the generation.
        `prefix` is the beginning of the answer's id."""
        asked = given.asked
        model, dialect = asked.model.info.name, asked.dialect
        envelope = self.envelope(prefix, asked.id, asked.body, model, dialect)
        span = self.span_of(request, kind, asked, envelope.id)
        return envelope, TextGeneration(given, request.log_fields, span)

    def span_of(
        self,
        request: Request,
        kind: GenerationKind,
        asked: ClientRequest[GenerationFields],
        response_id: str,
        conversation_id: str | None = None,
    ) -> BeginSpan | None:
        """Returns a function that begins the span of a request's generation and stores it in the
        request; None = tracing is off."""
        tracer = self.tracer
        if tracer is None:
            return None

        def begin(params: SamplingParams) -> GenerationSpan | None:
            body, model = asked.body, asked.model.info.name
            start = GenerationStart(
                kind,
                age=asyncio.get_running_loop().time() - request.received_at,
                request_id=request.id,
                response_id=response_id,
                asked_model=body.model or model,
                model=model,
                params=params,
                is_streamed=is_streamed(body),
                conversation_id=conversation_id,
                trace=request.trace,
            )
            span = tracer.begin(start)
            if span is not None:
                request.trace = span.context
            return span

        return begin


class ContextHandlers:
    """Base class of handlers that need only the context."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
