"""A served model: its backend, and the other parts that the API needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from fastovms.api import offload
from fastovms.api.dialect import Dialect, model_not_found
from fastovms.api.image_parts import ImageInput
from fastovms.backend import Backend, GenerationBackend
from fastovms.config import ChatConfig, ModelLimits
from fastovms.errors import BackendUnavailable, InvalidField, ModelNotFound
from fastovms.params import Adapter, ModelInfo, Task
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.output import kept_tags
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.template import ChatTemplate
from fastovms.text.tokenizer import Tokenizer
from fastovms.text.tools import PLAIN_JSON
from fastovms.text.tools.tool_format import ToolFormat

Release = Callable[[], None]
"""Releases a held model. Call it once."""


def no_hold() -> Release:
    """Returns a release function that does nothing, for a model that is never unloaded."""
    return lambda: None


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ChatModel:
    """The chat features of one model.

    Attributes:
        template: None = the model cannot chat, for the reason in `missing`.
        tool_format: None = the model does not support tool calls.
        run: runs work that renders the template, given the client and the cost; see
            `TemplateRuns.run`. None = rendered at once.
        close: ends the process that renders the template.
    """

    template: ChatTemplate | None = None
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    config: ChatConfig = field(default_factory=ChatConfig)
    missing: str = "has no chat template"
    run: Callable[[str, Callable[[], Any], int], Awaitable[Any]] | None = None
    close: Callable[[], None] = lambda: None

    async def rendered(self, client: str, work: Callable[[], Result], cost: int) -> Result:
        """Returns the result of work that renders the template; see `TemplateRuns.run`."""
        if self.run is None:
            return await offload.run(work, cost)
        result: Result = await self.run(client, work, cost)
        return result

    @property
    def template_calls(self) -> bool:
        """Whether the template describes the tool-call format if tools are given; otherwise the
        messages must."""
        return self.tool_format is None or self.tool_format.name != PLAIN_JSON

    @property
    def tags(self) -> frozenset[str]:
        """The tags that must stay in the text even if they are special tokens."""
        return kept_tags(self.tool_format, self.reasoning_format)


CAPABILITIES: Final[Mapping[Task, tuple[str, ...]]] = {
    Task.EMBEDDINGS: ("embedding",),
    Task.RERANK: ("rerank",),
    Task.SPEECH: ("transcription",),
    Task.IMAGES: ("image",),
    Task.SPEECH_OUT: ("speech",),
}
"""The capabilities of a model, in the words of Ollama's `/api/show`; all but the first are
additions."""


class TextTokens(Protocol):
    """The tokenizer of a model, for one text at a time.

    Attributes:
        pad_token_id: the token for padding the texts of a batch.
    """

    pad_token_id: int

    @property
    def has_detokenizer(self) -> bool:
        """Whether tokens can be decoded."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the tokens of a text. Raises RequestError for a text with a lone surrogate."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token's text, including special tokens."""


class AnyServed(ABC):
    """A model in memory, for any task. Subclasses are frozen dataclasses.

    Attributes:
        aliases: further names of the model, which requests may use and answers repeat.
        hold: keeps the model in memory until released.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    backend: Backend
    metrics: GenerationMetrics
    aliases: tuple[str, ...]
    hold: Callable[[], Release]

    @property
    def info(self) -> ModelInfo:
        """The properties of the model."""
        return self.backend.model

    @property
    @abstractmethod
    def task(self) -> Task:
        """The task of the model."""

    @property
    def tokens(self) -> TextTokens | None:
        """The model's tokenizer; None = the model does not accept text."""
        return None

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The names of the model's capabilities in Ollama's `/api/show`."""
        return CAPABILITIES[self.task]


_LATEST: Final = ":latest"


class AdapterHolder(Protocol):
    """Loads and unloads the adapters (LoRA) of one model."""

    def backend_of(self, backend: GenerationBackend, adapter: Adapter) -> GenerationBackend:
        """Returns a backend that computes requests of the model with the adapter."""

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters that requests may name."""

    async def load(self, name: str, path: Path) -> Adapter:
        """Loads an adapter and returns it once requests may name it. Raises ConfigurationError if
        it cannot be served, there are too many, or the name is taken, and BackendUnavailable if the
        engine is not running."""

    async def unload(self, name: str) -> None:
        """Unloads an adapter once its requests have ended, and returns when its memory is freed.
        Raises BackendUnavailable if the requests do not end in time."""


