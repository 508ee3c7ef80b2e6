"""Lists the flags about the server: its network, who may use it, limits, logs, and what it
keeps."""

from __future__ import annotations

from typing import Final

from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import (
    choice,
    http_url,
    integer,
    mode,
    names,
    networks,
    number,
    path,
    postgres_url,
    root_path,
    show_mode,
    show_size,
    size,
    size_or_none,
    text,
)
from fastovms.config.settings import API, HTTP, PREFIX_CACHE, SECURITY, SERVICE, STATE

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
         "silence in a stream before a comment is sent; 0 = never"),
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
