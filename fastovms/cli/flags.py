"""The table of flags."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Final

from fastovms.cli.flag import Flag, settings_of
from fastovms.config import (
    API,
    BATCHES,
    CHAT,
    DEFAULT_TOKEN_BUDGET,
    ENCODER,
    ENGINE,
    FILES,
    HTTP,
    MEDIA,
    PREFIX_CACHE,
    REPOSITORY,
    RESIDENCY,
    SECURITY,
    SERVICE,
    STATE,
    UPLOADS,
    HttpConfig,
    Settings,
)
from fastovms.engine.model.cache_precision import CACHE_PRECISIONS
from fastovms.setting import (
    adapters,
    choice,
    count,
    duration,
    http_url,
    integer,
    json_object,
    mode,
    model_length,
    names,
    networks,
    number,
    path,
    postgres_url,
    root_path,
    show_count,
    show_duration,
    show_mode,
    show_size,
    size,
    size_or_none,
    some_duration,
    template,
    text,
)
from fastovms.text.reasoning import REASONING_FORMAT_ALIASES, REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMAT_ALIASES, TOOL_FORMATS

FILE_FLAGS: Final = (
    Flag("--max-file-size", UPLOADS.max_file_size, "SIZE", size,
         "largest file that a client may upload; larger uploads get 413", show_size),
    Flag("--max-files-size", UPLOADS.max_files_size, "SIZE", size,
         "total size of the files of one API key, or of one client address without keys; all "
         "other keys together may use a quarter more", show_size),
    Flag("--max-files", UPLOADS.max_files, "N", count(1),
         "number of files of one API key, or of one client address without keys; all other keys "
         "together may have as many again", show_count),
    Flag("--max-batches", BATCHES.max_unfinished, "N", count(1),
         "number of unfinished batches of one API key, or of one client address without keys; all "
         "other keys together may have as many again"),
)  # fmt: skip

BATCH_FLAGS: Final = (
    Flag("--max-batch-lines", BATCHES.max_lines, "N", count(1),
         "largest number of requests in one batch", show_count),
    Flag("--batch-concurrency", BATCHES.num_at_once, "N", integer(1),
         "requests of batches that run at the same time while no other request runs"),
    Flag("--batch-concurrency-beside", BATCHES.num_beside_others, "N", integer(1),
         "requests of batches that run at the same time while other requests run"),
)  # fmt: skip


_MAX_CACHE_GB: Final = 1_000_000
"""A limit above the memory of any machine."""

_MAX_INDEX_TOKENS: Final = 64 * 1024 * 1024
"""They take 3 GB."""

_TASK_ALIASES: Final = {
    "generate": "text_generation",
    "embed": "embeddings",
    "embedding": "embeddings",
    "score": "rerank",
    "transcription": "speech2text",
}
"""vLLM's names for tasks."""

REPOSITORY_FLAGS: Final = (
    Flag("--model-repository-path", REPOSITORY.path, "DIR", path,
         "directory that downloaded models are kept in, as ORG/NAME (default: fastovms/models in "
         "the user's cache directory)", shows_default=False),
    Flag("--revision", REPOSITORY.revision, "REVISION", text,
         "branch, tag or commit of the model to download; a stored copy of another revision is "
         "replaced only with --overwrite-models (default: the stored copy, or the main branch)",
         shows_default=False),
    Flag("--overwrite-models", REPOSITORY.overwrite, "", None,
         "download models again even if they are stored"),
)  # fmt: skip

RESIDENCY_FLAGS: Final = (
    Flag("--max-loaded-models", RESIDENCY.max_loaded_models, "N", integer(1),
         "number of models in memory at the same time: a model is loaded on its first request, and "
         "the least recently used idle model is unloaded for it (default: all models are loaded "
         "at start)", shows_default=False),
    Flag("--model-memory", RESIDENCY.model_memory, "SIZE", size,
         "memory for the weights and KV caches of all models together: a model is loaded on its "
         "first request, and idle models are unloaded for it (default: no limit)",
         shows_default=False),
    Flag("--idle-unload", RESIDENCY.idle_unload, "TIME", duration,
         "unload a model that was not used for this time, such as 90s, 15m or 2h; 0 = never",
         show_duration),
    Flag("--model-wait-timeout", RESIDENCY.wait_timeout, "TIME", some_duration,
         "how long a request waits for its model to be loaded; after that it gets 503",
         show_duration),
    Flag("--file-system-poll-wait-seconds", RESIDENCY.poll_interval, "TIME", duration,
         "how often the file of --config-path is checked for changes; 0 = never", show_duration),
)  # fmt: skip

