"""The table of the API's optional parts: their routes, entry functions and arguments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.api.admin import DOCS_PATHS, RunningPart, WorkItem
from fastovms.api.client_request import RequestDocument
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS
from fastovms.app.late import Entry, LazyPart
from fastovms.config import MAX_FORM_OVERHEAD
from fastovms.errors import RequestError, StateFailed
from fastovms.http.messages import Request
from fastovms.http.routing import Router
from fastovms.server_config import BatchConfig, FilesConfig, MediaConfig, StateConfig
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.system.threads import ShutdownWaits


@dataclass(frozen=True, slots=True)
class PartSettings:
    """The operator's options, and data of the server, for parts.

    Attributes:
        store: stores responses; None = responses are not stored.
        directory: the directory of files and batches; None = files and batches are off.
        clock: returns the Unix time.
        tenants: returns the tenants whose background work runs; None = all tenants.
        num_requests: returns the number of running requests.
        shows_docs: whether the API's description is served.
        needs_key: whether requests need an API key.
    """

    store: StateStore | None = None
    state: StateConfig = field(default_factory=StateConfig)
    directory: Path | None = None
    files: FilesConfig = field(default_factory=FilesConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    clock: Callable[[], float] = time.time
    tenants: Callable[[], Collection[str]] | None = None
    num_requests: Callable[[], int] = lambda: 0
    shows_docs: bool = False
    needs_key: bool = False
    media: MediaConfig = field(default_factory=MediaConfig)
    root_path: str = ""


class Host(NamedTuple):
    """The arguments of a part's entry function.

    Attributes:
        num_others: returns the number of running requests and background responses.
        load_all: loads all parts.
    """

    settings: PartSettings
    router: Router
    context: ApiContext
    num_others: Callable[[], int]
    load_all: Callable[[], Awaitable[None]]


class Part(NamedTuple):
    """A row of the table. A part is the folder or file of its entry, below the package.

    Attributes:
        entry: "module:function" below the package, imported when the part is first needed. The
            function returns the routes, or a `RunningPart` that has added them.
        routes: the part's routes, "METHOD PATH".
        forms: the routes whose bodies are forms.
        given: returns the arguments of the entry function.
        is_on: returns whether the routes are served.
        has_work: returns whether the part must start before the first request.
        max_form: returns the maximum size of a form in bytes.
    """

    name: str
    entry: str
    routes: Sequence[str] = ()
    forms: Sequence[str] = ()
    given: Callable[[Host], tuple[Any, ...]] = lambda host: (host.context,)
    is_on: Callable[[PartSettings], bool] = lambda settings: True
    has_work: Callable[[PartSettings], Awaitable[bool]] | None = None
    max_form: Callable[[Host], int] = lambda host: 0


_PREFIXES: Final = [prefix for dialect in DIALECTS for prefix in dialect.prefixes]


def _below(*routes: str, prefixes: Iterable[str] = _PREFIXES) -> list[str]:
    """Returns the routes below each prefix; by default below /v1 and /v3."""
    split = [route.split(" ") for route in routes]
    return [f"{method} {prefix}{path}" for prefix in prefixes for method, path in split]


async def _has_stored_work(settings: PartSettings) -> bool:
    """Returns whether stored responses are running, or may be resumed, before the first request."""
    store = settings.store
    if store is None:
        return False
    if store.lease is not None or store.trouble():
        return True
    try:
        return bool(await store.run(Operations.list_running, 1))
    except StateFailed:
        return True


async def _has_files(settings: PartSettings) -> bool:
    """Returns whether there are files or batches; also True while their disk is not available."""
    directory, store = settings.directory, settings.store
    if directory is None:
        return False
    try:
        if not directory.exists() or (store is not None and store.trouble()):
            return True
        folders = (directory / name for name in ("files", "batches"))
        return any(any(folder.iterdir()) for folder in folders if folder.exists())
    except OSError:
        return True


PARTS: Final = (
    Part(
        "tokenize",
        "api.tokenize:endpoints",
        _below("POST /tokenize", "POST /detokenize", prefixes=(*_PREFIXES, "")),
    ),
    Part(
        "embeddings",
        "parts.embeddings.rerank:endpoints",
        [
            *_below("POST /embeddings", "POST /rerank", "POST /score"),
            *("POST /rerank", "POST /score", "POST /v2/rerank"),
        ],
    ),
    Part(
        "messages",
        "parts.messages.endpoints:endpoints",
        ("POST /v1/messages", "POST /v1/messages/count_tokens"),
    ),
    Part(
        "ollama",
        "parts.ollama.models:endpoints",
        (
            *_below("GET /version", "GET /tags", "GET /ps", prefixes=("/api",)),
            *_below("POST /chat", "POST /generate", "POST /embed", prefixes=("/api",)),
            *_below("POST /embeddings", "POST /show", "POST /pull", prefixes=("/api",)),
            *_below("POST /push", "POST /create", "POST /copy", prefixes=("/api",)),
            *_below("DELETE /delete", "POST /blobs/{digest}", prefixes=("/api",)),
        ),
    ),
    Part("decisions", "parts.decisions:endpoints", ("POST /v1/decisions",)),
    Part(
        "speech",
        "parts.speech.endpoints:endpoints",
        forms=_below("POST /audio/transcriptions", "POST /audio/translations"),
        max_form=lambda host: host.context.config.max_audio_size + MAX_FORM_OVERHEAD,
    ),
    Part(
        "images",
        "parts.images.endpoints:endpoints",
        _below("POST /images/generations"),
        forms=_below("POST /images/edits"),
        max_form=lambda host: 2 * host.settings.media.max_image_bytes + MAX_FORM_OVERHEAD,
        given=lambda host: (host.context, host.settings.media),
    ),
    Part(
        "speech_out",
        "parts.speech_out.endpoints:endpoints",
        _below("POST /audio/speech", "GET /audio/voices", "GET /audio/models"),
    ),
    Part(
        "adapters",
        "parts.adapters.endpoints:endpoints",
        ("POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
    ),
    Part(
        "batches",
        "parts.batches.service:begin",
        _below(
            "GET /files",
            "GET /files/{id}",
            "DELETE /files/{id}",
            "GET /files/{id}/content",
            "POST /batches",
            "GET /batches",
            "GET /batches/{id}",
            "POST /batches/{id}/cancel",
        ),
        forms=_below("POST /files"),
        max_form=lambda host: host.settings.files.max_file_size + MAX_FORM_OVERHEAD,
        given=lambda host: (
            host.router,
            host.context,
            host.settings.directory,
            host.settings.files,
            host.settings.batches,
            host.settings.clock,
            host.num_others,
            host.settings.tenants and host.settings.tenants(),
        ),
        has_work=_has_files,
    ),
    Part(
        "responses",
        "parts.responses.service:ResponsesService",
        _below(
            "POST /responses",
            "GET /responses",
            "POST /responses/input_tokens",
            "POST /responses/compact",
            "GET /responses/{id}",
            "DELETE /responses/{id}",
            "POST /responses/{id}/cancel",
            "GET /responses/{id}/input_items",
            "POST /conversations",
            "GET /conversations",
            "GET /conversations/{id}",
            "POST /conversations/{id}",
            "DELETE /conversations/{id}",
            "POST /conversations/{id}/items",
            "GET /conversations/{id}/items",
            "GET /conversations/{id}/items/{item_id}",
            "DELETE /conversations/{id}/items/{item_id}",
        ),
        given=lambda host: (
            host.router,
            host.context,
            host.settings.store,
            host.settings.state,
            host.settings.tenants,
        ),
        has_work=_has_stored_work,
    ),
    Part(
        "openapi",
        "parts.openapi.page:endpoints",
        [f"GET {path}" for path in DOCS_PATHS],
        given=lambda host: (
            host.router,
            host.context.models,
            host.load_all,
            host.settings.root_path,
            host.settings.needs_key,
        ),
        is_on=lambda settings: settings.shows_docs,
    ),
)
"""The optional parts of the API, imported by their first request."""

FORMS: Final = tuple(route.split(" ")[1] for part in PARTS for route in part.forms)
"""The patterns of routes whose bodies are forms."""


PAGE: Final = "parts.page.page:read_page_files"
"""The entry of the page at `/`. Imported at startup if the page is on, because some of its paths
need no API key."""


LIMITS: Final = "parts.limits:KeyBudgets"
"""The counter of API keys' usage. Imported only if a key has limits."""


