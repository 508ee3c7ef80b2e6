"""Endpoints for operators and monitoring: health, status, lists of models, OVMS's servables."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from inspect import isawaitable
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import CollectorRegistry

from fastovms.api.body import BodyReader, show
from fastovms.api.dialect import (
    ANTHROPIC,
    OVMS,
    AnswerSchema,
    Dialect,
    OvmsError,
    dialect_of,
    error_response,
    is_anthropics,
    last_frames,
    model_not_found,
    or_unset,
    render_error,
)
from fastovms.api.endpoint import ListPage, UrlQuery, json_response, list_page
from fastovms.api.served import KnownModel, ModelState, ServedModels
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    MalformedBody,
    NotFound,
    Overloaded,
    RequestError,
)
from fastovms.fair_queue import Shares
from fastovms.http.messages import Request, Response
from fastovms.http.routing import MethodNotAllowed, Router
from fastovms.params import Task
from fastovms.telemetry.metrics import render

KEY_LENGTH: Final = 16
"""The number of hexadecimal digits of a key's digest that are shown to identify the key."""

_MOST: Final = 1000
"""The maximum number of work items on a page."""


class WorkItem(NamedTuple):
    """A request, a background response or a batch that has not ended.

    Attributes:
        tenant: the digest of the API key that started it; "" = no key was needed.
        detail: the path of a request, the model of a response, the endpoint of a batch.
        created_at: Unix time; None = recorded by another server.
        cancel: stops the work.
        progress: (completed steps, all steps) of an image request; None = other work, or no step
            yet.
    """

    kind: Literal["request", "response", "batch"]
    id: str
    tenant: str
    status: str
    detail: str
    created_at: int | None
    cancel: Callable[[], Awaitable[object]]
    progress: tuple[int, int] | None = None


WorkSource = Callable[[], Awaitable[Sequence[WorkItem]]]
"""A function that returns all work of one kind, oldest first."""


class RunningPart(ABC):
    """A part of the server with work that continues between requests.

    Attributes:
        num_running: the number of background responses.
    """

    num_running: int = 0

    @abstractmethod
    async def work(self) -> Sequence[WorkItem]:
        """Returns the running work of all tenants."""

    @abstractmethod
    def set_tenants(self, tenants: Collection[str]) -> int:
        """Cancels or pauses the work of all tenants except these. Returns the number of affected
        items."""

    @abstractmethod
    async def drain(self, seconds: float) -> None:
        """Waits for the work to end, for at most this many seconds."""

    @property
    @abstractmethod
    def ends(self) -> Sequence[tuple[str, Callable[[], Awaitable[object]]]]:
        """The functions that stop all work, and their names for the log. The next process resumes
        the work."""


class WorkRoutes:
    """The handlers of `/v1/work`. The query parameters `kind` and `key` filter the list."""

    def __init__(self, sources: Sequence[WorkSource]) -> None:
        self._sources = sources

    async def show(self, request: Request, dialect: Dialect) -> Response:
        """Lists the running work of all tenants."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        query = UrlQuery(request)
        found = await self._find(query)
        return json_response(list_page(found, query.page(usual=100, most=_MOST), _describe))

    async def cancel(self, request: Request, dialect: Dialect) -> Response:
        """Cancels all running work with this id. Clients may choose ids, so several API keys may
        use the same one. Raises NotFound if no running work has the id."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        id = request.path_params["id"]
        found = [item for item in await self._find(UrlQuery(request)) if item.id == id]
        if not found:
            raise NotFound(f"no work with the id {show(id)} runs", param="id")
        for item in found:
            await item.cancel()
        data = [_describe(item._replace(status="cancelled")) for item in found]
        return json_response(CancelledWork(data=data))

    async def _find(self, query: UrlQuery) -> list[WorkItem]:
        kind, key = query.text("kind"), query.text("key")
        return [
            item
            for source in self._sources
            for item in await source()
            if kind in (None, item.kind) and item.tenant.startswith(key or "")
        ]


class WorkProgress(AnswerSchema, kw_only=True):
    """The progress of an image request, in steps."""

    done: int
    total: int