ENGINE_FLAGS: Final = (
    Flag("--device", ENGINE.device, "DEVICE", text,
         "OpenVINO device that runs the models: CPU, GPU, GPU.n, NPU, or AUTO = a discrete GPU, "
         "otherwise an integrated one, otherwise the CPU", common=True),
    Flag("--backend", ENGINE.backend, "NAME", choice("auto", "paged", "genai"),
         "engine that runs the model: paged = this server's, genai = the pipeline of "
         "openvino_genai, auto = paged if it supports the model, otherwise genai"),
    Flag("--plugin-config", ENGINE.plugin_config, "JSON", json_object,
         "OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
         shows_default=False),
    Flag("--threads", ENGINE.plugin_config, "N", integer(1),
         "number of CPU threads that compute (default: one for each core that the process may use)",
         shows_default=False, member="INFERENCE_NUM_THREADS"),
    Flag("--cache-size", ENGINE.cache_size, "GB", number("GB", high=_MAX_CACHE_GB),
         "memory for the KV cache in GB, allocated as it fills; 0 = half of the memory that is "
         "free at start", common=True),
    Flag("--max-model-len", ENGINE.max_model_len, "TOKENS", model_length,
         "longest context that is offered, prompt and output together, such as 8192 or 8k; auto = "
         "the model's (default: auto)", shows_default=False, common=True),
    Flag("--generation-config", FILES.generation_config, "SOURCE", path,
         "source of the default sampling parameters: auto = the model's generation_config.json, "
         "vllm = none, or the path of another file or of its directory (default: auto)",
         shows_default=False),
    Flag("--override-generation-config", FILES.override_generation_config, "JSON", json_object,
         "default sampling parameters that take precedence over generation_config.json, such as "
         "'{\"temperature\": 0.5, \"max_new_tokens\": 512}'", shows_default=False),
    Flag("--kv-cache-precision", ENGINE.plugin_config, "PRECISION",
         choice(*CACHE_PRECISIONS),
         "precision of the KV cache: u4, u8, f16, bf16 or f32 (default: the fastest that the "
         "device supports, except u4, which changes the generated text)",
         shows_default=False, member="KV_CACHE_PRECISION"),
    Flag("--precision", ENGINE.precision, "PRECISION", choice("auto", "exact"),
         "precision of the computation: auto = the fastest; exact = f32, and a request's text "
         "does not depend on the other requests that run"),
    Flag("--max-num-seqs", ENGINE.max_num_seqs, "N", count(1),
         "number of sequences that are generated at the same time; more wait in a queue",
         common=True),
    Flag("--max-num-batched-tokens", ENGINE.max_num_batched_tokens, "TOKENS", count(1),
         "number of tokens computed in one step, over all sequences (default: the value measured "
         f"on this machine, or {DEFAULT_TOKEN_BUDGET})", shows_default=False),
    Flag("--tune", ENGINE.tune, "", None,
         "measure, while the server is idle, which precisions and which --max-num-batched-tokens "
         "are the fastest on this machine, and use the result at the next start"),
    Flag("--decode-kernels", ENGINE.decode_kernels, "WHEN", choice("auto", "off"),
         "use this server's own compute kernels for steps of up to 8 tokens: auto = if a test "
         "after the start finds them correct and faster than OpenVINO's, off = never"),
    Flag("--max-queued-requests", ENGINE.max_num_queued_requests, "N", count(1),
         "number of sequences of one key, or of one address without keys, that may wait in the "
         "queue; further requests get 429. Other clients together get as many places again"),
    Flag("--enable-prefix-caching", ENGINE.enable_prefix_caching, "", None,
         "reuse the KV cache of prompts that begin with the same tokens"),
    Flag("--enable-prompt-lookup", ENGINE.enable_prompt_lookup, "", None,
         "speculative decoding with drafts from earlier text (default: yes where it is faster; no "
         "with --backend genai)", shows_default=False),
    Flag("--suffix-index-tokens", ENGINE.suffix_index_tokens, "N", count(0, _MAX_INDEX_TOKENS),
         "number of recent prompt and output tokens, per API key and cache_salt, that prompt "
         "lookup searches for drafts; 0 = only the sequence's own text", show_count),
    Flag("--draft-model", ENGINE.draft_model, "DIR", path,
         "directory of a smaller model with the same vocabulary, or of an EAGLE-3 head, which "
         "drafts tokens for speculative decoding where that is faster (default: none)",
         shows_default=False),
    Flag("--cache-dir", ENGINE.cache_dir, "DIR", str,
         "directory for compiled and converted models, which make the next start faster; \"\" = "
         "none (default: fastovms in XDG_CACHE_HOME or ~/.cache)", shows_default=False),
)  # fmt: skip