@dataclass(frozen=True, slots=True)
class ServedModel(AnyServed):
    """A model in memory that generates text, with its tokenizer and parsers.

    Attributes:
        images: None = the model does not support images.
        adapters: the model's adapters; None = adapters are not served.
    """

    backend: GenerationBackend
    tokenizer: Tokenizer
    metrics: GenerationMetrics
    limits: ModelLimits = field(default_factory=ModelLimits)
    chat: ChatModel = field(default_factory=ChatModel)
    aliases: tuple[str, ...] = ()
    images: ImageInput | None = None
    hold: Callable[[], Release] = no_hold
    adapters: AdapterHolder | None = None

    @property
    def capabilities(self) -> tuple[str, ...]:
        chat = self.chat
        found = {
            "completion": True,
            "chat": chat.template is not None,
            "tools": chat.template is not None and chat.tool_format is not None,
            "thinking": chat.reasoning_format is not None,
            "vision": self.images is not None,
        }
        return tuple(name for name, is_there in found.items() if is_there)

    @property
    def task(self) -> Task:
        return Task.TEXT_GENERATION

    @property
    def tokens(self) -> TextTokens:
        return self.tokenizer


class ModelState(Enum):
    """The loading state of a model. A model in the state FAILED could not be loaded and is not in
    memory."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    AVAILABLE = "available"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(slots=True)
class KnownModel:
    """A model that requests may name, whether or not it is in memory.

    Attributes:
        created: Unix time in seconds.
        max_model_len: its context length; None = unknown until the first load.
        takes_images: whether it supports images, by its files.
        task: the model's task.
        capabilities: its capabilities at the last load; None = not loaded yet.
        state: its loading state.
        reason: the error of the last load; "" = no error.
        info: the properties from its files; None = not read yet.
        served: the model itself, while it is AVAILABLE or UNLOADING.
        fingerprint: a hash of its files; "" = unknown before the first load.
        metrics: the metrics of its requests, kept across unloads; None = no requests yet.
        size: its approximate memory in bytes; 0 = unknown.
        file_size: the size of its weight files in bytes; 0 = unknown.
        parent: the model to which the adapter belongs; None = not an adapter.
        root: the directory of an adapter; "" = not an adapter.
        lora_modules: the directories of the adapters that are loaded with the model, by name.
    """

    name: str
    aliases: tuple[str, ...] = ()
    created: int = 0
    max_model_len: int | None = None
    takes_images: bool = False
    task: Task = Task.TEXT_GENERATION
    capabilities: tuple[str, ...] | None = None
    state: ModelState = ModelState.UNLOADED
    reason: str = ""
    info: ModelInfo | None = None
    served: AnyServed | None = None
    metrics: GenerationMetrics | None = None
    fingerprint: str = ""
    size: int = 0
    file_size: int = 0
    parent: KnownModel | None = None
    root: str = ""
    lora_modules: Mapping[str, Path] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """The bytes of its weights and of the used part of its KV cache; 0 = not loaded."""
        if self.served is None:
            return 0
        stats = self.served.backend.stats()
        return self.file_size + stats.packed_weights_bytes + stats.kv_cache_bytes

    @classmethod
    def of_adapter(cls, parent: KnownModel, served: ServedModel, adapter: Adapter) -> KnownModel:
        """Returns the description of a loaded model with an adapter."""
        assert served.adapters is not None
        backend = served.adapters.backend_of(served.backend, adapter)
        known = cls(adapter.name, parent=parent, root=adapter.path)
        known.note_loaded(replace(served, backend=backend, aliases=(), adapters=None))
        return known

    @classmethod
    def of(cls, served: AnyServed) -> KnownModel:
        """Returns the description of a loaded model."""
        known = cls(served.info.name, served.aliases)
        known.note_loaded(served)
        return known

    def without_weights(self, name: str) -> KnownModel:
        """Returns the description of an adapter in `lora_modules` while the model is not in
        memory."""
        return replace(
            self,
            name=name,
            aliases=(),
            info=None if self.info is None else replace(self.info, name=name),
            fingerprint="",
            size=0,
            file_size=0,
            parent=self,
            root=str(self.lora_modules[name]),
            lora_modules={},
        )

    def refreshed(self) -> KnownModel:
        """Returns the current description: an adapter's belongs to one load of its model. Raises
        BackendUnavailable if the adapter has been unloaded."""
        if self.parent is None:
            return self
        found = _adapters_of(self.parent, self.name)
        if not found:
            raise BackendUnavailable(f"the adapter {self.name} is no longer served")
        return found[self.name]

    @property
    def names(self) -> tuple[str, ...]:
        """The name in answers, followed by the aliases."""
        return (self.name, *self.aliases)

    @property
    def resident(self) -> str:
        """The name of the model that must be in memory: an adapter's base model, or this one."""
        return self.name if self.parent is None else self.parent.name

    @property
    def is_identified(self) -> bool:
        """Whether the fingerprint of the model's files is known."""
        return self.served is not None or self.fingerprint != ""

    @property
    def failure(self) -> str | None:
        """The reason why its backend has failed; None = it has not."""
        return None if self.served is None else self.served.backend.failure

    def note_loaded(self, served: AnyServed) -> None:
        """Updates the description with the properties of the loaded model."""
        self.info = info = served.info
        self.created, self.max_model_len = info.created, info.max_model_len
        self.takes_images = info.takes_images
        self.task = served.task
        self.capabilities, self.fingerprint = served.capabilities, info.fingerprint
        self.served, self.metrics = served, served.metrics
        self.state, self.reason = ModelState.AVAILABLE, ""