class Work(AnswerSchema, kw_only=True):
    """A request, a background response or a batch that is running. `key` is the beginning of the
    SHA-256 digest of its API key; empty without a key. `detail` is its path, model or endpoint.
    Only image requests have `progress`."""

    object: Literal["work"] = "work"
    kind: Literal["request", "response", "batch"]
    id: str
    key: str | None
    status: str
    detail: str
    created_at: int | None
    progress: WorkProgress | UnsetType = UNSET


class WorkList(ListPage[Work]):
    """A page of the list of work."""


class CancelledWork(AnswerSchema, kw_only=True):
    """The work that was cancelled."""

    object: Literal["list"] = "list"
    data: list[Work]


def _describe(item: WorkItem) -> Work:
    progress = item.progress
    return Work(
        kind=item.kind,
        id=item.id,
        key=item.tenant[:KEY_LENGTH] or None,
        status=item.status,
        detail=item.detail,
        created_at=item.created_at,
        progress=UNSET if progress is None else WorkProgress(done=progress[0], total=progress[1]),
    )


_STREAMED: Final = ("/completions", "/messages", "/responses")
"""The suffixes of paths whose answers may be event streams."""

_MAX_WAITING: Final = 1024
"""The maximum number of waiting requests of one client."""


class _Outline(msgspec.Struct, frozen=True):
    stream: Any = None


class StartWait:
    """The handler of all requests that arrive before the models' routes are added. A client that
    wants an event stream gets SSE comments while it waits.

    Args:
        timeout: the maximum seconds for which a request waits.
    """

    def __init__(
        self, status: ServerStatus, router: Router, bodies: BodyReader, timeout: float
    ) -> None:
        self._status = status
        self._router = router
        self._bodies = bodies
        self._timeout = timeout
        self._places = Shares.of_places(_MAX_WAITING)

    async def __call__(self, request: Request) -> Response | None:
        dialect = dialect_of(request.path)
        try:
            await self._wait(request)
            self._status.check()
        except (BackendUnavailable, Overloaded) as error:
            stream = request.early_stream
            if stream is None or not stream.started:
                return error_response(error, dialect, request.id)
            stream.finish(last_frames(error, dialect, request.id))
            return None
        found = self._router.match(request.method, request.raw_path)
        if found is None:
            return render_error(request, 404, f"no such path: {request.path}")
        if isinstance(found, MethodNotAllowed):
            return render_error(request, 405, f"POST is not allowed for {request.path}")
        handler, request.route, request.path_params = found
        answer = handler(request)
        return await answer if isawaitable(answer) else answer

    async def _wait(self, request: Request) -> None:
        """Waits until the models are loaded, or loading has failed. Raises BackendUnavailable if
        loading takes too long, and Overloaded if too many requests wait."""
        places, client = self._places, request.sender
        if not places.take(client):
            raise Overloaded(f"{places.used} requests wait for the model, which is the limit")
        try:
            path = request.path
            if path.endswith(_STREAMED) and path.startswith("/v") and await self._streams(request):
                request.open_early()
            async with asyncio.timeout(self._timeout):
                await self._status.has_loaded.wait()
        except TimeoutError:
            raise BackendUnavailable(
                f"the model could not be loaded within {self._timeout:g} s", retry_after=10.0
            ) from None
        finally:
            places.give_back(client)

    async def _streams(self, request: Request) -> bool:
        try:
            return (await self._bodies.read(request, _Outline)).stream is True
        except RequestError:  # the handler reports the error
            return False


_OK: Final = Response(200)
_MAX_NAMES: Final = 200


class VersionAnswer(AnswerSchema):
    """The answer of `GET /version`."""

    version: str


class ServerMetadata(AnswerSchema, kw_only=True):
    """Describes the server, in KServe's format."""

    name: str = "fastovms"
    version: str
    extensions: list[str]