LORA_FLAGS: Final = (
    Flag("--enable-lora", ENGINE.enable_lora, "", None,
         "serve LoRA adapters, which an operator may load and unload while the server runs"),
    Flag("--lora-modules", ENGINE.lora_modules, "NAME=PATH", adapters,
         "LoRA adapters in PEFT's form to load at start, each with the model name that clients use "
         "and its directory; several are separated by spaces or commas, and may be JSON as in vLLM "
         "(default: none)", shows_default=False, merges=True),
    Flag("--max-loras", ENGINE.max_loras, "N", integer(1),
         "number of LoRA adapters in memory at the same time"),
    Flag("--max-lora-rank", ENGINE.max_lora_rank, "N", integer(1, 512),
         "highest rank of a LoRA adapter"),
)  # fmt: skip

CHAT_FLAGS: Final = (
    Flag("--chat-template", CHAT.chat_template, "FILE", template,
         "file with a Jinja chat template that replaces the model's, or the text of the template",
         shows_default=False),
    Flag("--chat-template-content-format", CHAT.chat_template_content_format, "FORM",
         choice("auto", "string", "openai"),
         "form in which chat templates get the content of messages: string, openai = a list of "
         "parts, auto = as the template expects it"),
    Flag("--default-chat-template-kwargs", CHAT.default_chat_template_kwargs, "JSON",
         json_object,
         "variables of the chat template for requests that do not set them, such as "
         "'{\"enable_thinking\": false}'", shows_default=False),
    Flag("--trust-request-chat-template", CHAT.trust_request_chat_template, "", None,
         "allow requests to contain a chat template of their own"),
    Flag("--tool-parser", CHAT.tool_parser, "NAME",
         choice("auto", "none", *TOOL_FORMATS, aliases=TOOL_FORMAT_ALIASES),
         "format of the model's tool calls: auto = found from the chat template, none = not "
         f"parsed, or one of {', '.join(TOOL_FORMATS)}"),
    Flag("--reasoning-parser", CHAT.reasoning_parser, "NAME",
         choice("auto", "none", *REASONING_FORMATS, aliases=REASONING_FORMAT_ALIASES),
         "format of the model's reasoning: auto = found from the chat template, none = not "
         f"parsed, or one of {', '.join(REASONING_FORMATS)}"),
    Flag("--reasoning-budget", CHAT.reasoning_budget, "N", integer(-1),
         "number of reasoning tokens after which the server ends the reasoning, unless the request "
         "sets a limit; 0 = no reasoning, -1 = no limit"),
    Flag("--reasoning-budget-message", CHAT.reasoning_budget_message, "TEXT", str,
         "text that is inserted before reasoning is ended because its budget is spent (default: "
         "none)", shows_default=False),
    Flag("--response-role", CHAT.response_role, "ROLE", text,
         "role of generated chat messages"),
)  # fmt: skip