def _adapters_of(model: KnownModel, name: str | None = None) -> dict[str, KnownModel]:
    """Returns the adapters that a model has, or will have when it is loaded, by name; only the one
    named `name` if that is given."""
    served = model.served
    if served is None:
        modules = model.lora_modules
        return {one: model.without_weights(one) for one in modules if name in (None, one)}
    if not isinstance(served, ServedModel) or served.adapters is None:
        return {}
    adapters = served.adapters.adapters
    chosen = adapters.values() if name is None else filter(None, [adapters.get(name)])
    return {one.name: KnownModel.of_adapter(model, served, one) for one in chosen}


class ModelHolder(Protocol):
    """Keeps models in memory while they are in use."""

    @property
    def loads_on_demand(self) -> bool:
        """Whether models are loaded and unloaded on demand, instead of all at startup."""

    def try_acquire(self, name: str) -> Release | None:
        """Acquires a model and returns the function that releases it; None = the model is not
        loaded, or is being unloaded."""

    async def acquire(self, name: str, client: str = "") -> Release:
        """Acquires a model and returns the function that releases it. Loads the model first if
        needed. Raises BackendUnavailable if the model cannot be loaded now, and Overloaded if too
        many requests of the client wait for the model. `client` is the API key or address; "" = the
        server itself."""

    async def load(self, name: str) -> None:
        """Loads a model, and returns when it is in memory. Raises errors like `acquire`."""

    def seconds_to_unload(self, name: str) -> float | None:
        """Returns the seconds for which a model stays loaded without requests; None = unlimited."""

    def is_permanent(self, name: str) -> bool:
        """Returns whether a model always stays loaded."""

    def dismiss(self, name: str) -> None:
        """Unloads a model once its last request has ended; returns at once."""

    async def unload(self, name: str) -> None:
        """Unloads a model and returns when its memory is freed. Raises BackendUnavailable if
        running requests do not end in time."""


