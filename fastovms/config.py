"""Configuration of the server: one frozen dataclass per section. Every default that an operator may
change is declared here, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Addresses to listen on, and limits for clients. Sizes in bytes, times in seconds.

    Attributes:
        host, port: the first address; port 0 = any free one, host "" = every interface, None = only
            those of `listen`.
        listen: further addresses, "host:port", "[ipv6]:port", "*:port" or "unix:/path".
        root_path: the prefix that a proxy may leave before every path, such as "/llm"; "" =
            nothing.
        forwarded_allow_ips: addresses and networks of proxies whose X-Forwarded-For is trusted, a
            list separated by commas, "*" = any; None = none.
        unix_mode: permissions of Unix sockets.
        reuse_port: let other processes listen on the same ports (SO_REUSEPORT).
        backlog: connections that the kernel queues (it caps this at net.core.somaxconn).
        tls_certificate, tls_key: PEM files; None = plain HTTP. A key of None is looked for in the
            certificate's file.
        max_request_line: longer request lines get 414.
        max_head: limit of request line and header fields together, and of trailers; more get 431.
        max_header_fields: more header fields get 431.
        max_body: larger bodies get 413; see also `largest_body`.
        max_buffered_bodies: limit of all request bodies in memory. One client may use at most half
            of what the others leave free; more get 503.
        max_pipelined: requests that wait on one connection after the current one.
        max_connections: more connections get 503. It is lower where the limit of open files is.
            Handshakes of TLS share it: beyond it, the oldest one is ended.
        max_write_buffer: bytes that a stream may queue for a slow client before it is cut.
        head_timeout: limit for receiving a whole head, and for the first byte of a new connection.
        body_timeout: limit for receiving a whole body, plus its size divided by `min_body_rate`
            (bytes a second).
        keep_alive_timeout: idle time between two requests; above that of the usual client pools and
            proxies (60 s), so that the client closes first.
        write_timeout: a client that reads nothing of its answer for this time is disconnected.
        linger_timeout: how long to read and discard data that a client sends after its request was
            refused.
        close_timeout: a client that reads nothing of its connection's last answer for this time is
            disconnected.
        ping_interval: time without an event in a stream before a comment is sent, and between the
            pings of a WebSocket connection; 0 = never.
        websocket_idle_timeout: time without a message or a running response after which a WebSocket
            connection is closed.
        websocket_max_age: time after which a WebSocket connection is closed, once no response runs.
        drain_timeout: how long, at shutdown, running requests and new ones on open connections may
            take. Each connection is closed after its next answer.
        drain_grace: how long, at shutdown, idle connections may still bring a request.
    """

    host: str | None = "127.0.0.1"
    port: int = 8000
    listen: tuple[str, ...] = ()
    root_path: str = ""
    forwarded_allow_ips: str | None = None
    unix_mode: int = 0o660
    reuse_port: bool = False
    backlog: int = 2048
    tls_certificate: str | None = None
    tls_key: str | None = None
    max_request_line: int = 16 * 1024
    max_head: int = 64 * 1024
    max_header_fields: int = 128
    max_body: int = 64 * 1024 * 1024
    max_buffered_bodies: int = 1024 * 1024 * 1024
    max_pipelined: int = 16
    max_connections: int = 16 * 1024
    max_write_buffer: int = 4 * 1024 * 1024
    head_timeout: float = 10.0
    body_timeout: float = 60.0
    min_body_rate: float = 1024 * 1024
    keep_alive_timeout: float = 75.0
    write_timeout: float = 60.0
    linger_timeout: float = 2.0
    close_timeout: float = 5.0
    ping_interval: float = 15.0
    websocket_idle_timeout: float = 900.0
    websocket_max_age: float = 3600.0
    drain_timeout: float = 30.0
    drain_grace: float = 0.5

    @property
    def largest_body(self) -> int:
        """Bytes beyond which a body would never be read: 413."""
        return min(self.max_body, self.max_buffered_bodies // 2)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Which clients and web pages may send requests.

    Attributes:
        api_key_file: one key a line.
        api_keys: further keys. Without any, and without a file, the environment's API_KEY or
            VLLM_API_KEY is the key; without any key, every client may send requests.
        allowed_origins: origins of pages that may send requests, in addition to the server's own; a
            list separated by commas, "*" = any. None = any if a key is needed, because other pages
            do not have it; otherwise none.
        allowed_methods, allowed_headers: methods and headers that scripts of those pages may use;
            lists like `allowed_origins`.
        allow_credentials: let those scripts send cookies.
        allowed_hosts: names by which the server may be addressed, in addition to addresses,
            localhost and the machine's own; a list separated by commas, "*" = any. None = no others
            if no key is needed and only this machine can reach the server, otherwise any.
        enable_docs: serve the description of the API, without a key.
        ui: serve the page at `/` without a key. Its requests need a key.
    """

    api_key_file: Path | None = None
    api_keys: tuple[str, ...] = ()
    allowed_origins: str | None = None
    allowed_methods: str = "*"
    allowed_headers: str = "*"
    allow_credentials: bool = False
    allowed_hosts: str | None = None
    enable_docs: bool = True
    ui: bool = True


DEFAULT_TOKEN_BUDGET: Final = 256
"""The maximum number of tokens of one step, if nothing was measured."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of the engine.

    Attributes:
        device: OpenVINO's name of the device; "AUTO" = a discrete GPU, else an integrated one, else
            the CPU.
        plugin_config: properties handed to `compile_model` unchanged.
        cache_size: KV cache in GB; 0 = a share of the memory that is free at start.
        max_num_seqs: sequences that run in one step.
        precision: "auto" = the fastest, "exact" = f32, with bit-identical results on the CPU.
        max_num_batched_tokens: token budget of one step; None = the value measured for the model on
            this machine, or `DEFAULT_TOKEN_BUDGET`.
        tune: measure, when idle, which precisions and token budget are the fastest.
        decode_kernels: "auto" = our own kernels compute steps of few tokens where they are faster,
            "off" = never.
        max_num_queued_requests: samples of one client that may wait to run; more are refused as
            overload. Those of all other clients together find as many places beyond these.
        enable_prefix_caching: reuse the KV blocks of equal prompt beginnings.
        enable_prompt_lookup: draft tokens from earlier text; None = only with the paged backend.
        suffix_index_tokens: number of recent tokens of all requests to draft from; 0 = only each
            sample's own text.
        draft_model: directory of a smaller model with the same vocabulary, or of an EAGLE-3 head,
            which shares `cache_size` and drafts tokens if that is faster; None = none.
        cache_dir: directory of files that make the next start faster; None = the user's cache
            directory, "" = none.
        max_model_len: context length to use; None = the model's.
        backend: "paged", "genai", or "auto" = genai only for models that the paged backend cannot
            run.
        enable_lora: serve adapters (LoRA), which operators load while the server runs; also on with
            `lora_modules`.
        lora_modules: directories of the adapters to load at start, by their names for clients.
        max_loras: adapters in memory at the same time.
        max_lora_rank: the highest rank of an adapter.
    """

    device: str = "AUTO"
    plugin_config: Mapping[str, object] = field(default_factory=dict)
    cache_size: float = 0.0
    max_num_seqs: int = 256
    precision: str = "auto"
    max_num_batched_tokens: int | None = None
    tune: bool = True
    decode_kernels: str = "auto"
    max_num_queued_requests: int = 1024
    enable_prefix_caching: bool = True
    enable_prompt_lookup: bool | None = None
    suffix_index_tokens: int = 512 * 1024
    draft_model: Path | None = None
    cache_dir: str | None = None
    max_model_len: int | None = None
    backend: str = "auto"
    enable_lora: bool = False
    lora_modules: Mapping[str, Path] = field(default_factory=dict)
    max_loras: int = 8
    max_lora_rank: int = 64

    @property
    def serves_adapters(self) -> bool:
        return self.enable_lora or bool(self.lora_modules)

    @property
    def why_cpu(self) -> str:
        """Why no device but the CPU can run the model; "" = another one may."""
        return "adapters are served on the CPU only" if self.serves_adapters else ""

    @property
    def token_budget(self) -> int:
        """`max_num_batched_tokens`, or the default if it is not set."""
        return self.max_num_batched_tokens or DEFAULT_TOKEN_BUDGET


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """The limits of the prompt cache on disk.

    Attributes:
        directory: None = a folder of the state directory.
        max_bytes: limit of the cache; 0 = no cache, None = 2 GiB if the disk has 20 GiB free.
        bytes_per_second, bytes_per_day: limits of writing.
        keeps_salted: also cache prompts with a `cache_salt`.
    """

    directory: Path | None = None
    max_bytes: int | None = None
    bytes_per_second: int = 32 * 1024 * 1024
    bytes_per_day: int = 10 * 1024 * 1024 * 1024
    keeps_salted: bool = False


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The settings of embedding models and rerankers.

    Attributes:
        task: the model's task, "text_generation", "embeddings", "rerank" or "speech2text"; "auto" =
            by its files.
        pooling: "cls", "mean" or "last"; "auto" = by the model's files; by default "cls", or "last"
            for a decoder.
        normalize: scale vectors to length 1.
        truncate: cut texts that are too long for the model, instead of refusing them.
        query_instruction, document_instruction: text put before queries and documents.
        max_inputs: maximum number of texts in a request for embeddings or scores.
        max_allowed_chunks: maximum number of documents in a rerank request; a document that is
            split to fit the model counts once for each part.
        max_batch_tokens: maximum number of tokens of a batch.
    """

    task: str = "auto"
    pooling: str = "auto"
    normalize: bool = True
    truncate: bool = False
    query_instruction: str = ""
    document_instruction: str = ""
    max_inputs: int = 2048
    max_allowed_chunks: int = 10_000
    max_batch_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class ResidencyConfig:
    """Which models are in memory. Times in seconds; None = no limit.

    Attributes:
        max_loaded_models, model_memory: limits on their number, and on the bytes of their weights
            and KV caches.
        idle_unload: idle time after which a model is unloaded; 0 = never.
        wait_timeout: how long a request waits for its model; then it gets 503.
        poll_interval: interval for checking the file of `--config-path`; 0 = never.
    """

    max_loaded_models: int | None = None
    model_memory: int | None = None
    idle_unload: float = 0.0
    wait_timeout: float = 300.0
    poll_interval: float = 1.0

    @property
    def loads_on_demand(self) -> bool:
        """Whether a model is loaded when it is first asked for, and not at start."""
        return bool(self.max_loaded_models or self.model_memory or self.idle_unload)


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """The limits on one request, in addition to those of the model and of the API dialects.

    Attributes:
        max_prompts: prompts in one completions request.
        max_choices: samples of all its prompts together.
        max_stop_strings: stop strings, if the dialect sets no lower limit.
        max_stop_length: characters of one stop string.
        max_logprobs: top log probabilities of one token; -1 = as many as the vocabulary has.
        max_total_logprobs: log probabilities in the whole answer to one request, each about a
            hundred bytes while the answer is made.
        max_grammar_length: maximum characters of a schema, regular expression or other grammar.
        max_pending_chars: characters of text buffered for a client that does not read its stream.
        max_background_tokens: token limit of a background response whose request sets none; 0 = the
            context.
        per_request_metrics: answers of one sample report their duration.
        max_audio_size: bytes of a file to transcribe; larger ones get 413.
        max_audio_seconds: seconds of its audio.
        any_model_name: the only model answers requests that name another one.
    """

    max_prompts: int = 1024
    max_choices: int = 1024
    max_stop_strings: int = 256
    max_stop_length: int = 1024
    max_logprobs: int = 20
    max_total_logprobs: int = 5_000_000
    max_grammar_length: int = 256 * 1024
    max_pending_chars: int = 1024 * 1024
    max_background_tokens: int = 8192
    per_request_metrics: bool = False
    max_audio_size: int = 256 * 1024 * 1024
    max_audio_seconds: int = 2 * 60 * 60
    any_model_name: bool = False


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """The limits on images and documents in requests.

    Attributes:
        allowed_media_domains: hosts of images, separated by commas; "all" = any, None = none.
        allowed_local_media_path: directory from which images may be read; None = none.
        allow_media_redirects: whether to follow the redirects of those hosts, if they lead to such
            hosts.
        allow_private_media: whether to fetch from addresses that are not public.
        media_timeout: seconds for fetching an image.
        max_images: maximum number of images of a request.
        max_image_bytes: maximum encoded size of an image.
        max_image_pixels: maximum pixels of an image, by its header.
        shrink_images_to: maximum pixels of an image for the model; larger images are shrunk. All
            images of a request together get at most twice as many.
        max_image_memory: maximum bytes of all images that are decoded or wait for a model.
        max_document_bytes: maximum size of a document of a request.
        max_document_pages: maximum number of pages of a document.
    """

    allowed_media_domains: str | None = None
    allowed_local_media_path: Path | None = None
    allow_media_redirects: bool = False
    allow_private_media: bool = False
    media_timeout: float = 10.0
    max_images: int = 16
    max_image_bytes: int = 20 * 1024 * 1024
    max_image_pixels: int = 32 * 1024 * 1024
    shrink_images_to: int = 1024 * 1024
    max_image_memory: int = 2 * 1024 * 1024 * 1024
    max_document_bytes: int = 20 * 1024 * 1024
    max_document_pages: int = 200


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """The settings of chat templates, reasoning and tool calls.

    Attributes:
        chat_template: Jinja file in place of the model's templates, or such a template itself.
        chat_template_content_format: the form of message contents for templates: "string", "openai"
            (a list of parts), "auto" = as the template expects.
        default_chat_template_kwargs: variables of templates that a request does not set itself.
        trust_request_chat_template: requests may contain their own template.
        tool_parser, reasoning_parser: names of the formats of tool calls and reasoning; "auto" = by
            the model's template, "none" = not parsed.
        reasoning_budget: tokens of reasoning after which it is ended, where a request sets no limit
            by a number or an effort; -1 = no limit.
        reasoning_budget_message: text before the end of reasoning whose budget is spent.
        response_role: the role of the messages that are generated.
    """

    chat_template: Path | str | None = None
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    response_role: str = "assistant"


DEMO_MODEL: Final = Path(__file__).parent / "demo_model"
"""The directory of the model that comes with the package."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits that the operator of an OVMS graph may set for each model.

    Attributes:
        max_tokens_limit: new tokens per sample, also if the request sets none.
        best_of_limit: upper limit of candidates per prompt, exclusive.
    """

    max_tokens_limit: int | None = None
    best_of_limit: int = 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Which files of a model are read.

    Attributes:
        path: directory of an exported model, or a GGUF file; None = the path at which the model was
            found.
        generation_config: a file in place of the directory's generation_config.json, or the
            directory of one; "auto" = the model's own, "vllm" = none.
        override_generation_config: members that go before those of that file.
    """

    path: Path | None = None
    generation_config: Path = Path("auto")
    override_generation_config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        path: directory of an exported model.
        names: its names for clients; answers have the first one.
        generation_config: file in place of the directory's generation_config.json.
        override_generation_config: members that go before those of that file.
        has_defaults: whether that file's values are defaults of requests.
    """

    path: Path
    names: tuple[str, ...]
    engine: EngineConfig = field(default_factory=EngineConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    limits: ModelLimits = field(default_factory=ModelLimits)
    generation_config: Path | None = None
    override_generation_config: Mapping[str, object] = field(default_factory=dict)
    has_defaults: bool = True

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """The directory of downloaded models, and what to download.

    Attributes:
        path: directory that contains ORG/NAME; None = the user's cache directory.
        revision: branch, tag or commit; None = the main branch.
        overwrite: download a model again even if it is stored.
    """

    path: Path | None = None
    revision: str | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """The files that clients upload and those that batches write.

    Attributes:
        max_file_size: maximum bytes of an upload; larger ones get 413.
        max_files_size: maximum bytes of all files; further uploads are refused.
        max_files: maximum number of files.
    """

    max_file_size: int = 1024 * 1024 * 1024
    max_files_size: int = 8 * 1024 * 1024 * 1024
    max_files: int = 10_000


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The limits on batches.

    Attributes:
        max_lines: maximum number of lines of a batch.
        max_unfinished: maximum number of unfinished batches; more are refused.
        max_kept: maximum number of ended batches that are kept.
        num_at_once: lines that run at the same time while no other request runs.
        num_beside_others: lines that run at the same time while other requests run.
    """

    max_lines: int = 1_000_000
    max_unfinished: int = 100
    max_kept: int = 1000
    num_at_once: int = 64
    num_beside_others: int = 2


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The settings of the process for its operator. Times in seconds.

    Attributes:
        engine_timeout: an engine that has work and finishes no step for this time is considered
            hung; 0 = no limit.
        failure_grace: time between the failure of an engine, which health checks report, and the
            end of the process.
        drain_delay: how long, at shutdown, requests are still accepted while the readiness check
            fails, so that balancers notice first.
        log_level: "trace" (the same as "debug"), "debug", "info", "warning" or "error".
        log_file: appended to, reopened on SIGHUP; None = stderr.
        log_format: "text" or "json".
        access_log: one line per request, "text" or "json"; "off" = none.
        access_log_file: file of the access log, like `log_file`; None = the same as the log.
        access_log_skip: paths that get no line in the access log, separated by commas; "" = none.
        ovms_metrics: export the request counters of OpenVINO Model Server too.
        otlp_traces_endpoint: the collector that gets spans, "http://host:4318"; None = the one in
            OpenTelemetry's environment variables, if any.
    """

    engine_timeout: float = 60.0
    failure_grace: float = 2.0
    drain_delay: float = 0.0
    log_level: str = "info"
    log_file: Path | None = None
    log_format: str = "text"
    access_log: str = "text"
    access_log_file: Path | None = None
    access_log_skip: str = (
        "/health,/ping,/ready,/v2/health/live,/v2/health/ready,/metrics,/v1/config"
    )
    ovms_metrics: bool = False
    otlp_traces_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The limits on stored maximum number of responses and conversations.

    Attributes:
        enable_store: store maximum number of responses and conversations.
        state_dir: directory of responses, files, batches and cached prompts; ":memory:" = responses
            are kept only in memory; None = systemd's or the user's state directory.
        state_url: URL of a PostgreSQL database, which servers may share, for maximum number of
            responses and conversations in place of the directory.
        password_file: file with its password; None = systemd's credential, or wherever libpq finds
            it.
        num_connections: connections to that database.
        listen_url: URL of the same database for the connection that listens for changes, if
            `state_url` goes through a pooler that does not support LISTEN; None = `state_url`.
        lease: seconds after which a background response is released by its server if not renewed.
        max_age: seconds since the last use after which a response is deleted.
        max_objects: maximum number of responses and conversations.
        max_bytes: maximum bytes of all of them with their items.
        max_background: maximum number of background responses that run.
        resume: resume interrupted responses.
    """

    enable_store: bool = True
    state_dir: str | None = None
    state_url: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    num_connections: int = 4
    listen_url: str | None = field(default=None, repr=False)
    lease: float = 7.0
    max_age: float = 30 * 24 * 3600.0
    max_objects: int = 100_000
    max_bytes: int = 512 * 1024 * 1024
    max_background: int = 64
    resume: bool = True


# Holds what an operator has set: some fields of the configuration, from several sources that
# merge. What nobody has set has the default of `config`.


Parameters = ParamSpec("Parameters")
Section = TypeVar("Section")


class ConfigField(NamedTuple):
    """A field of a section of the configuration, which is one of the dataclasses of `config`."""

    section: Callable[..., object]
    name: str

    @property
    def default(self) -> object:
        return getattr(self.section(), self.name)

    def __str__(self) -> str:
        return f"{self.section.__name__}.{self.name}"


class Fields:
    """The fields of a section, such as `Fields(HttpConfig).port`. An unknown name raises an error
    at import."""

    def __init__(self, section: type[Any]) -> None:
        for known in dataclasses.fields(section):
            setattr(self, known.name, ConfigField(section, known.name))

    def __getattr__(self, name: str) -> ConfigField:
        raise AttributeError(f"the section has no field {name}, only {', '.join(vars(self))}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The fields that are set. `low | high` merges two; `high` takes precedence.

    Attributes:
        given: the values of the fields that are set.
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
        """Merges two sources. In fields that are mappings, such as the properties of a device, each
        member is merged on its own."""
        merged = {**self.given, **high.given}
        for key in self.given.keys() & high.given.keys():
            if isinstance(merged[key], Mapping):
                merged[key] = {**self.given[key], **merged[key]}
        return Settings(merged)

    def section(self, section: Callable[..., Section]) -> Section:
        """Returns a section of the configuration, with defaults where nothing is set."""
        return section(**{key.name: value for key, value in self.only(section).given.items()})

    def only(self, *sections: Callable[..., object]) -> Settings:
        """Returns the settings of these sections."""
        return Settings({key: self.given[key] for key in self.given if key.section in sections})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the operator names it.

    Attributes:
        location: its directory or GGUF file, an OVMS graph file or its directory, or its id on the
            hub, "ORG/NAME".
        names: its names for clients; none = the directory's name, or the id.
        settings: the operator's settings in `MODEL_SECTIONS`, which override those of a graph.
    """

    location: str = str(DEMO_MODEL)
    names: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


MODEL_SECTIONS: Final = (ModelFiles, EngineConfig, ChatConfig, EncoderConfig, ModelLimits)
"""The sections that each model has for itself."""

# The sections' fields, for the tables of what sets them.
API: Final = Fields(ApiConfig)
BATCHES: Final = Fields(BatchConfig)
CHAT: Final = Fields(ChatConfig)
ENCODER: Final = Fields(EncoderConfig)
ENGINE: Final = Fields(EngineConfig)
FILES: Final = Fields(ModelFiles)
HTTP: Final = Fields(HttpConfig)
LIMITS: Final = Fields(ModelLimits)
MEDIA: Final = Fields(MediaConfig)
PREFIX_CACHE: Final = Fields(PrefixCacheConfig)
REPOSITORY: Final = Fields(RepositoryConfig)
RESIDENCY: Final = Fields(ResidencyConfig)
SECURITY: Final = Fields(SecurityConfig)
SERVICE: Final = Fields(ServiceConfig)
SOURCE: Final = Fields(ModelSource)
STATE: Final = Fields(StateConfig)
UPLOADS: Final = Fields(FilesConfig)
