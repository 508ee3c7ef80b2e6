"""A served model, the parts that the API needs in addition to the backend, and its residency in
memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from fastovms.api.body import FairThread, show, wrong
from fastovms.api.dialect import Dialect, model_not_found
from fastovms.api.served_speech import Release, ServedSpeech, no_hold
from fastovms.backend import EncoderBackend, GenerationBackend
from fastovms.config import ChatConfig, EncoderConfig, ModelLimits, ResidencyConfig
from fastovms.encoding import Task
from fastovms.errors import ConfigurationError, InvalidField, ModelNotFound
from fastovms.media.decode import PixelBound
from fastovms.media.loader import GivenImages, ImageLoader, ImageSource
from fastovms.params import Image, ModelInfo
from fastovms.system.disk import DiskCache
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.output import check_formats, kept_tags
from fastovms.text.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from fastovms.text.template import ChatTemplate
from fastovms.text.tokenizer import TextEncoder, Tokenizer
from fastovms.text.tools import TOOL_FORMATS, detect_tool_format
from fastovms.text.tools.json_formats import PLAIN_JSON
from fastovms.text.tools.tool_format import ToolFormat

# Reads the parts of requests that bring images, and finds a model's own tokens that stand for
# them.


IMAGE_PARTS: Final = ("image_url", "input_image")
"""Types of parts that bring an image, in chats and in responses."""

MEDIA_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*IMAGE_PARTS, "image"), "image"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), "file"),
    **dict.fromkeys(("input_audio", "audio_url"), "audio"),
    "video_url": "video",
}
"""Types of parts of all APIs that bring more than text, with a word for it."""

_MAX_PLACES: Final = 8
"""How many parts a warning lists."""

_MAX_TITLE: Final = 100
"""How many characters of a file's name a note has."""

_DETAILS: Final = ("auto", "low", "high", "original")

_TAG_KEYS: Final = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
"""Keys of config.json that name the tokens that stand for images and the like, or enclose them."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Loads the images of one model's requests.

    Attributes:
        reserved: the model's image tags.
        bound: the size to which larger images are shrunk; None = `--shrink-images-to`.
    """

    loader: ImageLoader
    reserved: tuple[str, ...]
    bound: PixelBound | None = None

    @classmethod
    def of(
        cls,
        model: ModelInfo,
        tokenizer: Tokenizer,
        loader: ImageLoader,
        processor: Mapping[str, Any],
    ) -> Self:
        """
        Args:
            processor: the model's preprocessor_config.json.
        """
        ids = [value for key in _TAG_KEYS if type(value := model.config.get(key)) is int]
        texts = (tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids)
        reserved = tuple(text for text in dict.fromkeys(texts) if text.strip())
        return cls(loader, reserved, loader.bound(processor))

    async def load(self, sources: Sequence[ImageSource]) -> list[Image]:
        """Returns the images of a request; see `ImageLoader.load`."""
        return await self.loader.load(sources, self.bound)


def images_of_request(model: ImageInput | None, *, may_drop: bool = False) -> GivenImages | None:
    """Returns an object that collects the images of a request; None = the model does not support
    images.

    Args:
        may_drop: whether messages may be dropped; images are then counted when they are loaded, not
            when they are read.
    """
    if model is None:
        return None
    return GivenImages(None if may_drop else model.loader.max_images)


class UnseenParts:
    """Collects the parts of one history that the model cannot read, and returns a note for each.

    Clients send their whole history with every turn: if such a part were refused in old messages,
    every later turn would be refused too.
    """

    def __init__(self) -> None:
        self._places: list[str] = []

    def note(self, kind: str, name: str, title: object = None) -> str:
        """Returns the text that replaces a part.

        Args:
            kind: the part's type, one of `MEDIA_PARTS`.
            name: its place in the request.
            title: the name of a file; other values are ignored.
        """
        self._places.append(name)
        named = f" {title[:_MAX_TITLE]}" if isinstance(title, str) and title else ""
        return f"[{MEDIA_PARTS[kind]}{named}: this model cannot read it]"

    @property
    def warnings(self) -> Sequence[str]:
        """Returns the message for the client."""
        if not self._places:
            return ()
        listed, more = self._places[:_MAX_PLACES], len(self._places) - _MAX_PLACES
        rest = f" and {more} more" if more > 0 else ""
        return [f"this model cannot read {', '.join(listed)}{rest}: a note takes the place of each"]


