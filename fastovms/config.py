"""Declares the configuration, frozen. Each default stands here alone, or in a file like this one;
the CLI reads them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastovms.encoder_config import EncoderConfig

DEMO_MODEL: Final = Path(__file__).parent / "demo_model"
"""The directory of the model that comes with the package."""

DEFAULT_TOKEN_BUDGET: Final = 256
"""The most tokens of one step, where nothing was measured."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs a model.

    Attributes:
        device: OpenVINO device name.
        plugin_config: properties handed to `compile_model` unchanged.
        cache_size: KV cache in GB; 0 = a share of the memory that is free at start.
        max_num_seqs: sequences that run in one step.
        precision: "auto" = the fastest, "exact" = f32 and, on the CPU, the same sums always.
        max_num_batched_tokens: token budget of one step; None = what was measured for the model on
            this machine, else `DEFAULT_TOKEN_BUDGET`.
        tune: measure, when idle, which precisions and token budget are the fastest.
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
class ServiceConfig:
    """How the process deals with whoever runs it. Times in seconds.

    Attributes:
        engine_timeout: an engine that has work and finishes no step for so long hangs; 0 = it
            may take any time.
        failure_grace: between the failure of an engine, which health checks then report, and the
            end of the process.
        drain_delay: how long, at shutdown, requests are still taken while readiness says no, so
            that balancers may notice first.
        log_level: "trace" (the same as "debug"), "debug", "info", "warning" or "error".
        log_file: appended to, opened anew on SIGHUP; None = stderr.
        log_format: "text" or "json".
        access_log: a line a request, "text" or "json"; "off" = none.
        access_log_file: where it is written, like `log_file`; None = where the log goes.
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
    ovms_metrics: bool = False
    otlp_traces_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """What one request may ask for, beyond the limits of the model and of the contracts.

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
        per_request_metrics: answers of one sample tell how long it took.
    """

    max_prompts: int = 1024
    max_choices: int = 1024
    max_stop_strings: int = 256
    max_stop_length: int = 1024
    max_logprobs: int = 20
    max_total_logprobs: int = 5_000_000
    max_grammar_length: int = 256 * 1024
    max_pending_chars: int = 1024 * 1024
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
        max_image_memory: bytes of all decoded images of the requests in progress.
    """

    allowed_media_domains: str | None = None
    allowed_local_media_path: Path | None = None
    allow_media_redirects: bool = False
    allow_private_media: bool = False
    media_timeout: float = 10.0
    max_images: int = 16
    max_image_bytes: int = 20 * 1024 * 1024
    max_image_pixels: int = 32 * 1024 * 1024
    max_image_memory: int = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What is kept of responses and conversations beyond their requests.

    Attributes:
        enable_store: keep anything at all.
        state_dir: directory; ":memory:" = until the process ends, None = systemd's or the user's.
        state_url: of a PostgreSQL database that other servers may share, in place of a directory.
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


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """What is kept on disk of prompts that were computed.

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
class ChatConfig:
    """How messages become prompts, and answers messages.

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


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the operator of an OVMS graph may limit for each model.

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
