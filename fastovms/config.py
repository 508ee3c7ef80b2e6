"""Configuration of the core: one frozen dataclass per section. Every setting is declared once, here
or in `server_config`: its default, its type, and its help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastovms.setting import (
    DIR,
    JSON,
    PICTURE_SIZE,
    ROOT_PATH,
    SIZE,
    SOME_TIME,
    SWITCH,
    TEXT,
    TIME,
    Kind,
    SettingFlag,
    adapters,
    choice,
    count,
    counts,
    integers,
    messages,
    mode,
    model_length,
    networks,
    number,
    setting,
    show_mode,
    template,
    text,
    texts,
)
from fastovms.text.reasoning import REASONING_FORMAT_ALIASES, REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMAT_ALIASES, TOOL_FORMATS

CACHE_PRECISIONS: Final = ("u4", "u8", "f16", "bf16", "f32")

DEFAULT_TOKEN_BUDGET: Final = 256
"""The maximum number of tokens of one step, if tuning has not measured a better one."""

OWN_HEAD: Final = Path()
"""The `draft_model` that is the head of the model's own, as OVMS names it."""

_TOOL_PARSERS: Final = Kind(
    "NAME", choice("auto", "none", *TOOL_FORMATS, aliases=TOOL_FORMAT_ALIASES)
)
_REASONING_PARSERS: Final = Kind(
    "NAME", choice("auto", "none", *REASONING_FORMATS, aliases=REASONING_FORMAT_ALIASES)
)
_TASKS: Final = Kind(
    "TASK",
    choice(
        "auto",
        "text_generation",
        "embeddings",
        "rerank",
        "speech2text",
        "image_generation",
        "text2speech",
        aliases={
            "generate": "text_generation",
            "speech": "text2speech",
            "embed": "embeddings",
            "embedding": "embeddings",
            "score": "rerank",
            "transcription": "speech2text",
        },
    ),
)
"""The values of --task, including vLLM's names."""

