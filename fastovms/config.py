"""Configuration of the server: one frozen dataclass per section. Every default that an operator may
change is declared here, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

# Declares where the server listens, what a client may cost there, and who may ask.


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where to listen and what a client may cost. Sizes in bytes, times in seconds.

    Attributes:
        host, port: the first address; port 0 = any free one, host "" = every interface, None =
            only those of `listen`.
        listen: further addresses, "host:port", "[ipv6]:port", "*:port" or "unix:/path".
        root_path: what a proxy may leave in front of every path, such as "/llm"; "" = nothing.
        forwarded_allow_ips: addresses and networks of proxies whose X-Forwarded-For is believed, a
            list separated by commas, "*" = any; None = none.
        unix_mode: permissions of Unix sockets.
        reuse_port: let other processes listen on the same ports (SO_REUSEPORT).
        backlog: connections that the kernel queues (it caps this at net.core.somaxconn).
        tls_certificate, tls_key: PEM files; None = plain HTTP. A key of None is looked for in the
            certificate's file.
        max_request_line: 414 beyond it.
        max_head: request line and header fields together, trailers likewise; 431 beyond it.
        max_header_fields: 431 beyond it.
        max_body: 413 beyond it; see also `largest_body`.
        max_buffered_bodies: all request bodies in memory together, of which those of one client
            are at most what is left for all others; 503 beyond it.
        max_pipelined: requests that wait on one connection after the current one.
        max_connections: 503 beyond it. As many TLS handshakes may run besides; of more, the oldest
            ends.
        max_write_buffer: what a stream may queue for a client that does not read before it is cut.
        head_timeout: how long a whole head may take, and a new connection's first byte.
        body_timeout: how long a whole body may take, plus its size over `min_body_rate` (bytes a
            second).
        keep_alive_timeout: idle time between two requests; above that of the usual client pools
            and proxies (60 s), so that the client closes first.
        write_timeout: a client that reads nothing of its answer for this time is disconnected.
        linger_timeout: how long what a client still sends after its request was refused is read.
        close_timeout: a client that reads nothing of its connection's last answer for this time is
            disconnected.
        ping_interval: silence in an event stream before a comment is sent; 0 = never.
        drain_timeout: how long, at shutdown, requests may take that run or still arrive over open
            connections. Each connection is closed after its next answer.
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
    drain_timeout: float = 30.0
    drain_grace: float = 0.5

    @property
    def largest_body(self) -> int:
        """Bytes beyond which a body would never be read: 413."""
        return min(self.max_body, self.max_buffered_bodies // 2)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The clients and pages that may send requests.

    Attributes:
        api_key_file: one key a line.
        api_keys: further keys. Without any, and without a file, the environment's API_KEY or
            VLLM_API_KEY is the key; without keys, every client may.
        allowed_origins: of pages that may send requests, in addition to the server's own; a list
            separated by commas, "*" = any. None = any where a key is needed, since that is more
            than a page has; where none is needed, no others.
        allowed_methods, allowed_headers: what scripts of those pages may use; lists like it.
        allow_credentials: let those scripts send cookies.
        allowed_hosts: names by which the server may be addressed, in addition to addresses,
            localhost and the machine's own; a list separated by commas, "*" = any. None = no others
            if no key is needed and only this machine can reach the server, otherwise any.
        enable_docs: serve the description of the API, without a key.
        ui: serve the page at `/`, without a key. What it shows it asks for with a key.
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
"""The most tokens of one step, where nothing was measured."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of the engine.

    Attributes:
        device: OpenVINO device name.
        plugin_config: properties handed to `compile_model` unchanged.
        cache_size: KV cache in GB; 0 = a share of the memory that is free at start.
        max_num_seqs: sequences that run in one step.
        precision: "auto" = the fastest, "exact" = f32 and, on the CPU, the same sums always.
        max_num_batched_tokens: token budget of one step; None = the value measured for the model on
            this machine, or `DEFAULT_TOKEN_BUDGET`.
        tune: measure, when idle, which precisions and token budget are the fastest.
        decode_kernels: "auto" = our own kernels compute steps of few tokens where they are faster,
            "off" = never.
        max_num_queued_requests: samples that may wait to run; more are refused as overload.
        enable_prefix_caching: reuse the KV blocks of equal prompt beginnings.
        enable_prompt_lookup: draft from earlier text; None = with the paged backend.
        suffix_index_tokens: of how many recent tokens; 0 = of each sample's own text alone.
        draft_model: directory of a smaller model with the same vocabulary, which shares
            `cache_size` and drafts where that pays; None = none.
        cache_dir: keeps what makes the next start faster; None = the user's, "" = nothing.
        max_model_len: context length to offer; None = the model's.
        backend: "paged", "genai", or "auto" = genai for what the paged one does not run.
    """

    device: str = "CPU"
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

    @property
    def token_budget(self) -> int:
        """`max_num_batched_tokens`, or the default where nothing has been measured."""
        return self.max_num_batched_tokens or DEFAULT_TOKEN_BUDGET


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """The limits on the prompts that are kept on disk.

    Attributes:
        directory: None = below the directory of the state.
        max_bytes: 0 = nothing is kept, None = 2 GiB where the disk has 20 GiB free.
        bytes_per_second, bytes_per_day: how much is written at most.
        keeps_salted: keep prompts with a `cache_salt`, too.
    """

    directory: Path | None = None
    max_bytes: int | None = None
    bytes_per_second: int = 32 * 1024 * 1024
    bytes_per_day: int = 10 * 1024 * 1024 * 1024
    keeps_salted: bool = False


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The settings of models for vectors and scores.

    Attributes:
        task: what the model does, "text_generation", "embeddings" or "rerank"; "auto" = as its
            files say.
        pooling: "cls", "mean" or "last"; "auto" = as the model's files say; without them "cls", or
            "last" for a decoder.
        normalize: give vectors the length 1.
        truncate: cut texts that are too long for the model, rather than refuse them.
        query_instruction, document_instruction: what is put before queries and documents.
        max_inputs: texts of one request for embeddings or scores.
        max_allowed_chunks: documents of one request to rerank, each of which counts as many times
            as it is cut to fit the model.
        max_batch_tokens: tokens that are computed together.
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
        max_loaded_models, model_memory: how many, and bytes of their weights and KV caches.
        idle_unload: models that were not used for this time are unloaded; 0 = never.
        wait_timeout: how long a request waits for its model; 503 beyond it.
        poll_interval: between two looks at the file of `--config-path`; 0 = none.
    """

    max_loaded_models: int | None = None
    model_memory: int | None = None
    idle_unload: float = 0.0
    wait_timeout: float = 300.0
    poll_interval: float = 1.0