class HealthRoutes:
    """The handlers for load balancers, orchestrators and monitoring."""

    def __init__(self, status: ServerStatus, registry: CollectorRegistry, version: str) -> None:
        self._status = status
        self._registry = registry
        self._version = json_response(VersionAnswer(version))
        self._server = json_response(ServerMetadata(version=version, extensions=[]))

    def health(self, request: Request) -> Response:
        """Answers 200 with an empty body; 503 while a model loads or after its backend has
        failed."""
        return _report(request, self._status.unhealthy)

    def ready(self, request: Request) -> Response:
        """Like `health`, but answers 503 also before shutdown."""
        return _report(request, self._status.unready)

    def live(self, request: Request) -> Response:
        """Answers KServe's liveness check with 200 while the process runs."""
        return _OK

    def version(self, request: Request) -> Response:
        """Answers with the version of the server."""
        return self._version

    def server(self, request: Request) -> Response:
        """Answers with KServe's server metadata."""
        return self._server

    def metrics(self, request: Request) -> Response:
        """Returns all Prometheus series, or only those named by `name[]`, as Prometheus' Python
        client does."""
        try:
            query = parse_qs(request.query, max_num_fields=_MAX_NAMES)
        except ValueError:
            return render_error(
                request, 400, f"the query must have at most {_MAX_NAMES} parameters"
            )
        accept = request.headers.get("accept") or ""
        body, content_type = render(self._registry, accept, query.get("name[]", ()))
        return Response(200, body, content_type)


def _report(request: Request, trouble: str | None) -> Response:
    return _OK if trouble is None else render_error(request, 503, trouble)


HEALTH_PATHS: Final = ("/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready")
"""The paths that need no key, at any time."""

DOCS_PATHS: Final = ("/openapi.json", "/docs")
"""The paths of the API's description, which need no key if they are served."""

_ALWAYS_ANSWERED: Final = frozenset({*HEALTH_PATHS, "/metrics", "/version", "/v2"})


class ServerPhase(Enum):
    """The phases of the server's lifecycle.

    LOADING: the models are not loaded yet. LEAVING: requests are still served, but load balancers
    are asked to send no more. CLOSING: the shutdown time is over; running requests end with an
    error and new ones are refused.
    """

    LOADING = "the model is loading"
    SERVING = "serving"
    LEAVING = "the server is about to shut down"
    CLOSING = "the server is shutting down"


# Attribute access on an Enum class is slow, and every request needs it.
_LOADING, _SERVING, _LEAVING = ServerPhase.LOADING, ServerPhase.SERVING, ServerPhase.LEAVING


class ServerStatus:
    """The server's state, for health checks and for admitting requests.

    Args:
        may_wait: returns whether a request is admitted while the models are loaded at startup,
            because its handler waits for them.

    Attributes:
        models: None until they are loaded.
        has_loaded: set once the phase is no longer LOADING.
    """

    def __init__(self, may_wait: Callable[[Request], bool] = lambda request: False) -> None:
        self._phase = ServerPhase.LOADING
        self._may_wait = may_wait
        self.models: ServedModels | None = None
        self.has_loaded = asyncio.Event()

    @property
    def phase(self) -> ServerPhase:
        return self._phase

    @phase.setter
    def phase(self, phase: ServerPhase) -> None:
        self._phase = phase
        if phase is not ServerPhase.LOADING:
            self.has_loaded.set()

    @classmethod
    def serving(cls, models: ServedModels) -> ServerStatus:
        """Returns the status of a server whose models are loaded."""
        status = cls()
        status.open(models)
        return status

    def open(self, models: ServedModels) -> None:
        """Records that the models are loaded; from now on requests are admitted."""
        self.models = models
        self.phase = ServerPhase.SERVING

    @property
    def failure(self) -> str | None:
        """The reason why a model's backend has failed; None = no backend has failed."""
        failure = None if self.models is None else self.models.failure
        return None if failure is None else f"the engine has failed: {failure}"

    @property
    def unhealthy(self) -> str | None:
        """Returns the reason why a new request on an open connection would fail; None = it would
        not. A server in the phase LEAVING is healthy."""
        return self.failure or (
            ServerPhase.LOADING.value if self.phase is ServerPhase.LOADING else None
        )

    @property
    def unready(self) -> str | None:
        """Returns the reason why load balancers should use another server; None = ready."""
        return self.failure or (None if self.phase is ServerPhase.SERVING else self.phase.value)

    def refusal(self, request: Request) -> Response | None:
        """Returns a refusal if the request cannot be served now, otherwise None; implements
        `http.messages.Check`."""
        if self._refusal is None or request.path in _ALWAYS_ANSWERED:
            return None
        if self._phase is _LOADING and self._may_wait(request):
            return None
        error = BackendUnavailable(self._refusal)
        return error_response(error, dialect_of(request.path), request.id)

    def check(self) -> None:
        """Raises BackendUnavailable if no request can be served now."""
        if self._refusal is not None:
            raise BackendUnavailable(self._refusal)

    @property
    def _refusal(self) -> str | None:
        phase = self._phase
        return self.failure if phase is _SERVING or phase is _LEAVING else phase.value