ENCODER_FLAGS: Final = (
    Flag("--task", ENCODER.task, "TASK",
         choice("auto", "text_generation", "embeddings", "rerank", "speech2text",
                aliases=_TASK_ALIASES),
         "task of the model: text_generation, embeddings, rerank, speech2text, or auto = found "
         "from the model's files. Set rerank for rerankers that are decoders: their files look "
         "like those of text generation"),
    Flag("--pooling", ENCODER.pooling, "POOLING", choice("auto", "cls", "mean", "last"),
         "how an embedding is computed from the hidden states of the tokens: cls, mean, last, or "
         "auto = as 1_Pooling/config.json states, otherwise last for decoders and cls for others"),
    Flag("--normalize", ENCODER.normalize, "", None, "normalize embeddings to length 1"),
    Flag("--truncate", ENCODER.truncate, "", None,
         "truncate texts that are too long for an embedding model or reranker; without it they "
         "are refused"),
    Flag("--query-instruction", ENCODER.query_instruction, "TEXT", str,
         "text that is put before each query of embeddings and rerank (default: none)",
         shows_default=False),
    Flag("--document-instruction", ENCODER.document_instruction, "TEXT", str,
         "text that is put before each document and each text to embed (default: none)",
         shows_default=False),
    Flag("--max-inputs", ENCODER.max_inputs, "N", count(1),
         "largest number of texts in one request for embeddings or scores"),
    Flag("--max-allowed-chunks", ENCODER.max_allowed_chunks, "N", count(1),
         "largest number of documents in one rerank request; a document that is split to fit the "
         "model counts once per part", show_count),
    Flag("--max-batch-tokens", ENCODER.max_batch_tokens, "TOKENS", count(1),
         "number of tokens that an embedding model or reranker computes together"),
)  # fmt: skip

SPEECH_FLAGS: Final = (
    Flag("--max-audio-size", API.max_audio_size, "SIZE", size,
         "largest audio file to transcribe; a larger one gets 413", show_size),
    Flag("--max-audio-seconds", API.max_audio_seconds, "SECONDS", integer(1),
         "longest audio to transcribe, in seconds"),
)  # fmt: skip

IMAGES_FLAGS: Final = (
    Flag("--allowed-media-domains", MEDIA.allowed_media_domains, "DOMAINS", text,
         "hosts that images may be fetched from, separated by commas; all = any (default: none)",
         shows_default=False),
    Flag("--allowed-local-media-path", MEDIA.allowed_local_media_path, "DIR", path,
         "directory below which images may be read from files; a file with further hard links is "
         "refused (default: none)", shows_default=False),
    Flag("--allow-media-redirects", MEDIA.allow_media_redirects, "", None,
         "follow redirects when images are fetched, to allowed hosts only"),
    Flag("--allow-private-media", MEDIA.allow_private_media, "", None,
         "fetch images from addresses that are not public too, such as those of the local network"),
    Flag("--media-timeout", MEDIA.media_timeout, "TIME", some_duration,
         "how long fetching an image may take", show_duration),
    Flag("--max-images", MEDIA.max_images, "N", integer(1),
         "largest number of images in one request"),
    Flag("--max-image-bytes", MEDIA.max_image_bytes, "SIZE", size,
         "largest encoded size of one image", show_size),
    Flag("--max-image-pixels", MEDIA.max_image_pixels, "N", count(1),
         "largest image in pixels, width times height", show_count),
    Flag("--shrink-images-to", MEDIA.shrink_images_to, "N", count(1),
         "number of pixels to which a vision model's larger images are shrunk; a lower value in "
         "preprocessor_config.json takes precedence, and all images of a request together get at "
         "most twice as many", show_count),
    Flag("--max-image-memory", MEDIA.max_image_memory, "SIZE", size,
         "memory of all images that are decoded or wait for the model; further requests get 429",
         show_size),
    Flag("--max-document-bytes", MEDIA.max_document_bytes, "SIZE", size,
         "largest encoded size of one document", show_size),
    Flag("--max-document-pages", MEDIA.max_document_pages, "N", integer(1),
         "largest number of pages of one PDF"),
)  # fmt: skip


_LOG_LEVELS: Final = ("trace", "debug", "info", "warning", "error")