class ServedModels:
    """The models of a server, by the names that requests use.

    Attributes:
        holder: loads and unloads models; None = all models stay loaded.
        close: releases the resources that the models share. May take a few seconds, so call it in a
            thread.
        takes_any_name: whether the only model answers requests that name another one.
    """

    def __init__(
        self, models: Iterable[AnyServed] = (), close: Callable[[], None] = lambda: None
    ) -> None:
        """The first of `models` answers requests without a model name, where the dialect allows
        that."""
        self.holder: ModelHolder | None = None
        self.close = close
        self.takes_any_name = False
        self._known: dict[str, KnownModel] = {}
        self._by_name: dict[str, KnownModel] = {}
        self._all: list[KnownModel] = []
        self.set_known([KnownModel.of(model) for model in models])

    def set_known(self, models: Sequence[KnownModel], leaving: Iterable[KnownModel] = ()) -> None:
        """Replaces the list of known models.

        Args:
            leaving: models that are no longer offered but still have running requests.
        """
        self._known = {model.name: model for model in models}
        self._by_name = {name: model for model in models for name in model.names}
        self._all = [*models, *leaving]

    @property
    def known(self) -> Sequence[KnownModel]:
        """All models, in memory or not."""
        return list(self._known.values())

    @property
    def named(self) -> Sequence[KnownModel]:
        """All names that requests may use: each model, followed by its adapters. A model that was
        added later hides an adapter of the same name."""
        found: list[KnownModel] = []
        for model in self._known.values():
            adapters = _adapters_of(model).values()
            found += [model, *(one for one in adapters if one.name not in self._by_name)]
        return found

    def __iter__(self) -> Iterator[AnyServed]:
        """Yields the models in memory, including those being unloaded."""
        return iter([m.served for m in self._all if m.served is not None])

    def get(self, name: str) -> KnownModel | None:
        """Returns the model with this name, possibly with a tag that Ollama's clients add; None =
        unknown."""
        found = self._by_name.get(name) or self._adapter(name)
        if found is None and name.endswith(_LATEST):
            name = name.removesuffix(_LATEST)
            return self._by_name.get(name) or self._adapter(name)
        return found

    def _adapter(self, name: str) -> KnownModel | None:
        for model in self._known.values():
            found = _adapters_of(model, name)
            if found:
                return found[name]
        return None

    def find(self, name: str | None, dialect: Dialect, *, is_exact: bool = False) -> KnownModel:
        """Returns the model that a request names. Raises InvalidField if the dialect requires a
        model name and none is given, and ModelNotFound if the model is unknown, or none is named
        and the server has none. With `is_exact`, `takes_any_name` has no effect."""
        if name is None:
            if dialect.model_required:
                raise InvalidField.about("model", "is required and must be a string")
            if not self._known:
                raise ModelNotFound(
                    "no model is served at the moment", param="model", code="model_not_found"
                )
            return next(iter(self._known.values()))
        model = self.get(name)
        if model is None and self.takes_any_name and not is_exact and len(self._known) == 1:
            [model] = self._known.values()
        if model is None:
            raise model_not_found(name, dialect, [one.name for one in self.named])
        return model

    def metrics(self) -> list[GenerationMetrics]:
        """Returns the totals of all models that were ever in memory."""
        return [m.metrics for m in self._known.values() if m.metrics is not None]

    @property
    def failure(self) -> str | None:
        """The reason why a model's backend has failed; None = no backend has failed."""
        for model in self._all:  # a plain loop is fast: every request reads this
            if model.served is not None:
                failure = model.served.backend.failure
                if failure is not None:
                    return failure
        return None