MAX_FORM_OVERHEAD: Final = 64 * 1024
"""The maximum size of a form in addition to its file, in bytes."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Addresses to listen on, and limits for clients. Sizes in bytes, times in seconds.

    Attributes:
        host: "" = every interface, None = only the addresses of `listen`.
        max_body: see also `largest_body`.
        max_connections: includes TLS handshakes; at this limit, the oldest handshake is cancelled.
        keep_alive_timeout: longer than that of the usual client pools and proxies (60 s), so that
            the client closes first.
    """

    # fmt: off
    host: str | None = setting("127.0.0.1", texts("ADDRESS"),
        "address to listen on: 0.0.0.0 = every IPv4 address, :: = every IPv6 address; may be "
        "given several times", group="network", common=True, repeats=True)
    port: int = setting(8000, integers(0, 65535, metavar="PORT"),
        "port of every --host; 0 = any free port", common=True)
    listen: tuple[str, ...] = setting((), texts("ADDRESS"),
        "further address: host:port, [ipv6]:port or unix:/path; may be given several times. "
        "Without --host and --port the server listens on these addresses only",
        SettingFlag(Kind("PATH", lambda value: f"unix:{text(value)}"),
            "Unix socket to listen on, the same as --listen unix:PATH", "--uds", repeats=True),
        repeats=True)
    unix_mode: int = setting(0o660, Kind("OCTAL", mode, show_mode), "permissions of Unix sockets",
        flag="--uds-mode")
    root_path: str = setting("", ROOT_PATH,
        "path prefix that a proxy in front does not remove, such as /v2/abc/openai; paths without "
        "the prefix are served too")
    forwarded_allow_ips: str | None = setting(None, Kind("ADDRESSES", networks),
        "addresses and networks of the proxies in front, separated by commas; * = any. Their "
        "X-Forwarded-For header gives the address of the client (default: no proxy is trusted)")
    reuse_port: bool = setting(False, SWITCH,
        "let other processes listen on the same ports (SO_REUSEPORT)")
    backlog: int = setting(2048, integers(1, 65535),
        "number of new connections that the kernel queues, at most net.core.somaxconn")
    tls_certificate: str | None = setting(None, texts("FILE"),
        "PEM file with the certificate chain, to serve HTTPS; read again on SIGHUP",
        flag="--ssl-certfile")
    tls_key: str | None = setting(None, texts("FILE"),
        "PEM file with the private key of --ssl-certfile (default: the key is in that file)",
        flag="--ssl-keyfile")
    max_request_line: int = setting(16 * 1024, SIZE,
        "longest request line of HTTP; longer ones get 414", group="limits")
    max_head: int = setting(64 * 1024, SIZE,
        "largest request line and headers together; larger ones get 431")
    max_header_fields: int = setting(128, integers(1),
        "largest number of headers of a request; more get 431")
    max_body: int = setting(64 * 1024 * 1024, SIZE,
        "largest body of a request; larger ones get 413")
    max_buffered_bodies: int = setting(1024 * 1024 * 1024, SIZE,
        "memory for all request bodies together, of which one client gets at most half; further "
        "requests get 503")
    max_pipelined: int = setting(16, integers(1),
        "number of pipelined requests that wait on one connection")
    max_connections: int = setting(16 * 1024, counts(1),
        "number of open connections, lowered to what the limit of open files allows; further "
        "connections get 503")
    max_write_buffer: int = setting(4 * 1024 * 1024, SIZE,
        "unread bytes of a stream after which its client is disconnected")
    head_timeout: float = setting(10.0, SOME_TIME,
        "how long all headers of a request may take to arrive")
    body_timeout: float = setting(60.0, SOME_TIME,
        "how long the body of a request may take to arrive, in addition to its size divided by "
        "--min-body-rate")
    min_body_rate: float = setting(1024 * 1024, SIZE,
        "lowest rate, in bytes a second, at which a large request body may arrive")
    keep_alive_timeout: float = setting(75.0, SOME_TIME,
        "how long a connection may be idle between two requests")
    write_timeout: float = setting(60.0, SOME_TIME,
        "disconnect a client that reads nothing of its response for this time")
    linger_timeout: float = setting(2.0, TIME,
        "how long the server reads and discards data that a client sends after its request was "
        "refused")
    close_timeout: float = setting(5.0, SOME_TIME,
        "disconnect a client that reads nothing of the last response of its connection for this "
        "time")
    ping_interval: float = setting(15.0, TIME,
        "silence in a stream after which a comment is sent to keep the connection alive, and time "
        "between the pings of a WebSocket connection; 0 = never")
    websocket_idle_timeout: float = setting(900.0, SOME_TIME,
        "close a WebSocket connection without messages and running responses after this time")
    websocket_max_age: float = setting(3600.0, SOME_TIME,
        "close a WebSocket connection after this time, once no response runs")
    drain_timeout: float = setting(30.0, TIME,
        "at shutdown, how long running requests may take to finish", group="operation",
        after="--drain-delay")
    drain_grace: float = setting(0.5, TIME,
        "at shutdown, how long an idle connection may still send a request",
        after="--drain-timeout")
    # fmt: on

    @property
    def largest_body(self) -> int:
        """The size in bytes beyond which any body is refused (413)."""
        return min(self.max_body, self.max_buffered_bodies // 2)


KEY_VARIABLES: Final = ("API_KEY", "VLLM_API_KEY")
"""Environment variables that may hold the API key."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of the engine.

    Attributes:
        enable_prompt_lookup: None = only with the paged backend.
        cache_dir: None = the user's cache directory, "" = no cache.
        enable_lora: implied by `lora_modules`.
    """

    # fmt: off
    device: str = setting("AUTO", texts("DEVICE"),
        "OpenVINO device that runs the models: CPU, GPU, GPU.n, NPU, or AUTO = a discrete GPU, "
        "otherwise an integrated one, otherwise the CPU", group="batching and memory", common=True)
    backend: str = setting("auto", Kind("NAME", choice("auto", "paged", "genai")),
        "engine that runs the model: paged = this server's, genai = the pipeline of "
        "openvino_genai, auto = paged if it supports the model, otherwise genai")
    plugin_config: Mapping[str, object] = setting({}, JSON,
        "OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
        SettingFlag(integers(1),
            "number of CPU threads that compute (default: one for each core that the process may "
            "use)", "--threads", member="INFERENCE_NUM_THREADS"),
        SettingFlag(Kind("PRECISION", choice(*CACHE_PRECISIONS)),
            "precision of the KV cache: u4, u8, f16, bf16 or f32 (default: the fastest that the "
            "device supports, except u4, which changes the generated text)",
            "--kv-cache-precision", member="KV_CACHE_PRECISION",
            after="--override-generation-config"))
    cache_size: float = setting(0.0, Kind("GiB", number("GiB", high=1_000_000)),
        "memory for the KV cache in GiB, allocated as it fills; 0 = half of the memory that is "
        "free at start", common=True)
    max_model_len: int | None = setting(None, Kind("TOKENS", model_length),
        "longest context that is offered, prompt and output together, such as 8192, 8K (8192) or "
        "8k (8000); auto = "
        "the model's (default: auto)", common=True)
    precision: str = setting("auto", Kind("PRECISION", choice("auto", "exact")),
        "precision of the computation: auto = the fastest; exact = f32, and a request's text does "
        "not depend on the other requests that run")
    max_num_seqs: int = setting(256, Kind("N", count(1)),
        "number of sequences that are generated at the same time; more wait in a queue",
        common=True)
    max_num_batched_tokens: int | None = setting(None, Kind("TOKENS", count(1)),
        "number of tokens computed in one step, over all sequences (default: the value measured "
        f"on this machine, or {DEFAULT_TOKEN_BUDGET})")
    tune: bool = setting(True, SWITCH,
        "measure, while the server is idle, which precisions and which --max-num-batched-tokens "
        "are the fastest on this machine, and use the result at the next start")
    decode_kernels: str = setting("auto", Kind("WHEN", choice("auto", "off")),
        "use this server's own compute kernels: auto = for the steps in which a test finds them "
        "correct and faster than OpenVINO's, off = never")
    memory_profile: str = setting("twice", Kind("WEIGHTS", choice("once", "twice")),
        "how often the weights are in memory where this server's kernels compute whole steps: "
        "twice = for OpenVINO, too, which may compute prompts faster; once = for the kernels "
        "alone, which compute prompts, too; hybrid models have them twice")
    max_num_queued_requests: int = setting(1024, Kind("N", count(1)),
        "number of sequences of one key, or of one address without keys, that may wait in the "
        "queue; further requests get 429. Other clients together get as many places again",
        flag="--max-queued-requests")
    enable_prefix_caching: bool = setting(True, SWITCH,
        "reuse the KV cache of prompts that begin with the same tokens")
    enable_prompt_lookup: bool | None = setting(None, SWITCH,
        "speculative decoding with drafts from earlier text (default: yes where it is faster; no "
        "with --backend genai)")
    suffix_index_tokens: int = setting(512 * 1024, counts(0, 64 * 1024 * 1024),
        "number of recent prompt and output tokens, per API key and cache_salt, that prompt "
        "lookup searches for drafts; 0 = only the sequence's own text")
    draft_model: Path | None = setting(None, DIR,
        "directory of a smaller model with the same vocabulary, or of an EAGLE-3 or MTP head, "
        "which drafts tokens for speculative decoding where that is faster; . = the model's own "
        "MTP head (default: none)")
    cache_dir: str | None = setting(None, Kind("DIR", str),
        "directory for compiled and converted models, which make the next start faster; \"\" = "
        "none (default: fastovms in XDG_CACHE_HOME or ~/.cache)")
    enable_lora: bool = setting(False, SWITCH,
        "serve LoRA adapters, which an operator may load and unload while the server runs",
        group="adapters (LoRA)")
    lora_modules: Mapping[str, Path] = setting({}, Kind("NAME=PATH", adapters),
        "LoRA adapters in PEFT's format to load at start, each with the model name that clients "
        "use and its directory; several are separated by spaces or commas, and may be JSON as in "
        "vLLM (default: none)", merges=True)
    max_loras: int = setting(8, integers(1), "number of LoRA adapters in memory at the same time")
    max_lora_rank: int = setting(64, integers(1, 512), "highest rank of a LoRA adapter")
    # fmt: on

    @property
    def serves_adapters(self) -> bool:
        """Whether LoRA adapters are given or may be loaded."""
        return self.enable_lora or bool(self.lora_modules)

    @property
    def why_cpu(self) -> str:
        """Why only the CPU can run the model; "" = other devices can, too."""
        return "adapters are served on the CPU only" if self.serves_adapters else ""

    @property
    def token_budget(self) -> int:
        """`max_num_batched_tokens`, or the default if it is not set."""
        return self.max_num_batched_tokens or DEFAULT_TOKEN_BUDGET


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The settings of embedding models and rerankers."""

    # fmt: off
    task: str = setting("auto", _TASKS,
        "task of the model: text_generation, embeddings, rerank, speech2text, text2speech, "
        "image_generation, or "
        "auto = found from the model's files. Set rerank for rerankers that are decoders: their "
        "files look like those of text generation", group="embeddings and rerank")
    pooling: str = setting("auto", Kind("POOLING", choice("auto", "cls", "mean", "last")),
        "how an embedding is computed from the hidden states of the tokens: cls, mean, last, or "
        "auto = as 1_Pooling/config.json states, otherwise last for decoders and cls for others")
    normalize: bool = setting(True, SWITCH, "normalize embeddings to length 1")
    truncate: bool = setting(False, SWITCH,
        "truncate texts that are too long for an embedding model or reranker; without it they are "
        "refused")
    query_instruction: str = setting("", TEXT,
        "text that is put before each query of embeddings and rerank (default: none)")
    document_instruction: str = setting("", TEXT,
        "text that is put before each document and each text to embed (default: none)")
    max_inputs: int = setting(2048, Kind("N", count(1)),
        "largest number of texts in one request for embeddings or scores")
    max_allowed_chunks: int = setting(10_000, counts(1),
        "largest number of documents in one rerank request; a document that is split to fit the "
        "model counts once per part")
    max_batch_tokens: int = setting(1024, Kind("TOKENS", count(1)),
        "number of tokens that an embedding model or reranker computes together")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The settings of image generation models. Sizes are (width, height) in pixels."""

    # fmt: off
    max_resolution: tuple[int, int] = setting((1024, 1024), PICTURE_SIZE,
        "largest width and height of a generated image", group="image generation")
    default_resolution: tuple[int, int] | None = setting(None, PICTURE_SIZE,
        "size of images whose request states none (default: the model's own size, or that of the "
        "image to edit)")
    resolution: tuple[int, int] | None = setting(None, PICTURE_SIZE,
        "only size of generated images: the model is compiled for it, as NPUs need (default: any "
        "size)")
    max_num_images_per_prompt: int = setting(10, integers(1),
        "largest number of images in one request")
    default_num_inference_steps: int | None = setting(None, integers(1),
        "number of steps of images whose request states none (default: the model's own number)")
    max_num_inference_steps: int = setting(100, integers(1),
        "largest number of steps of one image")
    # fmt: on


@dataclass(frozen=True, slots=True)
class SpeakingConfig:
    """The settings of text-to-speech models, which an OVMS graph may have.

    Attributes:
        voices: files of voices by name, in addition to the model's.
        min_speed, max_speed: the allowed `speed` of requests; 1 is the model's own speed.
    """

    voices: Mapping[str, Path] = field(default_factory=dict)
    min_speed: float = 0.25
    max_speed: float = 4.0


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """The limits on one request, in addition to those of the model and of the API dialects.

    Attributes:
        max_prompts: prompts in one completions request.
        max_choices: samples of all its prompts together.
        max_stop_strings: stop strings, if the dialect sets no lower limit.
        max_stop_length: characters of one stop string.
        max_total_logprobs: log probabilities in the whole answer, each of which takes about a
            hundred bytes of memory.
        max_grammar_length: characters of a schema, regular expression or other grammar.
    """

    # fmt: off
    max_audio_size: int = setting(256 * 1024 * 1024, SIZE,
        "largest audio file to transcribe; a larger one gets 413", group="speech")
    max_audio_seconds: int = setting(2 * 60 * 60, integers(1, metavar="SECONDS"),
        "longest audio to transcribe, in seconds")
    max_logprobs: int = setting(20, integers(-1),
        "number of log probabilities per token that a request may ask for; -1 = the whole "
        "vocabulary", group="limits")
    max_pending_chars: int = setting(1024 * 1024, counts(1),
        "characters of generated text that wait for a client that does not read, after which the "
        "client is disconnected", after="--max-write-buffer")
    per_request_metrics: bool = setting(False, SWITCH,
        "add the durations of a request to its response, in metrics next to usage, as vLLM does",
        flag="--enable-per-request-metrics", group="operation", after="--access-log-skip")
    any_model_name: bool = setting(False, SWITCH,
        "answer requests for unknown models with the only model of the server, as llama.cpp's "
        "server does; without it, or with several models, they get 404",
        after="--otlp-traces-endpoint")
    max_background_tokens: int = setting(8192, counts(0),
        "output tokens of a background response whose request sets no max_output_tokens; 0 = as "
        "many as fit the context", group="stored responses", after="--max-background-responses")
    max_prompts: int = 1024
    max_choices: int = 1024
    max_stop_strings: int = 256
    max_stop_length: int = 1024
    max_total_logprobs: int = 5_000_000
    max_grammar_length: int = 256 * 1024
    # fmt: on


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """The settings of chat templates, reasoning and tool calls."""

    # fmt: off
    chat_template: Path | str | None = setting(None, Kind("FILE", template),
        "file with a Jinja chat template that replaces the model's, or the text of the template",
        group="chat")
    chat_template_content_format: str = setting(
        "auto", Kind("FORMAT", choice("auto", "string", "openai")),
        "format in which chat templates get the content of messages: string, openai = a list of "
        "parts, auto = as the template expects it")
    system_prompt: str = setting("", TEXT,
        "system message of chats that begin with none (default: none)")
    example_messages: Sequence[Mapping[str, str]] = setting((), Kind("JSON", messages),
        "messages that precede each chat, after its system message, as a JSON list of objects with "
        "role and content (default: none)")
    default_chat_template_kwargs: Mapping[str, object] = setting({}, JSON,
        "variables of the chat template for requests that do not set them, such as "
        "'{\"enable_thinking\": false}'")
    trust_request_chat_template: bool = setting(False, SWITCH,
        "allow requests to contain a chat template of their own")
    tool_parser: str = setting("auto", _TOOL_PARSERS,
        "format of the model's tool calls: auto = found from the chat template, none = not "
        f"parsed; or one of {', '.join(TOOL_FORMATS)}")
    reasoning_parser: str = setting("auto", _REASONING_PARSERS,
        "format of the model's reasoning: auto = found from the chat template, none = not "
        f"parsed; or one of {', '.join(REASONING_FORMATS)}")
    reasoning_budget: int = setting(-1, integers(-1),
        "number of reasoning tokens after which the server ends the reasoning, unless the request "
        "sets a limit; 0 = no reasoning, -1 = no limit")
    reasoning_budget_message: str = setting("", TEXT,
        "text that is inserted before reasoning is ended because its budget is spent (default: "
        "none)")
    response_role: str = setting("assistant", texts("ROLE"), "role of generated chat messages")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits that an OVMS graph may set for each model.

    Attributes:
        max_tokens_limit: new tokens per sample; also the default of requests.
        best_of_limit: upper limit of candidates per prompt, exclusive.
    """

    max_tokens_limit: int | None = None
    best_of_limit: int = 20