NETWORK_FLAGS: Final = (
    Flag("--host", HTTP.host, "ADDRESS", text,
         "address to listen on: 0.0.0.0 = every IPv4 address, :: = every IPv6 address; may be "
         "given several times", repeats=True, common=True),
    Flag("--port", HTTP.port, "PORT", integer(0, 65535),
         "port of every --host; 0 = any free port", common=True),
    Flag("--listen", HTTP.listen, "ADDRESS", text,
         "further address: host:port, [ipv6]:port or unix:/path; may be given several times. "
         "Without --host and --port the server listens on these addresses only",
         shows_default=False, repeats=True),
    Flag("--uds", HTTP.listen, "PATH", lambda value: f"unix:{text(value)}",
         "Unix socket to listen on, the same as --listen unix:PATH", shows_default=False,
         repeats=True),
    Flag("--uds-mode", HTTP.unix_mode, "OCTAL", mode, "permissions of Unix sockets", show_mode),
    Flag("--root-path", HTTP.root_path, "PATH", root_path,
         "path prefix that a proxy in front does not remove, such as /v2/abc/openai; paths without "
         "the prefix are served too", shows_default=False),
    Flag("--forwarded-allow-ips", HTTP.forwarded_allow_ips, "ADDRESSES", networks,
         "addresses and networks of the proxies in front, separated by commas; * = any. Their "
         "X-Forwarded-For header gives the address of the client (default: no proxy is trusted)",
         shows_default=False),
    Flag("--reuse-port", HTTP.reuse_port, "", None,
         "let other processes listen on the same ports (SO_REUSEPORT)"),
    Flag("--backlog", HTTP.backlog, "N", integer(1, 65535),
         "number of new connections that the kernel queues, at most net.core.somaxconn"),
    Flag("--ssl-certfile", HTTP.tls_certificate, "FILE", text,
         "PEM file with the certificate chain, to serve HTTPS; read again on SIGHUP"),
    Flag("--ssl-keyfile", HTTP.tls_key, "FILE", text,
         "PEM file with the private key of --ssl-certfile (default: the key is in that file)",
         shows_default=False),
)  # fmt: skip

ACCESS_FLAGS: Final = (
    Flag("--api-key-file", SECURITY.api_key_file, "FILE", path,
         "file with the API keys of clients, one a line; read again on SIGHUP (default: the key in "
         "the environment variable API_KEY or VLLM_API_KEY; without one, no key is needed)",
         shows_default=False, common=True),
    Flag("--api-key", SECURITY.api_keys, "KEY", text,
         "an API key of clients; may be given several times. Other users of the machine can see "
         "it: prefer --api-key-file", shows_default=False, repeats=True),
    Flag("--allowed-origins", SECURITY.allowed_origins, "ORIGINS", names,
         "web origins whose pages may send requests (CORS), separated by commas; * = any, others "
         "get 403 (default: * if a key is needed, otherwise only the server's own pages)",
         shows_default=False),
    Flag("--allowed-methods", SECURITY.allowed_methods, "METHODS", names,
         "HTTP methods that pages of --allowed-origins may use, separated by commas; * = any"),
    Flag("--allowed-headers", SECURITY.allowed_headers, "HEADERS", names,
         "request headers that pages of --allowed-origins may set, separated by commas; * = any"),
    Flag("--allow-credentials", SECURITY.allow_credentials, "", None,
         "let pages of --allowed-origins send cookies; needs origins that are listed by name"),
    Flag("--allowed-hosts", SECURITY.allowed_hosts, "NAMES", names,
         "names that the Host header may contain, separated by commas, in addition to IP "
         "addresses, localhost and the machine's name; * = any, others get 421 (default: * if a "
         "key is needed or other machines can connect, otherwise none)", shows_default=False),
    Flag("--enable-docs", SECURITY.enable_docs, "", None,
         "serve the description of the API at /openapi.json and /docs, without a key"),
    Flag("--ui", SECURITY.ui, "", None,
         "serve a web page at / that chats with the models and shows the engine live; it asks for "
         "the key"),
)  # fmt: skip