def unknown_part(kind: str, name: str, *, takes_images: bool) -> InvalidField:
    """Returns the error about a part of a type that the model does not take."""
    takes = f"only text and parts of type {' or '.join(IMAGE_PARTS)}"
    return InvalidField(
        f"{name} is of type {show(kind)}, but this model takes "
        f"{takes if takes_images else 'only text'}",
        param=name,
    )


def image_tokens_unknown(image: ImageSource) -> InvalidField:
    """Returns the error about a prompt with an image of which tokens are asked for."""
    return InvalidField(
        f"{image.name}: the tokens of images are only known when they are read", param=image.name
    )


def read_image_part(part: Mapping[str, Any], name: str, dialect: Dialect) -> ImageSource:
    """Returns where a part's image is.

    Raises:
        InvalidField: the part is malformed.
    """
    member = f"{name}.image_url"
    found = part.get("image_url")
    if part.get("type") == "input_image" and found is None and part.get("file_id") is not None:
        raise InvalidField(
            f"{name}.file_id is not supported: there are no files here", param=f"{name}.file_id"
        )
    url, url_name, detail = found, member, part.get("detail")
    detail_name = f"{name}.detail"
    takes_string = part.get("type") == "input_image" or dialect.takes_image_url_strings
    if isinstance(found, dict):
        url, url_name = found.get("url"), f"{member}.url"
        if "detail" in found:
            detail, detail_name = found["detail"], f"{member}.detail"
    elif not takes_string or not isinstance(found, str):
        words = "an object or a string" if takes_string else "an object"
        raise wrong(member, words, found)
    if not isinstance(url, str):
        raise wrong(url_name, "a string", url)
    if not url:
        raise InvalidField(f"{url_name} must not be empty", param=url_name)
    if detail is not None and detail not in _DETAILS:
        raise wrong(detail_name, f"one of {', '.join(_DETAILS)}", detail)
    return ImageSource(url, url_name, detail or "auto")


logger = logging.getLogger(__name__)

Format = TypeVar("Format")


@dataclass(frozen=True, slots=True)
class ChatModel:
    """The chat features of one model.

    Attributes:
        template: None = the model cannot chat, for the reason that `missing` gives.
        tool_format: None = the model does not make tool calls.
    """

    template: ChatTemplate | None = None
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    config: ChatConfig = field(default_factory=ChatConfig)
    missing: str = "has no chat template"

    @property
    def template_calls(self) -> bool:
        """Whether the template describes the tool-call format if tools are given; otherwise the
        messages must."""
        return self.tool_format is not PLAIN_JSON

    @property
    def tags(self) -> frozenset[str]:
        """The tags that must stay in the text even if they are special tokens."""
        return kept_tags(self.tool_format, self.reasoning_format)

    @classmethod
    def load(cls, model_dir: Path, config: ChatConfig, cache: DiskCache | None = None) -> ChatModel:
        """Reads the chat features of a model. A model whose own template is broken gets none.

        Args:
            cache: stores the results of template analysis; None = not stored.

        Raises:
            ConfigurationError: the operator's template is broken, or a parser unknown, or the
                parsers are incompatible.
        """
        missing = "has no chat template"
        try:
            template = ChatTemplate.load(
                model_dir,
                config.chat_template,
                content_format=config.chat_template_content_format,
                cache=cache,
            )
        except ConfigurationError as error:
            if config.chat_template is not None:
                raise
            logger.warning("%s: chats are refused: %s", model_dir, error)
            template, missing = None, f"has no usable chat template: {error}"
        source = "" if template is None else template.tool_source
        detected = detect_tool_format(source), detect_reasoning_format(source)
        told = PLAIN_JSON if template is not None else None
        tool_format = _find(config.tool_parser, "tool", TOOL_FORMATS, detected[0] or told)
        reasoning_format = _find(
            config.reasoning_parser, "reasoning", REASONING_FORMATS, detected[1]
        )
        check_formats(tool_format, reasoning_format)
        return cls(template, tool_format, reasoning_format, config, missing)