# Declares what requests may ask for: their bounds, their media and their chats.


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """The limits on one request, in addition to those of the model and of the contracts.

    Attributes:
        max_prompts: prompts in one completions request.
        max_choices: samples of all its prompts together.
        max_stop_strings: stop strings, where the contract sets no lower limit.
        max_stop_length: characters of one stop string.
        max_logprobs: top log probabilities of one token; -1 = as many as the vocabulary has.
        max_total_logprobs: log probabilities in the whole answer to one request, each about a
            hundred bytes while the answer is made.
        max_grammar_length: characters of a schema, an expression or other grammar.
        max_pending_chars: text that waits for a client which does not read its stream.
        max_background_tokens: tokens of a response in the background whose request sets no limit;
            0 = as many as the context holds.
        per_request_metrics: answers of one sample report their duration.
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


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """The images that a request may bring.

    Attributes:
        allowed_media_domains: hosts of images, separated by commas; "all" = any, None = none.
        allowed_local_media_path: images are read from files below it; None = from none.
        allow_media_redirects: whether to follow the redirects of those hosts, to those hosts.
        allow_private_media: whether to fetch from addresses that are not public.
        media_timeout: seconds for fetching an image.
        max_images: how many one request may have.
        max_image_bytes: the size of one, encoded.
        max_image_pixels: the pixels of one, by its header.
        shrink_images_to: the pixels that a model gets of an image; a larger one is shrunk. All
            images of a request have twice as many together.
        max_image_memory: bytes of all images that are decoded or wait for a model.
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


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """The settings of chat templates, reasoning and tool calls.

    Attributes:
        chat_template: Jinja file in place of the model's templates, or such a template itself.
        chat_template_content_format: how templates get the content of messages: "string", "openai"
            (a list of parts), "auto" = as they read it.
        default_chat_template_kwargs: variables of templates that a request does not set itself.
        trust_request_chat_template: a request may bring a template of its own.
        tool_parser, reasoning_parser: names of the formats in which the model writes calls and
            thoughts; "auto" = as its template says, "none" = it writes none.
        response_role: the role of the messages that are generated.
    """

    chat_template: Path | str | None = None
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    response_role: str = "assistant"


