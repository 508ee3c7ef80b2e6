"""The table of flags."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Final

from fastovms.cli.flag import (
    Flag,
    adapters,
    choice,
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
    settings_of,
    show_duration,
    show_mode,
    show_size,
    size,
    size_or_none,
    some_duration,
    template,
    text,
)
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
from fastovms.text.reasoning import REASONING_FORMAT_ALIASES, REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMAT_ALIASES, TOOL_FORMATS

FILE_FLAGS: Final = (
    Flag("--max-file-size", UPLOADS.max_file_size, "SIZE", size,
         "of a file that a client uploads; 413 beyond it", show_size),
    Flag("--max-files-size", UPLOADS.max_files_size, "SIZE", size,
         "of one key's files, or one address's; other keys share a quarter more", show_size),
    Flag("--max-files", UPLOADS.max_files, "N", integer(1),
         "files of one key, or one address; other keys share as many again"),
    Flag("--max-batches", BATCHES.max_unfinished, "N", integer(1),
         "unfinished batches of one key, or one address; other keys share as many again"),
)  # fmt: skip

BATCH_FLAGS: Final = (
    Flag("--max-batch-lines", BATCHES.max_lines, "N", integer(1), "requests of one batch"),
    Flag("--batch-concurrency", BATCHES.num_at_once, "N", integer(1),
         "requests of batches that run at the same time where nobody else asks"),
    Flag("--batch-concurrency-beside", BATCHES.num_beside_others, "N", integer(1),
         "the same while other requests run"),
)  # fmt: skip


# Lists the flags about models: where they come from, how they are run, and what they are given.


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
         "where models of a hub are kept, in ORG/NAME (default: fastovms/models in the user's "
         "cache directory)", shows_default=False),
    Flag("--revision", REPOSITORY.revision, "REVISION", text,
         "branch, tag or commit to pull; where another one is there already, --overwrite-models "
         "takes its place (default: what is there, else the main branch)", shows_default=False),
    Flag("--overwrite-models", REPOSITORY.overwrite, "", None,
         "pull models again that are there"),
)  # fmt: skip

RESIDENCY_FLAGS: Final = (
    Flag("--max-loaded-models", RESIDENCY.max_loaded_models, "N", integer(1),
         "models in memory at the same time: each is loaded when it is first asked for, and the "
         "idle one that was used least recently makes room (default: all are loaded at start)",
         shows_default=False),
    Flag("--model-memory", RESIDENCY.model_memory, "SIZE", size,
         "memory for the weights and KV caches of all models together, with the same effect "
         "(default: no limit)", shows_default=False),
    Flag("--idle-unload", RESIDENCY.idle_unload, "TIME", duration,
         "unload a model that nobody has used for so long, such as 90s, 15m or 2h; 0 = never",
         show_duration),
    Flag("--model-wait-timeout", RESIDENCY.wait_timeout, "TIME", some_duration,
         "how long a request waits for its model to be loaded; 503 beyond it", show_duration),
    Flag("--file-system-poll-wait-seconds", RESIDENCY.poll_interval, "SECONDS", number("seconds"),
         "between two looks at the file of --config-path, whose changes are followed; 0 = none"),
)  # fmt: skip

ENGINE_FLAGS: Final = (
    Flag("--device", ENGINE.device, "DEVICE", text,
         "what runs the model: CPU, GPU, GPU.n, or AUTO = a discrete GPU, else an integrated one, "
         "else the CPU"),
    Flag("--backend", ENGINE.backend, "NAME", choice("auto", "paged", "genai"),
         "what runs the model: paged = the engine of this server, genai = the pipeline of "
         "openvino_genai, auto = paged where it can"),
    Flag("--plugin-config", ENGINE.plugin_config, "JSON", json_object,
         "OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
         shows_default=False),
    Flag("--cache-size", ENGINE.cache_size, "GB", number("GB", high=_MAX_CACHE_GB),
         "memory for the KV cache, used as it fills; 0 = half of the memory that is free at start"),
    Flag("--max-model-len", ENGINE.max_model_len, "TOKENS", model_length,
         "context length to offer, such as 8192 or 8k; auto = the model's",
         shows_default=False),
    Flag("--generation-config", FILES.generation_config, "WHENCE", path,
         "where the defaults of requests come from: auto = the model's generation_config.json, "
         "vllm = no file, or a directory or file in its place", shows_default=False),
    Flag("--override-generation-config", FILES.override_generation_config, "JSON", json_object,
         "members that go before those of generation_config.json, such as "
         "'{\"temperature\": 0.5, \"max_new_tokens\": 512}'", shows_default=False),
    Flag("--kv-cache-precision", ENGINE.plugin_config, "PRECISION",
         choice(*CACHE_PRECISIONS),
         "of the KV cache: u4, u8, f16, bf16 or f32 (default: the fastest that the device has, "
         "never u4, which changes texts)",
         shows_default=False, member="KV_CACHE_PRECISION"),
    Flag("--precision", ENGINE.precision, "PRECISION", choice("auto", "exact"),
         "auto = the fastest; exact = f32 throughout, and nothing else that runs changes a text"),
    Flag("--max-num-seqs", ENGINE.max_num_seqs, "N", integer(1),
         "sequences that run at the same time; more wait"),
    Flag("--max-num-batched-tokens", ENGINE.max_num_batched_tokens, "TOKENS", integer(1),
         "tokens computed in one step, over all sequences (default: what was measured on this "
         f"machine, else {DEFAULT_TOKEN_BUDGET})", shows_default=False),
    Flag("--tune", ENGINE.tune, "", None,
         "measure, while nobody asks, which precisions and token budget are the fastest, and "
         "start by what was measured"),
    Flag("--decode-kernels", ENGINE.decode_kernels, "WHEN", choice("auto", "off"),
         "kernels of this server's own for steps of up to 8 tokens: auto = where they are right "
         "and faster than OpenVINO's, which is found out after the start; off = never"),
    Flag("--max-queued-requests", ENGINE.max_num_queued_requests, "N", integer(1),
         "samples that may wait to run; more are refused with 429"),
    Flag("--enable-prefix-caching", ENGINE.enable_prefix_caching, "", None,
         "reuse what is computed of equal prompt beginnings"),
    Flag("--enable-prompt-lookup", ENGINE.enable_prompt_lookup, "", None,
         "guess tokens from earlier text (default: where that pays; with the genai backend, where "
         "it is all or nothing, no)", shows_default=False),
    Flag("--suffix-index-tokens", ENGINE.suffix_index_tokens, "N", integer(0, _MAX_INDEX_TOKENS),
         "recent prompts and answers, in tokens, that drafts are guessed from, per API key and "
         "cache_salt; 0 = only a sequence's own text"),
    Flag("--draft-model", ENGINE.draft_model, "DIR", path,
         "directory of a smaller model with the same vocabulary, which guesses tokens where that "
         "pays (default: none)", shows_default=False),
    Flag("--cache-dir", ENGINE.cache_dir, "DIR", str,
         "directory for what makes the next start faster; \"\" = none (default: fastovms in "
         "XDG_CACHE_HOME or ~/.cache)", shows_default=False),
)  # fmt: skip

LORA_FLAGS: Final = (
    Flag("--enable-lora", ENGINE.enable_lora, "", None,
         "serve adapters, which an operator may load and unload while the server runs"),
    Flag("--lora-modules", ENGINE.lora_modules, "NAME=PATH", adapters,
         "directories of adapters in PEFT's form to load at start, each under a model name of its "
         "own; several are separated by spaces or commas, and may be JSON as in vLLM "
         "(default: none)", shows_default=False, merges=True),
    Flag("--max-loras", ENGINE.max_loras, "N", integer(1),
         "adapters in memory at the same time"),
    Flag("--max-lora-rank", ENGINE.max_lora_rank, "N", integer(1, 512),
         "highest rank of an adapter"),
)  # fmt: skip

CHAT_FLAGS: Final = (
    Flag("--chat-template", CHAT.chat_template, "FILE", template,
         "file with a Jinja template in place of the model's, or the template itself",
         shows_default=False),
    Flag("--chat-template-content-format", CHAT.chat_template_content_format, "FORM",
         choice("auto", "string", "openai"),
         "the content of messages as templates get it: string, openai (a list of parts), or auto = "
         "as they read it"),
    Flag("--default-chat-template-kwargs", CHAT.default_chat_template_kwargs, "JSON",
         json_object,
         "variables of the template that a request does not set, such as "
         "'{\"enable_thinking\": false}'", shows_default=False),
    Flag("--trust-request-chat-template", CHAT.trust_request_chat_template, "", None,
         "a request may bring a template of its own"),
    Flag("--tool-parser", CHAT.tool_parser, "NAME",
         choice("auto", "none", *TOOL_FORMATS, aliases=TOOL_FORMAT_ALIASES),
         f"format of the model's tool calls: {', '.join(TOOL_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--reasoning-parser", CHAT.reasoning_parser, "NAME",
         choice("auto", "none", *REASONING_FORMATS, aliases=REASONING_FORMAT_ALIASES),
         f"format of the model's thoughts: {', '.join(REASONING_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--reasoning-budget", CHAT.reasoning_budget, "N", integer(-1),
         "tokens of reasoning after which the server ends it, where a request sets no limit; 0 = "
         "no reasoning, -1 = no limit"),
    Flag("--reasoning-budget-message", CHAT.reasoning_budget_message, "TEXT", str,
         "text that is put before the end of reasoning whose budget is spent (default: none)",
         shows_default=False),
    Flag("--response-role", CHAT.response_role, "ROLE", text,
         "role of the messages that are generated"),
)  # fmt: skip

ENCODER_FLAGS: Final = (
    Flag("--task", ENCODER.task, "TASK",
         choice("auto", "text_generation", "embeddings", "rerank", "speech2text",
                aliases=_TASK_ALIASES),
         "what the model does: text_generation, embeddings, rerank, speech2text, or auto = as its "
         "files say, of which rerankers that are decoders look like models that generate"),
    Flag("--pooling", ENCODER.pooling, "POOLING", choice("auto", "cls", "mean", "last"),
         "how the states of a text's tokens become its vector: cls, mean, last, or auto = as "
         "1_Pooling/config.json says, else cls, or last of a decoder"),
    Flag("--normalize", ENCODER.normalize, "", None, "give vectors the length 1"),
    Flag("--truncate", ENCODER.truncate, "", None,
         "cut texts that are too long for the model, rather than refuse them"),
    Flag("--query-instruction", ENCODER.query_instruction, "TEXT", str,
         "what is put before queries (default: nothing)", shows_default=False),
    Flag("--document-instruction", ENCODER.document_instruction, "TEXT", str,
         "what is put before documents and texts to embed (default: nothing)",
         shows_default=False),
    Flag("--max-inputs", ENCODER.max_inputs, "N", integer(1),
         "texts of one request for embeddings or scores"),
    Flag("--max-allowed-chunks", ENCODER.max_allowed_chunks, "N", integer(1),
         "documents of one request to rerank, each of which counts as many times as it is cut to "
         "fit the model"),
    Flag("--max-batch-tokens", ENCODER.max_batch_tokens, "TOKENS", integer(1),
         "tokens of texts that are computed together"),
)  # fmt: skip

SPEECH_FLAGS: Final = (
    Flag("--max-audio-size", API.max_audio_size, "SIZE", size,
         "of a file to transcribe; 413 beyond it", show_size),
    Flag("--max-audio-seconds", API.max_audio_seconds, "SECONDS", integer(1),
         "seconds of audio in a file to transcribe"),
)  # fmt: skip

IMAGES_FLAGS: Final = (
    Flag("--allowed-media-domains", MEDIA.allowed_media_domains, "DOMAINS", text,
         "hosts that images are fetched from, separated by commas; all = any (default: none)",
         shows_default=False),
    Flag("--allowed-local-media-path", MEDIA.allowed_local_media_path, "DIR", path,
         "images may be read from files below it that have no further hard links (default: from "
         "none)", shows_default=False),
    Flag("--allow-media-redirects", MEDIA.allow_media_redirects, "", None,
         "follow redirects, to those hosts"),
    Flag("--allow-private-media", MEDIA.allow_private_media, "", None,
         "fetch from addresses that are not public, too, such as the local network's"),
    Flag("--media-timeout", MEDIA.media_timeout, "SECONDS", number("seconds", positive=True),
         "for fetching an image"),
    Flag("--max-images", MEDIA.max_images, "N", integer(1), "images of one request"),
    Flag("--max-image-bytes", MEDIA.max_image_bytes, "SIZE", size,
         "of one image, encoded", show_size),
    Flag("--max-image-pixels", MEDIA.max_image_pixels, "N", integer(1),
         "of one image, width times height"),
    Flag("--shrink-images-to", MEDIA.shrink_images_to, "N", integer(1),
         "pixels of an image that a vision model gets: larger images are shrunk to it, or to what "
         "preprocessor_config.json states if that is less; all images of a request share twice as "
         "many"),
    Flag("--max-image-memory", MEDIA.max_image_memory, "SIZE", size,
         "memory of all images that are decoded or wait for the model; 429 beyond it", show_size),
    Flag("--max-document-bytes", MEDIA.max_document_bytes, "SIZE", size,
         "of one document", show_size),
    Flag("--max-document-pages", MEDIA.max_document_pages, "N", integer(1), "of one PDF"),
)  # fmt: skip


# Lists the flags about the server: its network, who may use it, limits, logs, and what it keeps.


_seconds: Final = number("seconds")
_some_seconds: Final = number("seconds", positive=True)
_LOG_LEVELS: Final = ("trace", "debug", "info", "warning", "error")

NETWORK_FLAGS: Final = (
    Flag("--host", HTTP.host, "ADDRESS", text,
         "address to listen on, 0.0.0.0 for every IPv4 one, :: for every IPv6 one; may be given "
         "several times", repeats=True),
    Flag("--port", HTTP.port, "PORT", integer(0, 65535),
         "port of every --host, 0 for any free one"),
    Flag("--listen", HTTP.listen, "ADDRESS", text,
         "further address: host:port, [ipv6]:port or unix:/path; may be given several times. "
         "Without --host and --port, these are the only ones",
         shows_default=False, repeats=True),
    Flag("--uds", HTTP.listen, "PATH", lambda value: f"unix:{text(value)}",
         "Unix socket, the same as --listen unix:PATH", shows_default=False, repeats=True),
    Flag("--uds-mode", HTTP.unix_mode, "OCTAL", mode, "permissions of Unix sockets", show_mode),
    Flag("--root-path", HTTP.root_path, "PATH", root_path,
         "what a proxy leaves in front of every path, such as /v2/abc/openai; paths without it are "
         "answered too", shows_default=False),
    Flag("--forwarded-allow-ips", HTTP.forwarded_allow_ips, "ADDRESSES", networks,
         "addresses and networks of the proxies in front, separated by commas, * for any: their "
         "X-Forwarded-For says who asks, so that clients without a key are told apart (default: "
         "none is believed)", shows_default=False),
    Flag("--reuse-port", HTTP.reuse_port, "", None,
         "let other processes listen on the same ports (SO_REUSEPORT)"),
    Flag("--backlog", HTTP.backlog, "N", integer(1, 65535),
         "connections that the kernel queues; it caps this at net.core.somaxconn"),
    Flag("--ssl-certfile", HTTP.tls_certificate, "FILE", text,
         "PEM file with the certificate chain: serve HTTPS. Read again on SIGHUP"),
    Flag("--ssl-keyfile", HTTP.tls_key, "FILE", text,
         "PEM file with its key (default: it is in the certificate's file)", shows_default=False),
)  # fmt: skip

ACCESS_FLAGS: Final = (
    Flag("--api-key-file", SECURITY.api_key_file, "FILE", path,
         "file with the keys that clients may use, one a line; read again on SIGHUP (default: the "
         "one in the environment's API_KEY or VLLM_API_KEY, else anybody may ask)",
         shows_default=False),
    Flag("--api-key", SECURITY.api_keys, "KEY", text,
         "a key that clients may use; may be given several times. Other users of the machine can "
         "see it: prefer --api-key-file", shows_default=False, repeats=True),
    Flag("--allowed-origins", SECURITY.allowed_origins, "ORIGINS", names,
         "origins whose pages may ask, separated by commas, * for any (CORS); others get 403 "
         "(default: * where a key is needed, else none but the server's own)",
         shows_default=False),
    Flag("--allowed-methods", SECURITY.allowed_methods, "METHODS", names,
         "methods that they may use"),
    Flag("--allowed-headers", SECURITY.allowed_headers, "HEADERS", names,
         "headers that they may set"),
    Flag("--allow-credentials", SECURITY.allow_credentials, "", None,
         "let them send cookies; only for origins that are listed by name"),
    Flag("--allowed-hosts", SECURITY.allowed_hosts, "NAMES", names,
         "names that requests may give the server in Host, beside addresses, localhost and the "
         "machine's own, separated by commas, * for any; others get 421 (default: none more where "
         "no key is needed and only this machine can reach the server, else *)",
         shows_default=False),
    Flag("--enable-docs", SECURITY.enable_docs, "", None,
         "describe the API in /openapi.json and /docs, which need no key"),
    Flag("--ui", SECURITY.ui, "", None,
         "serve a page for browsers at /, which chats and shows the engine live; it asks for the "
         "key itself"),
)  # fmt: skip

LIMITS_FLAGS: Final = (
    Flag("--max-logprobs", API.max_logprobs, "N", integer(-1),
         "log probabilities of one token that a request may ask for; -1 = of every token there is"),
    Flag("--max-request-line", HTTP.max_request_line, "SIZE", size, "414 beyond it", show_size),
    Flag("--max-head", HTTP.max_head, "SIZE", size,
         "request line and headers together; 431 beyond it", show_size),
    Flag("--max-header-fields", HTTP.max_header_fields, "N", integer(1), "431 beyond it"),
    Flag("--max-body", HTTP.max_body, "SIZE", size, "413 beyond it", show_size),
    Flag("--max-buffered-bodies", HTTP.max_buffered_bodies, "SIZE", size,
         "all request bodies in memory, of which one client's may be half, or less beside others'; "
         "503 beyond it", show_size),
    Flag("--max-pipelined", HTTP.max_pipelined, "N", integer(1),
         "requests that wait on one connection behind the current one"),
    Flag("--max-connections", HTTP.max_connections, "N", integer(1), "503 beyond it"),
    Flag("--max-write-buffer", HTTP.max_write_buffer, "SIZE", size,
         "what may lie unread of a stream before its client is cut", show_size),
    Flag("--max-pending-chars", API.max_pending_chars, "N", integer(1),
         "text that waits for a client which does not read its stream, before it is cut"),
    Flag("--head-timeout", HTTP.head_timeout, "SECONDS", _some_seconds,
         "for all headers of a request to arrive"),
    Flag("--body-timeout", HTTP.body_timeout, "SECONDS", _some_seconds,
         "for the whole body to arrive, and --min-body-rate for its size"),
    Flag("--min-body-rate", HTTP.min_body_rate, "SIZE", size,
         "bytes a second that a large body must come with", show_size),
    Flag("--keep-alive-timeout", HTTP.keep_alive_timeout, "SECONDS", _some_seconds,
         "idle time between two requests"),
    Flag("--write-timeout", HTTP.write_timeout, "SECONDS", _some_seconds,
         "a client that reads nothing of its answer for so long is cut"),
    Flag("--linger-timeout", HTTP.linger_timeout, "SECONDS", _seconds,
         "for reading what a client still sends after its request was refused"),
    Flag("--close-timeout", HTTP.close_timeout, "SECONDS", _some_seconds,
         "a client that reads nothing of its connection's last answer for so long is cut"),
    Flag("--ping-interval", HTTP.ping_interval, "SECONDS", _seconds,
         "silence in a stream before a comment is sent, and time between the pings of a WebSocket "
         "connection; 0 = never"),
    Flag("--websocket-idle-timeout", HTTP.websocket_idle_timeout, "SECONDS", _some_seconds,
         "close a WebSocket connection that has neither a message nor a running response for so "
         "long"),
    Flag("--websocket-max-age", HTTP.websocket_max_age, "SECONDS", _some_seconds,
         "close a WebSocket connection after this time, once no response runs"),
)  # fmt: skip

OPERATION_FLAGS: Final = (
    Flag("--drain-delay", SERVICE.drain_delay, "SECONDS", _seconds,
         "at shutdown, how long requests are still taken while readiness says no"),
    Flag("--drain-timeout", HTTP.drain_timeout, "SECONDS", _seconds,
         "at shutdown, how long running requests may take to end"),
    Flag("--drain-grace", HTTP.drain_grace, "SECONDS", _seconds,
         "at shutdown, how long an idle connection may still bring a request"),
    Flag("--engine-timeout", SERVICE.engine_timeout, "SECONDS", _seconds,
         "an engine that has work and ends no step for so long hangs; 0 = it may take any time"),
    Flag("--failure-grace", SERVICE.failure_grace, "SECONDS", _seconds,
         "between the failure of an engine and the end of the process, with exit code 1"),
    Flag("--log-level", SERVICE.log_level, "LEVEL", choice(*_LOG_LEVELS),
         ", ".join(_LOG_LEVELS)),
    Flag("--log-file", SERVICE.log_file, "FILE", path,
         "append the log to a file, opened anew on SIGHUP (default: stderr)", shows_default=False),
    Flag("--log-format", SERVICE.log_format, "FORM", choice("text", "json"),
         "a record of the log as text, or as one line of JSON: text or json"),
    Flag("--access-log", SERVICE.access_log, "FORM", choice("off", "text", "json"),
         "a line a request: off, text or json"),
    Flag("--access-log-file", SERVICE.access_log_file, "FILE", path,
         "append it to a file of its own, opened anew on SIGHUP (default: where the log goes)",
         shows_default=False),
    Flag("--access-log-skip", SERVICE.access_log_skip, "PATHS", str,
         "paths without a line in the access log unless they fail, separated by commas; '' = none"),
    Flag("--enable-per-request-metrics", API.per_request_metrics, "", None,
         "answers tell how long they took, in metrics beside usage, as vLLM's do"),
    Flag("--otlp-traces-endpoint", SERVICE.otlp_traces_endpoint, "URL", http_url,
         "send spans to this collector, by OTLP over HTTP (default: the one that OpenTelemetry's "
         "variables name, if they do); needs the extra otel", shows_default=False),
    Flag("--ovms-metrics", SERVICE.ovms_metrics, "", None,
         "export the ovms_requests_* counters of OpenVINO Model Server too"),
)  # fmt: skip

PREFIX_CACHE_FLAGS: Final = (
    Flag("--prefix-cache-dir", PREFIX_CACHE.directory, "DIR", path,
         "directory for prompts that were computed, for the next start (default: prefix-cache in "
         "the directory of stored responses)", shows_default=False),
    Flag("--prefix-cache-disk-size", PREFIX_CACHE.max_bytes, "SIZE", size_or_none,
         "of all of them together; those not used for longest go; 0 = none are kept (default: 2G "
         "where the disk has 20G free, else 0)", shows_default=False),
    Flag("--prefix-cache-write-rate", PREFIX_CACHE.bytes_per_second, "SIZE", size,
         "bytes a second that are written while nothing runs; an eighth of it else", show_size),
    Flag("--prefix-cache-daily-writes", PREFIX_CACHE.bytes_per_day, "SIZE", size,
         "bytes that are written on a day, as flash wears", show_size),
    Flag("--prefix-cache-salted", PREFIX_CACHE.keeps_salted, "", None,
         "keep prompts with a cache_salt, too"),
)  # fmt: skip

STATE_FLAGS: Final = (
    Flag("--enable-store", STATE.enable_store, "", None,
         "keep responses and conversations for later requests"),
    Flag("--state-dir", STATE.state_dir, "DIR", text,
         "directory for responses, conversations, files, batches and cached prompts; :memory: "
         "keeps responses and conversations until the end only, and nothing else (default: "
         "$STATE_DIRECTORY, else $XDG_STATE_HOME/fastovms)", shows_default=False),
    Flag("--state-url", STATE.state_url, "URL", postgres_url,
         "PostgreSQL database for responses and conversations, which several servers may share: "
         "postgresql://USER@HOST/DATABASE, with libpq's parameters; files, batches and cached "
         "prompts stay in --state-dir (default: the environment's FASTOVMS_STATE_URL, else "
         "--state-dir)", shows_default=False),
    Flag("--state-password-file", STATE.password_file, "FILE", path,
         "file with the password for it, read again at each connection (default: systemd's "
         "credential state-password, else what libpq finds)", shows_default=False),
    Flag("--state-connections", STATE.num_connections, "N", integer(2, 64),
         "connections to it; half of them only read"),
    Flag("--state-listen-url", STATE.listen_url, "URL", postgres_url,
         "the same database past a pooler in transaction mode, in which sessions cannot LISTEN: "
         "without it, what other servers do is seen up to a second later (default: --state-url)",
         shows_default=False),
    Flag("--state-max-age", STATE.max_age, "SECONDS", _some_seconds,
         "since their last use, then they are deleted"),
    Flag("--state-max-objects", STATE.max_objects, "N", integer(1),
         "number of responses and conversations that are kept; beyond it, the API key that has the "
         "most loses those that were not used for longest"),
    Flag("--state-max-size", STATE.max_bytes, "SIZE", size,
         "size of all responses and conversations together; beyond it, the API key that has the "
         "most loses those that were not used for longest", show_size),
    Flag("--max-background-responses", STATE.max_background, "N", integer(1),
         "background responses of one key, or one address; other keys share as many again"),
    Flag("--max-background-tokens", API.max_background_tokens, "N", integer(0),
         "most tokens of a background response whose request has no max_output_tokens; 0 = as many "
         "as the context holds"),
    Flag("--resume", STATE.resume, "", None,
         "go on with them after a crash or a restart, instead of having them fail"),
)  # fmt: skip


HUB_GROUP: Final = "models of a hub"
ENGINE_GROUP: Final = "batching and memory"
BATCH_GROUP: Final = "batches"
PREFIX_CACHE_GROUP: Final = "prefix cache on disk"

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


def add_flags(parser: argparse.ArgumentParser, titles: Collection[str] = GROUPS) -> None:
    """Adds the groups of flags with the given titles."""
    for title, flags in GROUPS.items():
        if title in titles:
            group = parser.add_argument_group(title)
            for flag in flags:
                flag.add_to(group)


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