LIMITS_FLAGS: Final = (
    Flag("--max-logprobs", API.max_logprobs, "N", integer(-1),
         "number of log probabilities per token that a request may ask for; -1 = the whole "
         "vocabulary"),
    Flag("--max-request-line", HTTP.max_request_line, "SIZE", size,
         "longest request line of HTTP; longer ones get 414", show_size),
    Flag("--max-head", HTTP.max_head, "SIZE", size,
         "largest request line and headers together; larger ones get 431", show_size),
    Flag("--max-header-fields", HTTP.max_header_fields, "N", integer(1),
         "largest number of headers of a request; more get 431"),
    Flag("--max-body", HTTP.max_body, "SIZE", size,
         "largest body of a request; larger ones get 413", show_size),
    Flag("--max-buffered-bodies", HTTP.max_buffered_bodies, "SIZE", size,
         "memory for all request bodies together, of which one client gets at most half; further "
         "requests get 503", show_size),
    Flag("--max-pipelined", HTTP.max_pipelined, "N", integer(1),
         "number of pipelined requests that wait on one connection"),
    Flag("--max-connections", HTTP.max_connections, "N", count(1),
         "number of open connections, lowered to what the limit of open files allows; further "
         "connections get 503", show_count),
    Flag("--max-write-buffer", HTTP.max_write_buffer, "SIZE", size,
         "unread bytes of a stream after which its client is disconnected", show_size),
    Flag("--max-pending-chars", API.max_pending_chars, "N", count(1),
         "characters of generated text that wait for a client that does not read, after which the "
         "client is disconnected", show_count),
    Flag("--head-timeout", HTTP.head_timeout, "TIME", some_duration,
         "how long all headers of a request may take to arrive", show_duration),
    Flag("--body-timeout", HTTP.body_timeout, "TIME", some_duration,
         "how long the body of a request may take to arrive, in addition to its size divided by "
         "--min-body-rate", show_duration),
    Flag("--min-body-rate", HTTP.min_body_rate, "SIZE", size,
         "lowest rate, in bytes a second, at which a large request body may arrive", show_size),
    Flag("--keep-alive-timeout", HTTP.keep_alive_timeout, "TIME", some_duration,
         "how long a connection may be idle between two requests", show_duration),
    Flag("--write-timeout", HTTP.write_timeout, "TIME", some_duration,
         "disconnect a client that reads nothing of its response for this time", show_duration),
    Flag("--linger-timeout", HTTP.linger_timeout, "TIME", duration,
         "how long the server reads and discards data that a client sends after its request was "
         "refused", show_duration),
    Flag("--close-timeout", HTTP.close_timeout, "TIME", some_duration,
         "disconnect a client that reads nothing of the last response of its connection for this "
         "time", show_duration),
    Flag("--ping-interval", HTTP.ping_interval, "TIME", duration,
         "silence in a stream after which a comment is sent to keep the connection alive, and time "
         "between the pings of a WebSocket connection; 0 = never", show_duration),
    Flag("--websocket-idle-timeout", HTTP.websocket_idle_timeout, "TIME", some_duration,
         "close a WebSocket connection without messages and running responses after this time",
         show_duration),
    Flag("--websocket-max-age", HTTP.websocket_max_age, "TIME", some_duration,
         "close a WebSocket connection after this time, once no response runs", show_duration),
)  # fmt: skip