class ModelPlace(AnswerSchema):
    """The state of a model, in the format of llama.cpp's router; `reason` is why it could not be
    loaded."""

    value: Literal["unloaded", "loading", "loaded", "unloading"]
    failed: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ModelCard(AnswerSchema, kw_only=True):
    """Describes a model; below `/v1` with vLLM's fields and the model's capabilities: `completion`,
    `chat`, `tools`, `thinking`, `vision`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str | UnsetType = UNSET
    parent: str | UnsetType | None = UNSET
    permission: list[Any] | UnsetType = UNSET
    status: ModelPlace | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    capabilities: Sequence[str] | UnsetType = UNSET


class ModelList(AnswerSchema, kw_only=True):
    """The answer of `GET /models`; below `/v1`, `models` has an entry per name for Codex and
    Ollama's clients."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[dict[str, Any]] | UnsetType = UNSET


class ModelRoutes:
    """The handlers for listing, loading and unloading models in one dialect."""

    def __init__(self, models: ServedModels, dialect: Dialect) -> None:
        self._models = models
        self._dialect = dialect

    def list(self, request: Request) -> Response:
        """Lists the models that requests may name."""
        known = self._models.named
        if is_anthropics(request):
            return json_response(anthropic_list(known))
        answer = ModelList(data=[_card(model, self._dialect) for model in known])
        if self._dialect.describes_models:
            answer.models = [card for model in known for card in client_cards(model)]
        return json_response(answer)

    def get(self, request: Request) -> Response:
        """Describes one model; 404 if it is unknown."""
        name, dialect = request.path_params["id"], self._dialect
        model = self._models.get(name)
        if is_anthropics(request):
            if model is not None:
                return json_response(anthropic_card(model))
            dialect = ANTHROPIC
        if model is None:
            return error_response(model_not_found(name, dialect), dialect, request.id)
        return json_response(_card(model, dialect))

    async def load(self, request: Request, dialect: Dialect) -> Response:
        """Loads a model, and answers once it is in memory. Raises BackendError if the model cannot
        be loaded now, and ModelNotFound if it is unknown."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        model = self._models.find(request.path_params["id"], dialect, is_exact=True)
        if self._models.holder is not None:
            await self._models.holder.load(model.resident)
        return json_response(_card(model, dialect))

    async def unload(self, request: Request, dialect: Dialect) -> Response:
        """Unloads a model once its requests have ended, and answers when its memory is freed.
        Raises BackendUnavailable if running requests do not end in time, and ModelNotFound if the
        model is unknown."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        model = self._models.find(request.path_params["id"], dialect, is_exact=True)
        if model.parent is not None:
            raise RequestError(
                f"{model.name} is an adapter of {model.parent.name}: unload it with POST "
                "/v1/unload_lora_adapter"
            )
        if self._models.holder is not None:
            await self._models.holder.unload(model.name)
        return json_response(_card(model, dialect))


def operator_refusal(request: Request) -> Response | None:
    """Returns a 403 response if the client is not an operator; None = it is."""
    if request.caller.is_admin:
        return None
    if request.caller.tenant:
        message = (
            "this needs an operator's key: one that is followed by the word admin in the file of "
            "--api-key-file"
        )
    else:
        message = (
            "a server without API keys takes this only from programs of its own machine, and not "
            "through a proxy"
        )
    return render_error(request, 403, message)


def _card(model: KnownModel, dialect: Dialect) -> ModelCard:
    card = ModelCard(id=model.name, created=model.created, owned_by=dialect.owned_by)
    if dialect.describes_models:
        card.root, card.permission = model.root or model.name, []
        card.parent = None if model.parent is None else model.parent.name
        card.status = _status(model)
        card.max_model_len = or_unset(model.max_model_len)
        card.capabilities = or_unset(model.capabilities)
    return card


