"""The whole API with fakes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import count

import orjson
from prometheus_client import CollectorRegistry

from fastovms.api.admin import HealthRoutes, ServerStatus
from fastovms.api.body import BodyReader
from fastovms.api.context import ApiContext
from fastovms.api.image_parts import ImageInput
from fastovms.api.served import ChatModel, ServedModel, ServedModels
from fastovms.app.parts import Parts
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.config import ApiConfig, ModelLimits
from fastovms.http.messages import Budget, Caller, Headers, Request, Response
from fastovms.http.routing import Match, Router
from fastovms.parts.media.files import Documents
from fastovms.parts.responses import routes as responses
from fastovms.parts.responses.background import ResponsesState
from fastovms.telemetry.metrics import GenerationCollector, GenerationMetrics
from fastovms.telemetry.tracing import Tracer
from tests.api.described import check_answer, check_events, check_taken, operation_of
from tests.fakes import ByteTokenizer, FakeBackend, FakeStream, make_request


class Api:
    """Calls the routes as the HTTP layer does. Accepted requests and answers are checked against
    the OpenAPI document."""

    def __init__(
        self,
        backend: FakeBackend,
        config: ApiConfig,
        limits: ModelLimits,
        tokenizer: ByteTokenizer,
        chat: ChatModel,
        state: ResponsesState | None,
        images: ImageInput | None,
        first_id: int,
        tracer: Tracer | None,
        documents: Documents | None = None,
    ) -> None:
        self.backend = backend
        self.last_request: Request | None = None
        self.registry = CollectorRegistry()
        self.metrics = GenerationMetrics(backend.model.name, backend.stats)
        self.registry.register(GenerationCollector(lambda: [self.metrics]))
        model = ServedModel(backend, tokenizer, self.metrics, limits, chat, images=images)
        models = ServedModels([model])
        ids = count(first_id)
        self.router = Router()
        self.context = ApiContext(
            models,
            config,
            new_id=lambda: f"{next(ids):032x}",
            unix_time=lambda: 1_750_000_000.5,
            system_fingerprint="fp_test",
            bodies=BodyReader(),
            tracer=tracer,
            read_files=None if documents is None else documents.read,
        )
        self.parts = Parts()
        add_model_routes(self.router, self.context, self.parts)
        for route in responses.endpoints(self.context, state):
            self.router.add(*route)
        self.status = ServerStatus.serving(models)
        add_health_routes(self.router, HealthRoutes(self.status, self.registry, "1.2.3"))

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        stream: FakeStream | None = None,
        *,
        tenant: str = "",
        is_admin: bool = False,
        priority: int | None = None,
        client: str = "",
        headers: Mapping[str, str] | None = None,
        budget: Budget | None = None,
    ) -> Response | None:
        raw_path, _, query = path.partition("?")
        match = self.router.match(method, raw_path)
        assert isinstance(match, Match), path
        request = self.last_request = make_request(raw_path, body, method=method, stream=stream)
        request.query, request.client = query, client
        request.route = match.pattern
        request.caller = Caller(
            tenant=tenant,
            is_admin=is_admin or request.caller.is_admin,
            priority=priority,
            budget=budget,
        )
        request.headers = Headers((headers or {}).items())
        request.path_params = match.path_params
        answer = match.handler(request)
        response = await answer if inspect.isawaitable(answer) else answer
        if response is None or response.status == 200:
            check_taken(self.router, method, match.pattern, body)
        if response is not None:
            check_answer(self.router, method, match.pattern, response)
        elif stream is not None and stream.closed:
            has_lines = operation_of(self.router, method, match.pattern).lines is not None
            check_events(
                self.router, method, match.pattern, stream.lines if has_lines else stream.events
            )
        return response

    async def post(self, path: str, body: object) -> tuple[int, dict]:
        """Returns the status and the body of an answer that is not streamed."""
        response = await self.call("POST", path, body, FakeStream())
        assert response is not None, "the answer was streamed"
        return response.status, orjson.loads(response.body)

    async def answer(self, path: str, body: object) -> dict:
        """Returns the body of an answer that is not streamed and has status 200."""
        status, answer = await self.post(path, body)
        assert status == 200, answer
        return answer

    async def refused(self, path: str, body: object) -> str | None:
        """Returns the field that an error of OpenAI's dialect with status 400 names."""
        status, answer = await self.post(path, body)
        assert status == 400, answer
        return answer["error"]["param"]

    async def stream(self, path: str, body: dict) -> list:
        """Returns the events of a streamed answer."""
        stream = FakeStream()
        assert await self.call("POST", path, {**body, "stream": True}, stream) is None
        assert stream.closed
        return stream.events