def _find(
    name: str, kind: str, formats: Mapping[str, Format], detected: Format | None
) -> Format | None:
    if name == "auto":
        return detected
    if name == "none":
        return None
    if name not in formats:
        known = ", ".join(["auto", "none", *formats])
        raise ConfigurationError(f"the {kind} parser must be one of {known}, not {name!r}")
    return formats[name]


CAPABILITIES: Final[Mapping[Task, tuple[str, ...]]] = {
    Task.EMBEDDINGS: ("embedding",),
    Task.RERANK: ("rerank",),
    Task.SPEECH: ("transcription",),
}
"""The capabilities of a model, in the words of Ollama's `/api/show`; the last two are additions."""


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """A model in memory that encodes texts.

    Attributes:
        tokenizing: tokenizes texts and pairs, a few at a time.
        aliases: names that requests may use in place of the model's and which answers repeat.
        hold: holds the model in memory until released.
    """

    backend: EncoderBackend
    texts: TextEncoder
    config: EncoderConfig
    metrics: GenerationMetrics
    tokenizing: FairThread[Any]
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def info(self) -> ModelInfo:
        return self.backend.model

    @property
    def task(self) -> Task:
        return self.backend.encoder.task

    @property
    def joins_pairs(self) -> bool:
        """Whether the model is a reranker that reads a pair as one joined text."""
        is_pairless = self.texts.pair is None or self.backend.encoder.joins_pairs
        return self.task is Task.RERANK and is_pairless

    @property
    def capabilities(self) -> tuple[str, ...]:
        return CAPABILITIES[self.task]


# Decides which models are in memory: which one is loaded next, and which makes room. It moves
# nothing itself, and has no clock.


_PATIENCE: Final = 5.0
"""Seconds that a request waits for a model to become idle. Then one that is in use is chosen to
leave: it takes no further requests until the one that waits has had its turn."""

_FIRST_RETRY: Final = 2.0
_LAST_RETRY: Final = 300.0
"""Seconds from a load that has failed to the next one: they double from the first to the last."""