def _status(model: KnownModel) -> ModelPlace:
    state = model.state
    if state is ModelState.FAILED:
        return ModelPlace("unloaded", failed=True, reason=model.reason)
    return ModelPlace("loaded" if state is ModelState.AVAILABLE else state.value)


_INSTRUCTIONS: Final = (
    "You are a coding agent that works in the user's terminal. Read the files that matter before "
    "you change them, change no more than the task needs, and follow the style of the code around. "
    "Use the tools to look things up rather than to guess, run the tests that cover a change, and "
    "go on until the task is done. Then say in a few sentences what you did and what is left."
)
"""The base instructions that Codex reads from the list of models; it requires a string."""

_LEVELS: Final = ("low", "medium", "high")
_MAX_OUTPUT: Final = 10_000
_OUTPUT_SHARE: Final = 4
"""The context length divided by the maximum output of one tool."""


def client_cards(model: KnownModel) -> list[dict[str, object]]:
    """Returns the model's entries, one per name, for the list that Codex and Ollama's clients
    read."""
    modified_at = datetime.fromtimestamp(model.created, UTC).isoformat(timespec="seconds")
    of_ollama = {"modified_at": modified_at, "size": model.file_size}
    return [
        {"name": name, "model": name, **of_ollama, **_codex_members(model, name)}
        for name in model.names
    ]


def _codex_members(model: KnownModel, name: str) -> dict[str, object]:
    """Returns the fields of Codex 0.169's `ModelInfo`, and those that earlier versions require."""
    context, thinks = model.max_model_len, "thinking" in (model.capabilities or ())
    levels = [{"effort": level, "description": f"{level} effort"} for level in _LEVELS]
    limit = _MAX_OUTPUT if context is None else min(_MAX_OUTPUT, context // _OUTPUT_SHARE)
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "supported_reasoning_levels": levels if thinks else [],
        "shell_type": "shell_command",
        "visibility": "list" if model.task is Task.TEXT_GENERATION else "hide",
        "supported_in_api": True,
        "priority": 1,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": _INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "tokens", "limit": limit},
        "supports_parallel_tool_calls": True,
        "context_window": context,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if model.takes_images else ["text"],
    }


def anthropic_list(models: Sequence[KnownModel]) -> dict[str, object]:
    """Returns the list of all models as a single page."""
    return {
        "data": [anthropic_card(model) for model in models],
        "has_more": False,
        "first_id": models[0].name if models else None,
        "last_id": models[-1].name if models else None,
    }


def anthropic_card(model: KnownModel) -> dict[str, object]:
    """Returns the description of one model. The prompt and the answer share its context."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(timespec="seconds"),
        "lifecycle": "active",
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
        **dict.fromkeys(("capabilities", "deprecated_at", "retires_at", "line")),
    }


_VERSION: Final = "1"
"""The only version: models are not versioned here."""


class ReloadOutcome(NamedTuple):
    """The result of reading the list of models again.

    Attributes:
        has_changed: whether a model was added, changed or removed.
        faults: the error messages about models in the list, one sentence each.
    """

    has_changed: bool
    faults: Sequence[str] = ()


Reload = Callable[[], Awaitable[ReloadOutcome]]
"""Reads the list of models again. Raises ConfigurationError if it cannot be read."""


class TensorMetadata(AnswerSchema, kw_only=True):
    """Describes a tensor, in KServe's format."""

    name: str
    datatype: str = "INVALID"
    shape: list[int]


class ModelMetadata(AnswerSchema, kw_only=True):
    """Describes a model, in KServe's format. The tensors are those of OVMS's LLM graph, which have
    no type."""

    name: str
    versions: list[str]
    platform: str = "OpenVINO"
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


ServableState = Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]


class VersionStatusDetails(AnswerSchema):
    """The error of a model, if it has one."""

    error_code: str
    error_message: str


class VersionStatus(AnswerSchema):
    """The status of a model's only version."""

    version: str
    state: ServableState
    status: VersionStatusDetails


