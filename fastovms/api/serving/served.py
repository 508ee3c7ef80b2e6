"""Finds the model that a request names, by any of its names, or refuses with 404; with its
tokenizer, chat format and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fastovms.api.serving.chat_model import ChatModel
from fastovms.api.serving.images import ImageInput
from fastovms.api.serving.release import Release, no_hold
from fastovms.api.serving.residency import ModelState
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import model_not_found
from fastovms.backend import GenerationBackend
from fastovms.config.model_config import ModelLimits
from fastovms.encoding import Task
from fastovms.errors import InvalidField, ModelNotFound
from fastovms.params import ModelInfo
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokens.tokenizer import Tokenizer

_LATEST: Final = ":latest"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in memory, with what turns its tokens into text and counts them.

    Attributes:
        aliases: names that requests may use in place of the model's, which answers carry.
        images: None = it takes none.
        hold: takes it into use; nobody unloads it then.
    """

    backend: GenerationBackend
    tokenizer: Tokenizer
    metrics: GenerationMetrics
    limits: ModelLimits = field(default_factory=ModelLimits)
    chat: ChatModel = field(default_factory=ChatModel)
    aliases: tuple[str, ...] = ()
    images: ImageInput | None = None
    hold: Callable[[], Release] = no_hold

    @property
    def info(self) -> ModelInfo:
        return self.backend.model

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What a client may offer its user with the model, in the words of Ollama's
        `/api/show`."""
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


AnyServed = ServedModel | ServedEncoder
"""A model in memory, whatever it does."""


@dataclass(slots=True)
class KnownModel:
    """A model that requests may name, in memory or not.

    Attributes:
        created: seconds since the epoch.
        max_model_len: its context length; None = that is known when it was loaded once.
        takes_images: whether it does, by its files.
        task: what it does.
        capabilities: as of its last load; None = it was not loaded yet.
        state: where it is.
        reason: why it could not be loaded; "" = it could.
        info: what its files say, as far as they were read; None = not at all yet.
        served: the model itself, while it is AVAILABLE or UNLOADING.
        fingerprint: tells its files from others; "" = it is not known before the first load.
        metrics: what happened to its requests, also before it was unloaded; None = nothing yet.
        size: the bytes of memory that it takes, about; 0 = that is not known.
        file_size: the bytes of its weights' files; 0 = that is not known.
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

    @classmethod
    def of(cls, served: AnyServed) -> KnownModel:
        """Returns a model that is in memory."""
        known = cls(served.info.name, served.aliases)
        known.note_loaded(served)
        return known

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_identified(self) -> bool:
        """Whether it is known which files it has."""
        return self.served is not None or self.fingerprint != ""

    @property
    def failure(self) -> str | None:
        """Why its engine can generate no more, or None."""
        return None if self.served is None else self.served.backend.failure

    def note_loaded(self, served: AnyServed) -> None:
        """Takes note of what is known of a model once it is in memory."""
        self.info = info = served.info
        self.created, self.max_model_len = info.created, info.max_model_len
        self.takes_images = info.takes_images
        self.task = served.task
        self.capabilities, self.fingerprint = served.capabilities, info.fingerprint
        self.served, self.metrics = served, served.metrics
        self.state, self.reason = ModelState.AVAILABLE, ""


class ModelHolder(Protocol):
    """Has models in memory while they are in use."""

    @property
    def loads_on_demand(self) -> bool:
        """Whether models come and go as they are asked for, rather than being there from the
        start."""

    def try_hold(self, name: str) -> Release | None:
        """Takes a model into use; None = it is not in memory, or about to leave."""

    async def hold(self, name: str) -> Release:
        """Takes a model into use, for which it is loaded where it is not in memory.

        Raises:
            BackendUnavailable: it cannot be loaded now.
            Overloaded: too many wait for it.
        """

    async def load(self, name: str) -> None:
        """Loads a model, and returns when it is in memory. Raises as `hold` does."""

    def seconds_to_leave(self, name: str) -> float | None:
        """Returns how long a model stays in memory if nobody asks for it; None = for ever."""

    def dismiss(self, name: str) -> None:
        """Has a model leave when the last request on it has ended."""

    async def unload(self, name: str) -> None:
        """Has a model leave, and returns when it is out of memory.

        Raises:
            BackendUnavailable: requests run on it for too long.
        """


class ServedModels:
    """Looks models up by the name that a request gives.

    Attributes:
        holder: loads and unloads them; None = they are in memory, and stay there.
        close: gives back what the models share besides their backends. Takes at most a few
            seconds: not for the event loop.
    """

    def __init__(
        self, models: Iterable[AnyServed] = (), close: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            models: the first one answers requests that name none, where the dialect allows it.
        """
        self.holder: ModelHolder | None = None
        self.close = close
        self._known: dict[str, KnownModel] = {}
        self._by_name: dict[str, KnownModel] = {}
        self._all: list[KnownModel] = []
        self.set_known([KnownModel.of(model) for model in models])

    def set_known(self, models: Sequence[KnownModel], leaving: Iterable[KnownModel] = ()) -> None:
        """Takes these in the place of all models that were known.

        Args:
            leaving: those that no further request may name, and whose last ones still run.
        """
        self._known = {model.name: model for model in models}
        self._by_name = {name: model for model in models for name in model.names}
        self._all = [*models, *leaving]

    @property
    def known(self) -> Sequence[KnownModel]:
        """All models, in memory or not."""
        return list(self._known.values())

    def __iter__(self) -> Iterator[AnyServed]:
        """Yields the models in memory, those that leave included."""
        return iter([m.served for m in self._all if m.served is not None])

    def get(self, name: str) -> KnownModel | None:
        """Returns the model of a name, which may have the tag that Ollama's clients write behind
        names; None = it is unknown."""
        found = self._by_name.get(name)
        if found is None and name.endswith(_LATEST):
            return self._by_name.get(name.removesuffix(_LATEST))
        return found

    def find(self, name: str | None, dialect: Dialect) -> KnownModel:
        """Returns the model of a name.

        Raises:
            InvalidField: a model must be named.
            ModelNotFound: it is unknown, or none is named and there is none.
        """
        if name is None:
            if dialect.model_required:
                raise InvalidField("model is required and must be a string", param="model")
            if not self._known:
                raise ModelNotFound(
                    "no model is served at the moment", param="model", code="model_not_found"
                )
            return next(iter(self._known.values()))
        model = self.get(name)
        if model is None:
            raise model_not_found(name, dialect)
        return model

    def metrics(self) -> list[GenerationMetrics]:
        """Returns those of all models that were ever in memory."""
        return [m.metrics for m in self._known.values() if m.metrics is not None]

    @property
    def failure(self) -> str | None:
        """Why one of the models can generate no more, or None while all is well."""
        for model in self._all:  # a plain loop: every request asks
            if model.served is not None:
                failure = model.served.backend.failure
                if failure is not None:
                    return failure
        return None
