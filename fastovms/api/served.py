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

Release = Callable[[], None]
"""Gives back what was taken into use, once."""


def no_hold() -> Release:
    """Returns a function that releases a model that is never unloaded."""
    return lambda: None


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
    """The source of one model's images.

    Attributes:
        reserved: the model's own texts that stand for images.
        bound: the size to which a larger image is shrunk; None = `--shrink-images-to`.
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
    """Returns an object that collects the images of a request; None = the model takes none.

    Args:
        may_drop: whether the request may be left without some of its messages: then images are
            counted when they are loaded.
    """
    if model is None:
        return None
    return GivenImages(None if may_drop else model.loader.max_images)


class UnseenParts:
    """Collects the parts of one history that the model cannot read, and writes a note for each.

    Clients send their whole history with every turn: if such a part were refused there, every
    later turn would be refused too.
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
        tool_format: None = the model makes no calls.
    """

    template: ChatTemplate | None = None
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    config: ChatConfig = field(default_factory=ChatConfig)
    missing: str = "has no chat template"

    @property
    def template_calls(self) -> bool:
        """Whether the template, if it shows tools, teaches the format of calls; otherwise the
        messages must have them."""
        return self.tool_format is not PLAIN_JSON

    @property
    def tags(self) -> frozenset[str]:
        """The tags that must stay in the text, though they may be special tokens."""
        return kept_tags(self.tool_format, self.reasoning_format)

    @classmethod
    def load(cls, model_dir: Path, config: ChatConfig, cache: DiskCache | None = None) -> ChatModel:
        """Reads the chat features of a model. With a broken template of its own it has none.

        Args:
            cache: keeps what is found out about templates; None = nothing is kept.

        Raises:
            ConfigurationError: the operator's template is broken, or a parser unknown, or the
                parsers do not go together.
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
}
"""The capabilities of a model, in the words of Ollama's `/api/show`; "rerank" is an addition."""


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """A model in memory that encodes texts.

    Attributes:
        tokenizing: makes tokens of texts, and pairs of them, a few at a time.
        aliases: names that requests may use in place of the model's, which answers carry.
        hold: takes it into use; it is not unloaded then.
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
        """Whether it is a reranker that reads the two texts of a pair as one."""
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
    """Where a model is on its way into memory and out of it. A model that has FAILED to load is
    not in memory."""

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
    """One step into memory, or out of it."""

    kind: MoveKind
    name: str


@dataclass(slots=True)
class Resident:
    """The known facts about one model.

    Attributes:
        size: the bytes of memory that it takes.
        num_uses: requests that run on it, or are about to.
        num_waiting: requests, and orders of an operator, that wait for it to be loaded.
        last_used: when it was taken or given back for the last time.
        waits_since: when the first of the waiting requests came.
        leaves: whether it takes no further request, and is unloaded when the last has ended.
        is_removed: whether it is forgotten once it is unloaded.
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
        """Whether it takes no memory."""
        return self.state in (ModelState.UNLOADED, ModelState.FAILED)

    @property
    def is_idle(self) -> bool:
        return self.state is ModelState.AVAILABLE and not self.num_uses and not self.num_waiting

    @property
    def may_leave(self) -> bool:
        return self.leaves and self.state is ModelState.AVAILABLE and not self.num_uses