class ModelStatus(AnswerSchema):
    """The status of a model, in OVMS's format."""

    model_version_status: list[VersionStatus]


ServerConfigStatus = dict[str, ModelStatus]
"""The status of every model, by its name."""


class ServableRoutes:
    """The handlers of KServe's and OVMS's endpoints for models. Errors are in OVMS's format."""

    def __init__(self, models: ServedModels, reload: Reload | None = None) -> None:
        """`reload` reads the list of models again; None = the server has no list."""
        self._models = models
        self._reload = reload

    def metadata(self, request: Request) -> Response:
        """Answers with KServe's model metadata."""
        if self._find(request) is None:
            return _unknown(request)
        inputs, outputs = ([TensorMetadata(name=name, shape=[])] for name in ("input", "output"))
        name = request.path_params["name"]
        return json_response(
            ModelMetadata(name=name, versions=[_VERSION], inputs=inputs, outputs=outputs)
        )

    def ready(self, request: Request) -> Response:
        """Answers 200 with an empty body if the model can answer requests, 404 for an unknown
        model, and 503 for a model that has failed, or is not loaded and would not be loaded by a
        request."""
        model = self._find(request)
        if model is None:
            return _unknown(request)
        failure = model.failure
        if failure is not None:
            return error_response(BackendUnavailable(f"the engine has failed: {failure}"), OVMS)
        if self._is_ready(model):
            return _OK
        return error_response(BackendUnavailable(f"the model is {model.state.value}"), OVMS)

    def infer(self, request: Request) -> Response:
        """Refuses KServe's inference requests, which language models do not support."""
        if self._find(request) is None:
            return _unknown(request)
        error = MalformedBody("tensors cannot be sent to a language model: use /v3/completions")
        return error_response(error, OVMS)

    def config(self, request: Request) -> Response:
        """Answers with the status of every model."""
        return json_response(self._statuses())

    async def reload(self, request: Request) -> Response:
        """Reads the list of models again, and answers when the new models are loaded: 201 with the
        status of every model, 200 if nothing has changed, 412 if the list or a model has an error.
        Models without an error are served in any case. Only operators may reload."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        if self._reload is None:
            return self.config(request)
        try:
            outcome = await self._reload()
        except ConfigurationError as error:
            return json_response(OvmsError(f"the list of models is not reloaded: {error}"), 412)
        if outcome.faults:
            return json_response(OvmsError("; ".join(outcome.faults)), 412)
        return json_response(self._statuses(), 201 if outcome.has_changed else 200)

    def _statuses(self) -> ServerConfigStatus:
        return {
            model.name: _servable_status(model, is_ready=self._is_ready(model))
            for model in self._models.known
        }

    def _is_ready(self, model: KnownModel) -> bool:
        """Returns whether a model is in memory or will be loaded by its next request. Programs wait
        for readiness before they send a request."""
        holder = self._models.holder
        loads_on_demand = holder is not None and holder.loads_on_demand
        is_away = loads_on_demand and model.state is not ModelState.FAILED
        return model.state is ModelState.AVAILABLE or is_away

    def _find(self, request: Request) -> KnownModel | None:
        if request.path_params.get("version", _VERSION) != _VERSION:
            return None
        return self._models.get(request.path_params["name"])


_STATES: Final[Mapping[ModelState, ServableState]] = {
    ModelState.UNLOADED: "END",
    ModelState.LOADING: "LOADING",
    ModelState.AVAILABLE: "AVAILABLE",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "END",
}
"""OVMS's state names for models that are not ready."""


def _servable_status(model: KnownModel, *, is_ready: bool) -> ModelStatus:
    state = "AVAILABLE" if is_ready else _STATES[model.state]
    status = VersionStatusDetails("OK", "OK")
    fault = model.failure or model.reason
    if fault:
        state, status = "END", VersionStatusDetails("UNKNOWN", fault)
    return ModelStatus([VersionStatus(_VERSION, state, status)])


def _unknown(request: Request) -> Response:
    name, version = request.path_params["name"], request.path_params.get("version", _VERSION)
    if version != _VERSION:
        name = f"{name}, version {version[:20]}"
    return error_response(model_not_found(name, OVMS), OVMS)
