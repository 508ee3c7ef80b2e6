"""The whole API over fakes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from itertools import count

import orjson
import pytest
from prometheus_client import CollectorRegistry

from fastovms.api.admin.health import HealthRoutes
from fastovms.api.admin.status import ServerStatus
from fastovms.api.generation.context import ApiContext
from fastovms.api.responses.background_runs import BackgroundRuns, ResponsesState
from fastovms.api.routes import add_health_routes, add_model_routes
from fastovms.api.serving.chat_model import ChatModel
from fastovms.api.serving.images import ImageInput
from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.config.api_config import ApiConfig
from fastovms.config.model_config import ModelLimits
from fastovms.http.routing.messages import Headers, Request, Response
from fastovms.http.routing.router import Match, Router
from fastovms.params import ModelInfo
from fastovms.state.sqlite.database import Database
from fastovms.state.state_database import StateBounds
from fastovms.state.threaded_store import ThreadedStore
from fastovms.telemetry.metrics import GenerationCollector, GenerationMetrics
from fastovms.telemetry.tracing import Tracer
from tests.api.described import check_answer, check_events, check_taken, operation_of
from tests.fakes import ByteTokenizer, FakeBackend, FakeStream, Script, make_request, model_info


class Api:
    """Calls the routes as the HTTP layer would, without it. What is taken and what is answered is
    held to what describes it."""

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
        )
        add_model_routes(self.router, self.context, state)
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
        headers: Mapping[str, str] | None = None,
    ) -> Response | None:
        raw_path, _, query = path.partition("?")
        match = self.router.match(method, raw_path)
        assert isinstance(match, Match), path
        request = self.last_request = make_request(raw_path, body, method=method, stream=stream)
        request.query = query
        request.tenant, request.is_admin = tenant, is_admin or request.is_admin
        request.headers = Headers((headers or {}).items())
        request.path_params = match.path_params
        answer = match.handler(request)
        response = await answer if inspect.isawaitable(answer) else answer
        if response is None or response.status == 200:
            check_taken(method, match.pattern, body)
        if response is not None:
            check_answer(method, match.pattern, response)
        elif stream is not None and stream.closed:
            has_lines = operation_of(method, match.pattern).lines is not None
            check_events(method, match.pattern, stream.lines if has_lines else stream.events)
        return response

    async def post(self, path: str, body: object) -> tuple[int, dict]:
        """Status and body of an answer that is not streamed."""
        response = await self.call("POST", path, body, FakeStream())
        assert response is not None, "the answer was streamed"
        return response.status, orjson.loads(response.body)

    async def stream(self, path: str, body: dict) -> list:
        """The events of a streamed answer."""
        stream = FakeStream()
        assert await self.call("POST", path, {**body, "stream": True}, stream) is None
        assert stream.closed
        return stream.events


@pytest.fixture(scope="session")
def make_api() -> Callable[..., Api]:
    def make(
        script: Script | str = "hello",
        *,
        model: ModelInfo | None = None,
        tokens_per_step: int = 1,
        config: ApiConfig | None = None,
        limits: ModelLimits | None = None,
        tokenizer: ByteTokenizer | None = None,
        chat: ChatModel | None = None,
        state: ResponsesState | None = None,
        images: ImageInput | None = None,
        first_id: int = 0,
        tracer: Tracer | None = None,
    ) -> Api:
        if isinstance(script, str):
            tokens = list(script.encode())
            play: Script = lambda request, index: tokens  # noqa: E731
        else:
            play = script
        backend = FakeBackend(play, model or model_info(), tokens_per_step=tokens_per_step)
        return Api(
            backend,
            config or ApiConfig(),
            limits or ModelLimits(),
            tokenizer or ByteTokenizer(),
            chat or ChatModel(),
            state,
            images,
            first_id,
            tracer,
        )

    return make


@pytest.fixture
async def make_state():
    """Makes what outlives requests, in memory."""
    states = []

    def make(*, max_runs: int = 10, max_bytes: int = 10**12) -> ResponsesState:
        store = ThreadedStore(Database(":memory:", StateBounds(1e9, 10**9, max_bytes), time.time))
        states.append(ResponsesState(store, BackgroundRuns(max_runs)))
        return states[-1]

    yield make
    for state in states:
        await state.runs.drain(10)
        await state.store.close()