class ModelState(Enum):
    """The loading state of a model. A model in the state FAILED could not be loaded and is not in
    memory."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    AVAILABLE = "available"
    UNLOADING = "unloading"
    FAILED = "failed"


class MoveKind(Enum):
    """The next change of a model."""

    LOAD = "load"
    UNLOAD = "unload"


class Move(NamedTuple):
    """One load or unload of a model."""

    kind: MoveKind
    name: str


@dataclass(slots=True)
class Resident:
    """The loading state and use counts of one model.

    Attributes:
        size: its memory in bytes.
        num_uses: requests that run on it or are about to.
        num_waiting: requests and operator commands that wait for it to be loaded.
        last_used: when it was last acquired or released.
        waits_since: when the oldest waiting request arrived.
        leaves: whether it accepts no further requests and is unloaded after the last one.
        is_removed: whether it is removed from the list after unloading.
        retry_at: when a model that could not be loaded may be tried again.
    """

    name: str
    size: int = 0
    state: ModelState = ModelState.UNLOADED
    num_uses: int = 0
    num_waiting: int = 0
    last_used: float = 0.0
    waits_since: float = 0.0
    leaves: bool = False
    is_removed: bool = False
    num_failures: int = 0
    retry_at: float = 0.0

    @property
    def is_away(self) -> bool:
        """Whether the model uses no memory."""
        return self.state in (ModelState.UNLOADED, ModelState.FAILED)

    @property
    def is_idle(self) -> bool:
        return self.state is ModelState.AVAILABLE and not self.num_uses and not self.num_waiting

    @property
    def may_leave(self) -> bool:
        return self.leaves and self.state is ModelState.AVAILABLE and not self.num_uses


class Residency:
    """The loading state machine of all models. The caller asks for `next_move`, performs the load
    or unload, and reports the outcome; one move at a time.

    Args:
        config: the limits on models and bytes in memory, and the idle time before unloading.
    """

    def __init__(self, config: ResidencyConfig) -> None:
        self._config = config
        self._models: dict[str, Resident] = {}
        self._move: Move | None = None

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Resident:
        return self._models[name]

    def __contains__(self, name: str) -> bool:
        return name in self._models

    @property
    def loads_on_demand(self) -> bool:
        """Whether a model is loaded when it is first asked for, and not at start."""
        config = self._config
        return bool(config.max_loaded_models or config.model_memory or config.idle_unload)

    # What there is

    def add(self, name: str, size: int, *, is_loaded: bool = False, now: float = 0.0) -> None:
        """Adds a model that no request waits for yet, or keeps one that was about to be removed."""
        if name in self._models:
            assert self._models[name].is_removed
            self._models[name].is_removed = False
            self.change(name, size)
            return
        state = ModelState.AVAILABLE if is_loaded else ModelState.UNLOADED
        self._models[name] = Resident(name, size, state, last_used=now)

    def change(self, name: str, size: int) -> None:
        """Records that a model's configuration has changed; the loaded version is unloaded."""
        model = self._models[name]
        model.size = size
        model.num_failures, model.retry_at = 0, 0.0
        model.leaves = not model.is_away
        if model.state is ModelState.FAILED:
            model.state = ModelState.UNLOADED

    def remove(self, name: str) -> None:
        """Removes a model, at once or when the last request on it has ended. No request may wait
        for it."""
        model = self._models[name]
        assert not model.num_waiting
        if model.is_away:
            del self._models[name]
        else:
            model.leaves = model.is_removed = True

    # What requests want

    def acquire(self, name: str, now: float) -> bool:
        """Acquires a model for a request. Returns False if it is not loaded or is being
        unloaded."""
        model = self._models[name]
        if model.state is not ModelState.AVAILABLE or model.leaves:
            return False
        model.num_uses += 1
        model.last_used = now
        return True

    def hold(self, name: str) -> None:
        """Acquires a model that is already in use once more."""
        model = self._models[name]
        assert model.state is ModelState.AVAILABLE
        model.num_uses += 1

    def release(self, name: str, now: float) -> None:
        """Releases an acquired model."""
        model = self._models[name]
        assert model.num_uses > 0
        model.num_uses -= 1
        model.last_used = now

    def wait(self, name: str, now: float) -> None:
        """Records one more request that waits for a model."""
        model = self._models[name]
        if not model.num_waiting:
            model.waits_since = now
        model.num_waiting += 1

    def stop_waiting(self, name: str) -> None:
        """Records that a request no longer waits, for any reason."""
        model = self._models[name]
        assert model.num_waiting > 0
        model.num_waiting -= 1

    def seconds_to_retry(self, name: str, now: float) -> float:
        """Returns the seconds until the load of a failed model may be retried; 0 = now."""
        model = self._models[name]
        if model.state is not ModelState.FAILED:
            return 0.0
        return max(0.0, model.retry_at - now)

    def seconds_to_leave(self, name: str, now: float) -> float | None:
        """Returns the seconds that a model stays loaded without requests; None = without limit."""
        idle, model = self._config.idle_unload, self._models[name]
        if not idle:
            return None
        return max(0.0, model.last_used + idle - now) if model.is_idle else idle

    def retry_now(self, name: str) -> None:
        """Allows an immediate retry of a model that failed to load."""
        self._models[name].retry_at = 0.0

    def ask_to_leave(self, name: str) -> None:
        """Marks a model to be unloaded after its last request."""
        model = self._models[name]
        if model.state is not ModelState.UNLOADING:
            model.leaves = not model.is_away

    # What is done

    def next_move(self, now: float) -> Move | None:
        """Begins the next move and returns it; None = nothing to do at present."""
        if self._move is not None:
            return None
        leaving = next((model for model in self if model.may_leave), None)
        wanted = self._wanted(now)
        if leaving is not None:
            return self._begin(MoveKind.UNLOAD, leaving)
        if wanted is not None:
            if self._has_room(wanted):
                return self._begin(MoveKind.LOAD, wanted)
            victim = self._victim()
            if victim is not None:
                return self._begin(MoveKind.UNLOAD, victim)
            if now >= wanted.waits_since + _PATIENCE:
                self._choose_to_leave()
            return None
        idle = self._config.idle_unload
        if idle:
            for model in self:
                if model.is_idle and now >= model.last_used + idle:
                    return self._begin(MoveKind.UNLOAD, model)
        return None

    def wake_at(self, now: float) -> float | None:
        """Returns the time at which `next_move` may have work without any request; None = never."""
        if self._move is not None:
            return None
        times = [m.retry_at for m in self if m.num_waiting and m.state is ModelState.FAILED]
        wanted = self._wanted(now)
        if wanted is not None and not any(model.leaves for model in self):
            times.append(wanted.waits_since + _PATIENCE)
        if self._config.idle_unload:
            times += [m.last_used + self._config.idle_unload for m in self if m.is_idle]
        return min((time for time in times if time > now), default=None)

    def loaded(self, now: float) -> None:
        """Records that the current load has succeeded."""
        model = self._end(MoveKind.LOAD)
        model.state = ModelState.AVAILABLE
        model.num_failures, model.last_used = 0, now

    def failed(self, now: float) -> None:
        """Records that the current load has failed. The next request retries it, after a delay."""
        model = self._end(MoveKind.LOAD)
        model.state, model.leaves = ModelState.FAILED, False
        model.retry_at = now + min(_FIRST_RETRY * 2**model.num_failures, _LAST_RETRY)
        model.num_failures = min(model.num_failures + 1, 16)
        if model.is_removed:
            del self._models[model.name]

    def unloaded(self) -> None:
        """Records that the current unload has finished."""
        model = self._end(MoveKind.UNLOAD)
        model.state, model.leaves = ModelState.UNLOADED, False
        if model.is_removed:
            del self._models[model.name]

    def check(self) -> None:
        """Raises AssertionError if the states contradict each other."""
        moving = [m for m in self if m.state in (ModelState.LOADING, ModelState.UNLOADING)]
        assert [m.name for m in moving] == ([] if self._move is None else [self._move.name])
        for model in self:
            assert model.num_uses >= 0
            assert model.num_waiting >= 0
            assert not model.num_uses or model.state is ModelState.AVAILABLE
            assert not (model.is_removed and model.num_waiting)
            assert not (model.leaves and model.is_away)
        limit = self._config.max_loaded_models
        present = [model for model in self if not model.is_away]
        assert limit is None or len(present) <= limit

    def _begin(self, kind: MoveKind, model: Resident) -> Move:
        is_load = kind is MoveKind.LOAD
        model.state = ModelState.LOADING if is_load else ModelState.UNLOADING
        self._move = Move(kind, model.name)
        return self._move

    def _end(self, kind: MoveKind) -> Resident:
        assert self._move is not None
        assert self._move.kind is kind
        model = self._models[self._move.name]
        self._move = None
        return model

    def _wanted(self, now: float) -> Resident | None:
        """Returns the model with the oldest waiting request that may be loaded."""
        waiting = [m for m in self if m.num_waiting and m.is_away and m.retry_at <= now]
        return min(waiting, key=lambda model: model.waits_since, default=None)

    def _has_room(self, wanted: Resident) -> bool:
        limit, memory = self._config.max_loaded_models, self._config.model_memory
        present = [model for model in self if not model.is_away]
        if limit is not None and len(present) >= limit:
            return False
        if memory is None or not present:  # one alone is let in, whatever its size is said to be
            return True
        return sum(model.size for model in present) + wanted.size <= memory

    def _victim(self) -> Resident | None:
        """Returns the idle model that was used least recently."""
        idle = [model for model in self if model.is_idle]
        return min(idle, key=lambda model: model.last_used, default=None)

    def _choose_to_leave(self) -> None:
        """Marks the least recently used model that has requests to be unloaded after them."""
        if not any(model.leaves for model in self):
            used = [model for model in self if model.num_uses]
            if used:
                min(used, key=lambda model: model.last_used).leaves = True