class Residency:
    """A state machine over all models. A caller that loads or unloads models asks `next_move`, does
    it, and reports the outcome; there is one move at a time.

    Args:
        config: how many models, and bytes, there may be in memory, and for how long.
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
        """Adds a model that no request waits for yet, or restores one that is about to be
        forgotten."""
        if name in self._models:
            assert self._models[name].is_removed
            self._models[name].is_removed = False
            self.change(name, size)
            return
        state = ModelState.AVAILABLE if is_loaded else ModelState.UNLOADED
        self._models[name] = Resident(name, size, state, last_used=now)

    def change(self, name: str, size: int) -> None:
        """Takes note that a model is another one from its next load on: the present one leaves."""
        model = self._models[name]
        model.size = size
        model.num_failures, model.retry_at = 0, 0.0
        model.leaves = not model.is_away
        if model.state is ModelState.FAILED:
            model.state = ModelState.UNLOADED

    def remove(self, name: str) -> None:
        """Forgets a model, at once or when the last request on it has ended. No request may wait
        for it."""
        model = self._models[name]
        assert not model.num_waiting
        if model.is_away:
            del self._models[name]
        else:
            model.leaves = model.is_removed = True

    # What requests want

    def acquire(self, name: str, now: float) -> bool:
        """Takes a model into use, if it is there and does not leave."""
        model = self._models[name]
        if model.state is not ModelState.AVAILABLE or model.leaves:
            return False
        model.num_uses += 1
        model.last_used = now
        return True

    def hold(self, name: str) -> None:
        """Takes a model into use once more that is in use."""
        model = self._models[name]
        assert model.state is ModelState.AVAILABLE
        model.num_uses += 1

    def release(self, name: str, now: float) -> None:
        """Gives a model back that was taken into use."""
        model = self._models[name]
        assert model.num_uses > 0
        model.num_uses -= 1
        model.last_used = now

    def wait(self, name: str, now: float) -> None:
        """Takes note of one more who waits for a model."""
        model = self._models[name]
        if not model.num_waiting:
            model.waits_since = now
        model.num_waiting += 1

    def stop_waiting(self, name: str) -> None:
        """Takes note of one who waits no longer, for whatever reason."""
        model = self._models[name]
        assert model.num_waiting > 0
        model.num_waiting -= 1

    def seconds_to_retry(self, name: str, now: float) -> float:
        """Returns in how many seconds a model may be loaded that could not be; 0 = at once."""
        model = self._models[name]
        if model.state is not ModelState.FAILED:
            return 0.0
        return max(0.0, model.retry_at - now)

    def seconds_to_leave(self, name: str, now: float) -> float | None:
        """Returns the seconds that a model stays loaded without requests; None = for ever."""
        idle, model = self._config.idle_unload, self._models[name]
        if not idle:
            return None
        return max(0.0, model.last_used + idle - now) if model.is_idle else idle

    def retry_now(self, name: str) -> None:
        """Lets a model that has failed be loaded at once."""
        self._models[name].retry_at = 0.0

    def ask_to_leave(self, name: str) -> None:
        """Has a model unloaded when the last request on it has ended."""
        model = self._models[name]
        if model.state is not ModelState.UNLOADING:
            model.leaves = not model.is_away

    # What is done

    def next_move(self, now: float) -> Move | None:
        """Begins the next move and returns it; None = there is nothing to do, or to be done."""
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
        """Takes note that the load has ended well."""
        model = self._end(MoveKind.LOAD)
        model.state = ModelState.AVAILABLE
        model.num_failures, model.last_used = 0, now

    def failed(self, now: float) -> None:
        """Takes note that the load has failed. It is tried again at the next request, but not too
        soon."""
        model = self._end(MoveKind.LOAD)
        model.state, model.leaves = ModelState.FAILED, False
        model.retry_at = now + min(_FIRST_RETRY * 2**model.num_failures, _LAST_RETRY)
        model.num_failures = min(model.num_failures + 1, 16)
        if model.is_removed:
            del self._models[model.name]

    def unloaded(self) -> None:
        """Takes note that the model has left memory."""
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
        """Returns the model that has been waited for the longest and may be loaded."""
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
        """Has the model in use that was taken least recently take no more requests."""
        if not any(model.leaves for model in self):
            used = [model for model in self if model.num_uses]
            if used:
                min(used, key=lambda model: model.last_used).leaves = True


# Finds the model that a request names, by any of its names, or refuses with 404; with its
# tokenizer, chat format and limits.


_LATEST: Final = ":latest"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in memory, with what turns its tokens into text and counts them.

    Attributes:
        aliases: names that requests may use in place of the model's, which answers carry.
        images: None = it takes none.
        hold: takes it into use; it is not unloaded then.
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
        """The capabilities that a client may offer its user with the model, in the words of
        Ollama's `/api/show`."""
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
        fingerprint: distinguishes its files from others; "" = it is not known before the first
            load.
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
        """Returns the seconds that a model stays loaded without requests; None = for ever."""

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
        """Returns the totals of all models that were ever in memory."""
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