class Parts:
    """The optional parts of the API of one server."""

    def __init__(self, settings: PartSettings | None = None) -> None:
        self._settings = settings or PartSettings()
        self._late: dict[str, LazyPart] = {}
        self._running: dict[str, RunningPart] = {}
        self._beginning: asyncio.Future[list[BaseException | None]] | None = None

    def add_routes(self, router: Router, context: ApiContext) -> None:
        """Adds the routes of all enabled parts."""
        settings = self._settings
        num_others = lambda: settings.num_requests() + self.num_running  # noqa: E731
        host = Host(settings, router, context, num_others, self.load_all)
        for part in PARTS:
            if not part.is_on(settings):
                continue
            late = LazyPart(part.name, part.entry, partial(self._begin, part, host))
            self._late[part.name] = late
            for route in part.routes:
                late.add_route(router, route)
            for route in part.forms:
                late.add_route(router, route, part.max_form(host))

    def _begin(self, part: Part, host: Host, entry: Entry) -> None:
        made = entry(*part.given(host))
        if isinstance(made, RunningPart):
            self._running[part.name] = made
            return
        for route in made:
            host.router.add(*route)

    async def load_all(self) -> None:
        """Loads the parts that can be loaded, for a description of all routes."""
        loads = (late.load() for late in self._late.values())
        await asyncio.gather(*loads, return_exceptions=True)

    def load_now(self) -> None:
        """Loads all parts in the calling thread."""
        for late in self._late.values():
            late.load_now()

    def begin_work(self) -> None:
        """Imports, in the background, the parts that have work to resume."""
        begin = [self._begin_work(part) for part in PARTS if part.has_work is not None]
        self._beginning = asyncio.gather(*begin, return_exceptions=True)

    async def _begin_work(self, part: Part) -> None:
        if part.has_work is not None and await part.has_work(self._settings):
            await self._late[part.name].load()

    @property
    def num_running(self) -> int:
        """The number of running background responses."""
        return sum(part.num_running for part in self._running.values())

    async def work(self) -> list[WorkItem]:
        """Returns the running work of all parts."""
        if self._beginning is not None:
            await asyncio.shield(self._beginning)
        return [item for part in self._running.values() for item in await part.work()]

    def set_tenants(self, tenants: Collection[str]) -> dict[str, int]:
        """Cancels or pauses the work of all tenants except these. Returns the number of items by
        part."""
        return {name: part.set_tenants(tenants) for name, part in self._running.items()}

    @property
    def drains(self) -> list[Callable[[float], Coroutine[object, object, None]]]:
        """Returns a function for each part, the last part first, that waits for the part's work for
        at most the given seconds."""
        return [partial(self._drain, part.name) for part in reversed(PARTS)]

    async def _drain(self, name: str, seconds: float) -> None:
        if name in self._running:
            await self._running[name].drain(seconds)

    async def close(self, waits: ShutdownWaits) -> None:
        """Closes all loaded parts, within the time limit of `waits`."""
        if self._beginning is not None:
            self._beginning.cancel()
        for name in (part.name for part in PARTS if part.name in self._running):
            for step, end in self._running[name].ends:
                await waits.wait(step, end())

    async def find_file(self, tenant: str, id: str) -> Path:
        """Returns the path of a tenant's file. Raises RequestError if the file does not exist or
        files are not stored, and StateFailed if the file store cannot be opened."""
        late = self._late.get("batches")
        if late is None:
            raise RequestError("files cannot be read: the server has ended")
        await late.load()
        path: Path = self._running["batches"].path_for(tenant, id)  # type: ignore[attr-defined]
        return path


class LazyDocuments:
    """Reads the documents in requests. The document reader is imported by the first such request.

    Args:
        find_file: returns the path of a tenant's file by its id.
    """

    def __init__(
        self, config: MediaConfig, find_file: Callable[[str, str], Awaitable[Path]]
    ) -> None:
        self._documents: Any = None
        self._part = LazyPart("media", "parts.media.files:documents", self._begin)
        self._given = (config, find_file)

    def _begin(self, entry: Entry) -> None:
        self._documents = entry(*self._given)

    async def read(self, request: Request, given: Sequence[RequestDocument]) -> int:
        """Reads documents; see `parts.media.files.Documents.read`."""
        await self._part.load()
        num_chars: int = await self._documents.read(request, given)
        return num_chars

    def close(self) -> None:
        """Closes the document reader, if it was loaded."""
        if self._documents is not None:
            self._documents.close()