# Finds the model that a request names, by any of its names, or refuses with 404; with its
# tokenizer, chat format and limits.


_LATEST: Final = ":latest"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in memory with its tokenizer, parsers and metrics.

    Attributes:
        aliases: names that requests may use in place of the model's and which answers repeat.
        images: None = the model does not support images.
        hold: holds the model in memory until released.
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
        """The names of the model's capabilities in Ollama's `/api/show`."""
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


TextServed = ServedModel | ServedEncoder
"""A model in memory that takes texts."""

AnyServed = TextServed | ServedSpeech
"""A model in memory, of any task."""


@dataclass(slots=True)
class KnownModel:
    """A model that requests may name, in memory or not.

    Attributes:
        created: seconds since the epoch.
        max_model_len: its context length; None = unknown until the first load.
        takes_images: whether it supports images, by its files.
        task: the model's task.
        capabilities: its capabilities at the last load; None = not loaded yet.
        state: its loading state.
        reason: the error of the last load; "" = no error.
        info: the facts from its files; None = not read yet.
        served: the model itself, while it is AVAILABLE or UNLOADING.
        fingerprint: a hash of its files; "" = unknown before the first load.
        metrics: the metrics of its requests, kept across unloads; None = no requests yet.
        size: its approximate memory in bytes; 0 = unknown.
        file_size: the size of its weight files in bytes; 0 = unknown.
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
        """Returns the description of a loaded model."""
        known = cls(served.info.name, served.aliases)
        known.note_loaded(served)
        return known

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_identified(self) -> bool:
        """Whether the fingerprint of the model's files is known."""
        return self.served is not None or self.fingerprint != ""

    @property
    def failure(self) -> str | None:
        """The reason why its backend can no longer generate, or None."""
        return None if self.served is None else self.served.backend.failure

    def note_loaded(self, served: AnyServed) -> None:
        """Updates the description with the facts of the loaded model."""
        self.info = info = served.info
        self.created, self.max_model_len = info.created, info.max_model_len
        self.takes_images = info.takes_images
        self.task = served.task
        self.capabilities, self.fingerprint = served.capabilities, info.fingerprint
        self.served, self.metrics = served, served.metrics
        self.state, self.reason = ModelState.AVAILABLE, ""