DEMO_MODEL: Final = Path(__file__).parent / "demo_model"
"""The directory of the model that comes with the package."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits that the operator of an OVMS graph may set for each model.

    Attributes:
        max_tokens_limit: new tokens per sample, also when the request names no number.
        best_of_limit: how many candidates per prompt are too many: there must be fewer.
    """

    max_tokens_limit: int | None = None
    best_of_limit: int = 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Which files of a model are read.

    Attributes:
        path: directory of an exported model, or a GGUF file; None = where the model was found.
        generation_config: a file in place of the directory's generation_config.json, or the
            directory of one; "auto" = the model's own, "vllm" = none.
    """

    path: Path | None = None
    generation_config: Path = Path("auto")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        path: directory of an exported model.
        names: what clients may call it; the first one is the one that answers carry.
        generation_config: file in place of the directory's generation_config.json.
        has_defaults: whether that file's values are defaults of requests.
    """

    path: Path
    names: tuple[str, ...]
    engine: EngineConfig = field(default_factory=EngineConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    limits: ModelLimits = field(default_factory=ModelLimits)
    generation_config: Path | None = None
    has_defaults: bool = True

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """Where models of a hub are kept, and what of them is taken.

    Attributes:
        path: ORG/NAME is below it; None = the user's cache directory.
        revision: branch, tag or commit; None = the main branch.
        overwrite: pull a model again that is there.
    """

    path: Path | None = None
    revision: str | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """The files that clients upload, and those that batches leave.

    Attributes:
        max_file_size: bytes of one upload; 413 beyond it.
        max_files_size: bytes of all of them; uploads beyond it are refused.
        max_files: how many there may be.
    """

    max_file_size: int = 1024 * 1024 * 1024
    max_files_size: int = 8 * 1024 * 1024 * 1024
    max_files: int = 10_000


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The batches that run, one line of a file after the other.

    Attributes:
        max_lines: of one batch.
        max_unfinished: batches that have not ended; more are refused.
        max_kept: batches that have ended and are still known.
        num_at_once: lines that run at the same time while no other request runs.
        num_beside_others: the same while other requests run.
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
        failure_grace: between the failure of an engine, which health checks then report, and the
            end of the process.
        drain_delay: how long, at shutdown, requests are still taken while readiness says no, so
            that balancers may notice first.
        log_level: "trace" (the same as "debug"), "debug", "info", "warning" or "error".
        log_file: appended to, reopened on SIGHUP; None = stderr.
        log_format: "text" or "json".
        access_log: a line a request, "text" or "json"; "off" = none.
        access_log_file: where it is written, like `log_file`; None = where the log goes.
        access_log_skip: paths that get no line in the access log, separated by commas; "" = none.
        ovms_metrics: export the request counters of OpenVINO Model Server too.
        otlp_traces_endpoint: the collector that gets spans, "http://host:4318"; None = the one
            that OpenTelemetry's variables name, if they do.
    """

    engine_timeout: float = 60.0
    failure_grace: float = 2.0
    drain_delay: float = 0.0
    log_level: str = "info"
    log_file: Path | None = None
    log_format: str = "text"
    access_log: str = "text"
    access_log_file: Path | None = None
    access_log_skip: str = "/health,/ping,/ready,/v2/health/live,/v2/health/ready,/metrics"
    ovms_metrics: bool = False
    otlp_traces_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The limits on stored responses and conversations.

    Attributes:
        enable_store: keep anything at all.
        state_dir: directory of responses, files, batches and cached prompts; ":memory:" = none, and
            responses last until the process ends; None = systemd's or the user's.
        state_url: of a PostgreSQL database that other servers may share, which keeps responses and
            conversations in place of the directory.
        password_file: the password for it; None = systemd's credential, or wherever libpq finds it.
        num_connections: to that database.
        listen_url: of the same database for the connection that hears of changes, where `state_url`
            leads through a pooler that does not let sessions listen; None = `state_url`.
        lease: seconds for which a response in the background is its server's, if not renewed.
        max_age: seconds since the last use.
        max_objects: responses and conversations.
        max_bytes: the bytes of all of them with their items.
        max_background: responses that run without a client.
        resume: go on with those that were cut off.
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
    """The fields of a section, such as `Fields(HttpConfig).port`. Another name is an error, so that
    a table with a wrong one cannot be imported."""

    def __init__(self, section: type[Any]) -> None:
        for known in dataclasses.fields(section):
            setattr(self, known.name, ConfigField(section, known.name))

    def __getattr__(self, name: str) -> ConfigField:
        raise AttributeError(f"the section has no field {name}, only {', '.join(vars(self))}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The fields that are set. `low | high` is both, of which `high` goes before.

    Attributes:
        given: their values; of other fields nothing is said.
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
        location: its directory or GGUF file, a graph of OVMS or the directory of one, or its id on
            the hub, "ORG/NAME".
        names: what clients may call it; none = the directory's name, or the id.
        settings: what the operator has set of `MODEL_SECTIONS`. It goes before what a graph says.
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
