"""Configuration of the server around the core, and the sources of settings."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlsplit

from fastovms.config import (
    ApiConfig,
    ChatConfig,
    EncoderConfig,
    EngineConfig,
    HttpConfig,
    ImageConfig,
    ModelLimits,
    SpeakingConfig,
)
from fastovms.setting import (
    DIR,
    FILE,
    JSON,
    SIZE,
    SOME_TIME,
    SWITCH,
    TIME,
    Kind,
    choice,
    count,
    counts,
    integers,
    names,
    path,
    setting,
    size,
    texts,
)

_MAX_LIMIT: Final = 2**53

_LOG_LEVELS: Final = ("trace", "debug", "info", "warning", "error")

DEMO_MODEL: Final = Path(__file__).parent / "demo_model"
"""The directory of the demo model in the package."""


def postgres_url(value: str) -> str:
    """Parses the URL of a PostgreSQL database. Errors do not quote it, because it may contain a
    password."""
    if not value.startswith(("postgresql://", "postgres://")):
        raise argparse.ArgumentTypeError("must begin with postgresql://")
    return value


def http_url(value: str) -> str:
    """Parses a URL such as http://collector:4318/v1/traces."""
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port or the IPv6 address is malformed
        is_one = False
    if not is_one:
        raise argparse.ArgumentTypeError(f"must be an http:// or https:// address, not {value!r}")
    return value