class ModelHolder(Protocol):
    """Holds models in memory while they are in use."""

    @property
    def loads_on_demand(self) -> bool:
        """Whether models are loaded and unloaded on demand, not all at the start."""

    def try_hold(self, name: str) -> Release | None:
        """Holds a model and returns its release; None = it is not loaded, or is being unloaded."""

    async def hold(self, name: str) -> Release:
        """Holds a model and returns its release. Loads the model first if needed.

        Raises:
            BackendUnavailable: the model cannot be loaded now.
            Overloaded: too many wait for the model.
        """

    async def load(self, name: str) -> None:
        """Loads a model, and returns when it is in memory. Raises as `hold` does."""

    def seconds_to_leave(self, name: str) -> float | None:
        """Returns the seconds that a model stays loaded without requests; None = without limit."""

    def dismiss(self, name: str) -> None:
        """Unloads a model when its last request has ended; returns at once."""

    async def unload(self, name: str) -> None:
        """Unloads a model and returns when its memory is freed.

        Raises:
            BackendUnavailable: running requests do not end in time.
        """


class ServedModels:
    """Looks models up by the name that a request gives.

    Attributes:
        holder: loads and unloads models; None = all models stay loaded.
        close: releases the resources that the models share. May take a few seconds, so call it in a
            thread.
    """

    def __init__(
        self, models: Iterable[AnyServed] = (), close: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            models: the first one answers requests without a model name, where the dialect allows
                it.
        """
        self.holder: ModelHolder | None = None
        self.close = close
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

    def __iter__(self) -> Iterator[AnyServed]:
        """Yields the models in memory, including those being unloaded."""
        return iter([m.served for m in self._all if m.served is not None])

    def get(self, name: str) -> KnownModel | None:
        """Returns the model with this name, to which Ollama's clients may have added a tag; None =
        unknown."""
        found = self._by_name.get(name)
        if found is None and name.endswith(_LATEST):
            return self._by_name.get(name.removesuffix(_LATEST))
        return found

    def find(self, name: str | None, dialect: Dialect) -> KnownModel:
        """Returns the model that a request names.

        Raises:
            InvalidField: the dialect requires a model name and none is given.
            ModelNotFound: the model is unknown, or none is named and the server has none.
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
        """Returns the totals of all models that were ever in memory."""
        return [m.metrics for m in self._known.values() if m.metrics is not None]

    @property
    def failure(self) -> str | None:
        """The reason why one of the models can no longer generate, or None."""
        for model in self._all:  # a plain loop: every request asks
            if model.served is not None:
                failure = model.served.backend.failure
                if failure is not None:
                    return failure
        return None