OPERATION_FLAGS: Final = (
    Flag("--drain-delay", SERVICE.drain_delay, "TIME", duration,
         "at shutdown, how long requests are still accepted while the readiness check fails",
         show_duration),
    Flag("--drain-timeout", HTTP.drain_timeout, "TIME", duration,
         "at shutdown, how long running requests may take to finish", show_duration),
    Flag("--drain-grace", HTTP.drain_grace, "TIME", duration,
         "at shutdown, how long an idle connection may still send a request", show_duration),
    Flag("--engine-timeout", SERVICE.engine_timeout, "TIME", duration,
         "an engine that has work but finishes no step for this time counts as hung, and the "
         "process ends; 0 = no limit", show_duration),
    Flag("--failure-grace", SERVICE.failure_grace, "TIME", duration,
         "time between the failure of an engine, which health checks report, and the end of the "
         "process with exit code 1", show_duration),
    Flag("--log-level", SERVICE.log_level, "LEVEL", choice(*_LOG_LEVELS),
         f"lowest level of log messages that are written: {', '.join(_LOG_LEVELS)}"),
    Flag("--log-file", SERVICE.log_file, "FILE", path,
         "file that the log is appended to, reopened on SIGHUP (default: stderr)",
         shows_default=False),
    Flag("--log-format", SERVICE.log_format, "FORM", choice("text", "json"),
         "form of the log: text, or json = one JSON object a line"),
    Flag("--access-log", SERVICE.access_log, "FORM", choice("off", "text", "json"),
         "form of the access log, which has one line per request: off, text or json"),
    Flag("--access-log-file", SERVICE.access_log_file, "FILE", path,
         "file that the access log is appended to, reopened on SIGHUP (default: the same as the "
         "log)", shows_default=False),
    Flag("--access-log-skip", SERVICE.access_log_skip, "PATHS", str,
         "paths, separated by commas, whose successful requests are not written to the access "
         "log; '' = none"),
    Flag("--enable-per-request-metrics", API.per_request_metrics, "", None,
         "add the durations of a request to its response, in metrics next to usage, as vLLM does"),
    Flag("--otlp-traces-endpoint", SERVICE.otlp_traces_endpoint, "URL", http_url,
         "collector that gets OpenTelemetry spans by OTLP over HTTP; needs the extra otel "
         "(default: the collector of OpenTelemetry's environment variables, if set)",
         shows_default=False),
    Flag("--any-model-name", API.any_model_name, "", None,
         "answer requests for unknown models with the only model of the server, as llama.cpp's "
         "server does; without it, or with several models, they get 404"),
    Flag("--ovms-metrics", SERVICE.ovms_metrics, "", None,
         "export the ovms_requests_* counters of OpenVINO Model Server too"),
)  # fmt: skip

PREFIX_CACHE_FLAGS: Final = (
    Flag("--prefix-cache-dir", PREFIX_CACHE.directory, "DIR", path,
         "directory for the KV cache of prompts, which is read again after a restart (default: "
         "prefix-cache in the directory of --state-dir)", shows_default=False),
    Flag("--prefix-cache-disk-size", PREFIX_CACHE.max_bytes, "SIZE", size_or_none,
         "disk space for the prefix cache; the least recently used prompts are deleted first; 0 = "
         "no prefix cache on disk (default: 2G if the disk has 20G free, otherwise 0)",
         shows_default=False),
    Flag("--prefix-cache-write-rate", PREFIX_CACHE.bytes_per_second, "SIZE", size,
         "bytes a second that the prefix cache writes to disk while no request runs; an eighth of "
         "that while requests run", show_size),
    Flag("--prefix-cache-daily-writes", PREFIX_CACHE.bytes_per_day, "SIZE", size,
         "bytes a day that the prefix cache writes to disk at most, to limit the wear of flash",
         show_size),
    Flag("--prefix-cache-salted", PREFIX_CACHE.keeps_salted, "", None,
         "store prompts of requests with a cache_salt in the prefix cache on disk too"),
)  # fmt: skip