def size_or_none(value: str) -> int:
    """Parses a number of bytes like `size`; 0 is allowed, too."""
    return 0 if value == "0" else size(value)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Which clients and web pages may send requests.

    Attributes:
        allowed_hosts: None = only this machine's names if no key is needed and only this machine
            can reach the server, otherwise any.
    """

    # fmt: off
    api_key_file: Path | None = setting(None, FILE,
        "file with the API keys of clients, one a line; read again on SIGHUP (default: the key in "
        "the environment variable API_KEY or VLLM_API_KEY; without one, no key is needed)",
        group="access", common=True)
    api_keys: tuple[str, ...] = setting((), texts("KEY"),
        "an API key of clients; may be given several times. Other users of the machine can see "
        "it: prefer --api-key-file", flag="--api-key", repeats=True)
    requests_per_minute: int = setting(0, counts(0, _MAX_LIMIT),
        "requests that each API key may send a minute; more get 429. A line of --api-key-file may "
        "set another limit; 0 = no limit")
    tokens_per_minute: int = setting(0, counts(0, _MAX_LIMIT),
        "tokens, of prompts and answers, that each API key may use a minute; 0 = no limit")
    tokens_per_day: int = setting(0, counts(0, _MAX_LIMIT),
        "tokens, of prompts and answers, that each API key may use a day of UTC; 0 = no limit")
    allowed_origins: str | None = setting(None, Kind("ORIGINS", names),
        "web origins whose pages may send requests (CORS), separated by commas; * = any, others "
        "get 403 (default: * if a key is needed, otherwise only the server's own pages)")
    allowed_methods: str = setting("*", Kind("METHODS", names),
        "HTTP methods that pages of --allowed-origins may use, separated by commas; * = any")
    allowed_headers: str = setting("*", Kind("HEADERS", names),
        "request headers that pages of --allowed-origins may set, separated by commas; * = any")
    allow_credentials: bool = setting(False, SWITCH,
        "let pages of --allowed-origins send cookies; needs origins that are listed by name")
    allowed_hosts: str | None = setting(None, Kind("NAMES", names),
        "names that the Host header may contain, separated by commas, in addition to IP "
        "addresses, localhost and the machine's name; * = any, others get 421 (default: * if a "
        "key is needed or other machines can connect, otherwise none)")
    enable_docs: bool = setting(True, SWITCH,
        "serve the description of the API at /openapi.json and /docs, without a key")
    ui: bool = setting(True, SWITCH,
        "serve a web page at / that chats with the models and shows the engine live; it asks for "
        "the key")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The settings of the server process. Times in seconds."""

    # fmt: off
    drain_delay: float = setting(0.0, TIME,
        "at shutdown, how long requests are still accepted while the readiness check fails",
        group="operation")
    engine_timeout: float = setting(60.0, TIME,
        "an engine that has work but finishes no step for this time counts as hung, and the "
        "process ends; 0 = no limit")
    failure_grace: float = setting(2.0, TIME,
        "time between the failure of an engine, which health checks report, and the end of the "
        "process with exit code 1")
    log_level: str = setting("info", Kind("LEVEL", choice(*_LOG_LEVELS)),
        f"lowest level of log messages that are written: {', '.join(_LOG_LEVELS)}")
    log_file: Path | None = setting(None, FILE,
        "file that the log is appended to, reopened on SIGHUP (default: stderr)")
    log_format: str = setting("text", Kind("FORMAT", choice("text", "json")),
        "format of the log: text, or json = one JSON object a line")
    access_log: str = setting("text", Kind("FORMAT", choice("off", "text", "json")),
        "format of the access log, which has one line per request: off, text or json")
    access_log_file: Path | None = setting(None, FILE,
        "file that the access log is appended to, reopened on SIGHUP (default: the same as the "
        "log)")
    access_log_skip: str = setting(
        "/health,/ping,/ready,/v2/health/live,/v2/health/ready,/metrics,/v1/config",
        Kind("PATHS", str),
        "paths, separated by commas, whose successful requests are not written to the access log; "
        "'' = none")
    otlp_traces_endpoint: str | None = setting(None, Kind("URL", http_url),
        "collector that gets OpenTelemetry spans by OTLP over HTTP; needs the extra otel "
        "(default: the collector of OpenTelemetry's environment variables, if set)")
    ovms_metrics: bool = setting(False, SWITCH,
        "export the ovms_requests_* counters of OpenVINO Model Server too")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Which files of a model are read.

    Attributes:
        path: directory of an exported model, or a GGUF file; None = the path at which the model was
            found.
    """

    # fmt: off
    generation_config: Path = setting(Path("auto"), Kind("SOURCE", path),
        "source of the default sampling parameters: auto = the model's generation_config.json, "
        "vllm = none, or the path of another file or of its directory (default: auto)",
        group="batching and memory", after="--max-model-len")
    override_generation_config: Mapping[str, object] = setting({}, JSON,
        "default sampling parameters that take precedence over generation_config.json, such as "
        "'{\"temperature\": 0.5, \"max_new_tokens\": 512}'",
        after="--generation-config")
    path: Path | None = None
    # fmt: on


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """The directory of downloaded models, and what to download."""

    # fmt: off
    path: Path | None = setting(None, DIR,
        "directory that downloaded models are kept in, as ORG/NAME (default: fastovms/models in "
        "the user's cache directory)", flag="--model-repository-path", group="models of a hub")
    revision: str | None = setting(None, texts("REVISION"),
        "branch, tag or commit of the model to download; a stored copy of another revision is "
        "replaced only with --overwrite-models (default: the stored copy, or the main branch)")
    overwrite: bool = setting(False, SWITCH, "download models again even if they are stored",
        flag="--overwrite-models")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ResidencyConfig:
    """Which models stay in memory. Times in seconds; None = no limit."""

    # fmt: off
    max_loaded_models: int | None = setting(None, integers(1),
        "number of models in memory at the same time: a model is loaded on its first request, and "
        "the least recently used idle model is unloaded for it (default: all models are loaded at "
        "start)", group="several models")
    model_memory: int | None = setting(None, SIZE,
        "memory for the weights and KV caches of all models together: a model is loaded on its "
        "first request, and idle models are unloaded for it (default: no limit)")
    idle_unload: float = setting(0.0, TIME,
        "unload a model that was not used for this time, such as 90s, 15m or 2h; 0 = never")
    wait_timeout: float = setting(300.0, SOME_TIME,
        "how long a request waits for its model to be loaded; after that it gets 503",
        flag="--model-wait-timeout")
    poll_interval: float = setting(1.0, TIME,
        "how often the file of --config-path is checked for changes; 0 = never",
        flag="--file-system-poll-wait-seconds")
    # fmt: on

    def loads_on_demand(self, models: Iterable[ModelResidency] = ()) -> bool:
        """Returns whether models are loaded by their first request instead of at startup."""
        is_limited = self.max_loaded_models or self.model_memory or self.idle_unload
        return bool(is_limited or any(model.idle_unload for model in models))


PERMANENT: Final = "permanent"
"""The group of models that stay in memory."""


@dataclass(frozen=True, slots=True)
class ModelResidency:
    """How long one model stays in memory, if models are loaded on demand, and together with which
    others.

    Attributes:
        idle_unload: seconds without requests after which it is unloaded; 0 = never, None = the
            common setting.
        group: models of a group are loaded and unloaded together, and never while a model of
            another group is in memory; "" = no group, "permanent" = always in memory.
    """

    idle_unload: float | None = None
    group: str = ""

    @property
    def is_permanent(self) -> bool:
        """Whether the model always stays loaded."""
        return self.group == PERMANENT

    @property
    def is_exclusive(self) -> bool:
        """Whether models of other groups must not be in memory at the same time."""
        return self.group not in ("", PERMANENT)

    def excludes(self, other: ModelResidency) -> bool:
        """Returns whether the two models may not be in memory at the same time."""
        return self.is_exclusive and other.is_exclusive and self.group != other.group


NO_GROUP: Final = ModelResidency()


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """The limits on images and documents in requests."""

    # fmt: off
    allowed_media_domains: str | None = setting(None, texts("DOMAINS"),
        "hosts that images may be fetched from, separated by commas; all = any (default: none)",
        group="images")
    allowed_local_media_path: Path | None = setting(None, DIR,
        "directory below which images may be read from files; a file with further hard links is "
        "refused (default: none)")
    allow_media_redirects: bool = setting(False, SWITCH,
        "follow redirects when images are fetched, to allowed hosts only")
    allow_private_media: bool = setting(False, SWITCH,
        "fetch images from addresses that are not public too, such as those of the local network")
    media_timeout: float = setting(10.0, SOME_TIME, "how long fetching an image may take")
    max_images: int = setting(16, integers(1), "largest number of images in one request")
    max_image_bytes: int = setting(20 * 1024 * 1024, SIZE, "largest encoded size of one image")
    max_image_pixels: int = setting(32 * 1024 * 1024, counts(1),
        "largest image in pixels, width times height")
    shrink_images_to: int = setting(1024 * 1024, counts(1),
        "number of pixels to which a vision model's larger images are shrunk; a lower value in "
        "preprocessor_config.json takes precedence, and all images of a request together get at "
        "most twice as many")
    max_image_memory: int = setting(2 * 1024 * 1024 * 1024, SIZE,
        "memory of all images that are decoded or wait for the model; further requests get 429")
    max_document_bytes: int = setting(20 * 1024 * 1024, SIZE,
        "largest encoded size of one document")
    max_document_pages: int = setting(200, integers(1), "largest number of pages of one PDF")
    # fmt: on


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """The limits on files that clients upload and batches write."""

    # fmt: off
    max_file_size: int = setting(1024 * 1024 * 1024, SIZE,
        "largest file that a client may upload; larger uploads get 413", group="files")
    max_files_size: int = setting(8 * 1024 * 1024 * 1024, SIZE,
        "total size of the files of one API key, or of one client address without keys; all other "
        "keys together may use a quarter more")
    max_files: int = setting(10_000, counts(1),
        "number of files of one API key, or of one client address without keys; all other keys "
        "together may have as many again")
    # fmt: on


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The limits on batches.

    Attributes:
        max_kept: maximum number of ended batches that are kept.
    """

    # fmt: off
    max_unfinished: int = setting(100, Kind("N", count(1)),
        "number of unfinished batches of one API key, or of one client address without keys; all "
        "other keys together may have as many again", flag="--max-batches", group="files")
    max_lines: int = setting(1_000_000, counts(1), "largest number of requests in one batch",
        flag="--max-batch-lines", group="batches")
    num_at_once: int = setting(64, integers(1),
        "requests of batches that run at the same time while no other request runs",
        flag="--batch-concurrency")
    num_while_others_run: int = setting(2, integers(1),
        "requests of batches that run at the same time while other requests run",
        flag="--batch-concurrency-beside")
    max_kept: int = 1000
    # fmt: on


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The limits on stored responses and conversations.

    Attributes:
        lease: seconds after which a server loses a background response if it does not renew the
            lease.
    """

    # fmt: off
    enable_store: bool = setting(True, SWITCH,
        "store responses and conversations, so that later requests can refer to them",
        group="stored responses")
    state_dir: str | None = setting(None, texts("DIR"),
        "directory for responses, conversations, files, batches and cached prompts; :memory: = "
        "responses and conversations are kept in memory until the server ends, and nothing else "
        "is kept (default: $STATE_DIRECTORY, or $XDG_STATE_HOME/fastovms)", common=True)
    state_url: str | None = setting(None, Kind("URL", postgres_url),
        "PostgreSQL database for responses and conversations, which several servers may share: "
        "postgresql://USER@HOST/DATABASE, with libpq's parameters; files, batches and cached "
        "prompts stay in --state-dir (default: the environment variable FASTOVMS_STATE_URL, "
        "otherwise --state-dir)", variable="FASTOVMS_STATE_URL", secret=True)
    password_file: Path | None = setting(None, FILE,
        "file with the password for --state-url, read again for each connection (default: "
        "systemd's credential state-password, or libpq's sources)", flag="--state-password-file")
    num_connections: int = setting(4, integers(2, 64),
        "number of connections to the database of --state-url; half of them are used only for "
        "reading", flag="--state-connections")
    listen_url: str | None = setting(None, Kind("URL", postgres_url),
        "address of the database of --state-url that bypasses a pooler in transaction mode, which "
        "does not support LISTEN; without it, changes by other servers are seen up to a second "
        "later (default: --state-url)", flag="--state-listen-url",
        secret=True)
    max_age: float = setting(30 * 24 * 3600.0, SOME_TIME,
        "delete responses and conversations that were not used for this time",
        flag="--state-max-age")
    max_objects: int = setting(100_000, counts(1),
        "number of responses and conversations that are stored; beyond it, the API key that has "
        "the most loses those not used for the longest time", flag="--state-max-objects")
    max_bytes: int = setting(512 * 1024 * 1024, SIZE,
        "size of all stored responses and conversations; beyond it, the API key that has the most "
        "loses those not used for the longest time", flag="--state-max-size")
    max_background: int = setting(64, integers(1),
        "number of running background responses of one API key, or of one client address without "
        "keys; all other keys together may run as many again", flag="--max-background-responses")
    resume: bool = setting(True, SWITCH,
        "resume background responses after a crash or a restart; without it they are marked failed")
    lease: float = 7.0
    # fmt: on


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """The limits of the prefix cache on disk."""

    # fmt: off
    directory: Path | None = setting(None, DIR,
        "directory for the KV cache of prompts, which is read again after a restart (default: "
        "prefix-cache in the directory of --state-dir)",
        flag="--prefix-cache-dir", group="prefix cache on disk")
    max_bytes: int | None = setting(None, Kind("SIZE", size_or_none),
        "disk space for the prefix cache; the least recently used prompts are deleted first; 0 = "
        "no prefix cache on disk (default: 2G if the disk has 20G free, otherwise 0)",
        flag="--prefix-cache-disk-size")
    bytes_per_second: int = setting(32 * 1024 * 1024, SIZE,
        "bytes a second that the prefix cache writes to disk while no request runs; an eighth of "
        "that while requests run", flag="--prefix-cache-write-rate")
    bytes_per_day: int = setting(10 * 1024 * 1024 * 1024, SIZE,
        "bytes a day that the prefix cache writes to disk at most, to limit the wear of flash",
        flag="--prefix-cache-daily-writes")
    keeps_salted: bool = setting(False, SWITCH,
        "store prompts of requests with a cache_salt in the prefix cache on disk too",
        flag="--prefix-cache-salted")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        path: directory of an exported model.
        names: its names for clients; answers contain the first one.
        generation_config: a file to use instead of the directory's generation_config.json.
        override_generation_config: values that override those of that file.
        has_defaults: whether that file's values are defaults of requests.
    """

    path: Path
    names: tuple[str, ...]
    engine: EngineConfig = field(default_factory=EngineConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    images: ImageConfig = field(default_factory=ImageConfig)
    speaking: SpeakingConfig = field(default_factory=SpeakingConfig)
    limits: ModelLimits = field(default_factory=ModelLimits)
    generation_config: Path | None = None
    override_generation_config: Mapping[str, object] = field(default_factory=dict)
    has_defaults: bool = True
    residency: ModelResidency = NO_GROUP

    @property
    def name(self) -> str:
        """The name in answers, which is the first of the names."""
        return self.names[0]


Parameters = ParamSpec("Parameters")
Section = TypeVar("Section")


class ConfigField(NamedTuple):
    """A field of a section of the configuration, which is one of the dataclasses of `config`."""

    section: Callable[..., object]
    name: str

    @property
    def default(self) -> object:
        """The value of the field if it is not configured."""
        return getattr(self.section(), self.name)

    def __str__(self) -> str:
        return f"{self.section.__name__}.{self.name}"


class Fields:
    """The fields of a section, such as `Fields(HttpConfig).port`. An unknown name raises an error,
    usually at import."""

    def __init__(self, section: type[Any]) -> None:
        for known in dataclasses.fields(section):
            setattr(self, known.name, ConfigField(section, known.name))

    def __getattr__(self, name: str) -> ConfigField:
        raise AttributeError(f"the section has no field {name}, only {', '.join(vars(self))}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Values for some configuration fields. `low | high` merges two; `high` takes precedence.

    Attributes:
        given: the values by field.
    """

    given: Mapping[ConfigField, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        section: Callable[Parameters, object],
        /,
        *_: Parameters.args,
        **given: Parameters.kwargs,
    ) -> Settings:
        """Returns settings of one section: `Settings.of(HttpConfig, port=80)`."""
        known = Fields(section)  # type: ignore[arg-type]
        return Settings({getattr(known, name): value for name, value in given.items()})

    def __or__(self, high: Settings) -> Settings:
        """Merges two sources. Fields that are mappings, such as the properties of a device, are
        merged key by key."""
        merged = {**self.given, **high.given}
        for key in self.given.keys() & high.given.keys():
            if isinstance(merged[key], Mapping):
                merged[key] = {**self.given[key], **merged[key]}
        return Settings(merged)

    def section(self, section: Callable[..., Section]) -> Section:
        """Returns a section of the configuration, with defaults for fields without a value."""
        return section(**{key.name: value for key, value in self.only(section).given.items()})

    def only(self, *sections: Callable[..., object]) -> Settings:
        """Returns only the settings of these sections."""
        return Settings({key: self.given[key] for key in self.given if key.section in sections})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as given by the operator.

    Attributes:
        location: its directory or GGUF file, an OVMS graph file or its directory, or its id on the
            hub, "ORG/NAME".
        names: its names for clients; empty = the directory's name, or the id.
        settings: the operator's settings in `MODEL_SECTIONS`, which override those of a graph.
    """

    location: str = str(DEMO_MODEL)
    names: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    residency: ModelResidency = NO_GROUP


MODEL_SECTIONS: Final = (
    ModelFiles,
    EngineConfig,
    ChatConfig,
    EncoderConfig,
    ImageConfig,
    SpeakingConfig,
    ModelLimits,
)
"""The sections with settings per model."""

SECTIONS: Final = (
    RepositoryConfig,
    ApiConfig,
    HttpConfig,
    SecurityConfig,
    ResidencyConfig,
    ModelFiles,
    EngineConfig,
    ChatConfig,
    EncoderConfig,
    MediaConfig,
    ImageConfig,
    ServiceConfig,
    StateConfig,
    FilesConfig,
    BatchConfig,
    PrefixCacheConfig,
)
"""The sections with flags, in the order of the help."""

# The sections' fields, for the tables of what sets them.
API: Final = Fields(ApiConfig)
BATCHES: Final = Fields(BatchConfig)
CHAT: Final = Fields(ChatConfig)
ENCODER: Final = Fields(EncoderConfig)
ENGINE: Final = Fields(EngineConfig)
FILES: Final = Fields(ModelFiles)
HTTP: Final = Fields(HttpConfig)
IMAGES: Final = Fields(ImageConfig)
LIMITS: Final = Fields(ModelLimits)
MEDIA: Final = Fields(MediaConfig)
PREFIX_CACHE: Final = Fields(PrefixCacheConfig)
REPOSITORY: Final = Fields(RepositoryConfig)
RESIDENCY: Final = Fields(ResidencyConfig)
SECURITY: Final = Fields(SecurityConfig)
SERVICE: Final = Fields(ServiceConfig)
SOURCE: Final = Fields(ModelSource)
SPEAKING: Final = Fields(SpeakingConfig)
STATE: Final = Fields(StateConfig)
UPLOADS: Final = Fields(FilesConfig)