STATE_FLAGS: Final = (
    Flag("--enable-store", STATE.enable_store, "", None,
         "store responses and conversations, so that later requests can refer to them"),
    Flag("--state-dir", STATE.state_dir, "DIR", text,
         "directory for responses, conversations, files, batches and cached prompts; :memory: = "
         "responses and conversations are kept in memory until the server ends, and nothing else "
         "is kept (default: $STATE_DIRECTORY, or $XDG_STATE_HOME/fastovms)", shows_default=False,
         common=True),
    Flag("--state-url", STATE.state_url, "URL", postgres_url,
         "PostgreSQL database for responses and conversations, which several servers may share: "
         "postgresql://USER@HOST/DATABASE, with libpq's parameters; files, batches and cached "
         "prompts stay in --state-dir (default: the environment variable FASTOVMS_STATE_URL, "
         "otherwise --state-dir)", shows_default=False),
    Flag("--state-password-file", STATE.password_file, "FILE", path,
         "file with the password for --state-url, read again for each connection (default: "
         "systemd's credential state-password, or libpq's sources)", shows_default=False),
    Flag("--state-connections", STATE.num_connections, "N", integer(2, 64),
         "number of connections to the database of --state-url; half of them are used only for "
         "reading"),
    Flag("--state-listen-url", STATE.listen_url, "URL", postgres_url,
         "address of the database of --state-url that bypasses a pooler in transaction mode, which "
         "does not support LISTEN; without it, changes by other servers are seen up to a second "
         "later (default: --state-url)", shows_default=False),
    Flag("--state-max-age", STATE.max_age, "TIME", some_duration,
         "delete responses and conversations that were not used for this time", show_duration),
    Flag("--state-max-objects", STATE.max_objects, "N", count(1),
         "number of responses and conversations that are stored; beyond it, the API key that has "
         "the most loses those not used for the longest time", show_count),
    Flag("--state-max-size", STATE.max_bytes, "SIZE", size,
         "size of all stored responses and conversations; beyond it, the API key that has the most "
         "loses those not used for the longest time", show_size),
    Flag("--max-background-responses", STATE.max_background, "N", integer(1),
         "number of running background responses of one API key, or of one client address without "
         "keys; all other keys together may run as many again"),
    Flag("--max-background-tokens", API.max_background_tokens, "N", count(0),
         "output tokens of a background response whose request sets no max_output_tokens; 0 = as "
         "many as fit the context", show_count),
    Flag("--resume", STATE.resume, "", None,
         "resume background responses after a crash or a restart; without it they are marked "
         "failed"),
)  # fmt: skip


HUB_GROUP: Final = "models of a hub"
ENGINE_GROUP: Final = "batching and memory"
BATCH_GROUP: Final = "batches"
PREFIX_CACHE_GROUP: Final = "prefix cache on disk"
COMMON_GROUP: Final = "most used"

GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    HUB_GROUP: REPOSITORY_FLAGS,
    "network": NETWORK_FLAGS,
    "access": ACCESS_FLAGS,
    "several models": RESIDENCY_FLAGS,
    ENGINE_GROUP: ENGINE_FLAGS,
    "adapters (LoRA)": LORA_FLAGS,
    "chat": CHAT_FLAGS,
    "embeddings and rerank": ENCODER_FLAGS,
    "speech": SPEECH_FLAGS,
    "images": IMAGES_FLAGS,
    "limits": LIMITS_FLAGS,
    "operation": OPERATION_FLAGS,
    "stored responses": STATE_FLAGS,
    "files": FILE_FLAGS,
    BATCH_GROUP: BATCH_FLAGS,
    PREFIX_CACHE_GROUP: PREFIX_CACHE_FLAGS,
}
FLAGS: Final = tuple(flag for flags in GROUPS.values() for flag in flags)


def add_flags(
    parser: argparse.ArgumentParser,
    titles: Collection[str] = GROUPS,
    *,
    common: argparse._ArgumentGroup | None = None,
    shows_all: bool = True,
) -> None:
    """Adds the groups of flags with the given titles.

    Args:
        common: group of the flags that are used most; None = they are in their own groups.
        shows_all: whether the help shows the flags outside `common`.
    """
    for title, flags in GROUPS.items():
        if title in titles:
            group = parser.add_argument_group(title)
            for flag in flags:
                if flag.common and common is not None:
                    flag.add_to(common)
                else:
                    flag.add_to(group, hidden=not shows_all)


def read_flags(arguments: argparse.Namespace) -> Settings:
    """Returns the settings from the flags."""
    settings = settings_of(FLAGS, arguments)
    return settings | _first_address(settings)


def _first_address(settings: Settings) -> Settings:
    """Moves all values of --host but the first to the addresses of --listen. Without --host and
    --port, only the addresses of --listen are used."""
    hosts, listen = (settings.given.get(field, ()) for field in (HTTP.host, HTTP.listen))
    if not hosts:
        is_alone = listen and HTTP.port not in settings.given
        return Settings.of(HttpConfig, host=None) if is_alone else Settings()
    port = settings.section(HttpConfig).port
    further = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts[1:]]
    return Settings.of(HttpConfig, host=hosts[0], listen=(*further, *listen))
