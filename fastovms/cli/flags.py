"""The table of flags: which field of the configuration each sets, how it reads, what it means.

Defaults come from the dataclasses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastovms.cli.flag_types import (
    choice,
    integer,
    json_object,
    mode,
    model_length,
    names,
    number,
    path,
    root_path,
    show_mode,
    show_number,
    show_size,
    size,
    template,
    text,
)
from fastovms.cli.settings import SECTIONS
from fastovms.config import DEFAULT_TOKEN_BUDGET
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMATS

_seconds: Final = number("seconds")
_some_seconds: Final = number("seconds", positive=True)
_LOG_LEVELS: Final = ("trace", "debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        field: "section.field" of the configuration.
        parse: None = a switch, with a `--no-` form.
        show: words the default.
        shows_default: False where the help says it better.
        repeats: may be given several times; the field is a tuple.
    """

    name: str
    field: str
    metavar: str
    parse: Callable[[str], object] | None
    help: str
    show: Callable[[object], str] = show_number
    shows_default: bool = True
    repeats: bool = False

    @property
    def default(self) -> object:
        section, _, name = self.field.partition(".")
        return getattr(SECTIONS.get(section), name, None)


_repository = (
    Flag("--model-repository-path", "repository.path", "DIR", path,
         "where models of a hub are kept, in ORG/NAME (default: fastovms/models in the user's "
         "cache directory)", shows_default=False),
    Flag("--revision", "repository.revision", "REVISION", text,
         "branch, tag or commit to pull (default: the main branch)", shows_default=False),
    Flag("--overwrite-models", "repository.overwrite", "", None,
         "pull models again that are there"),
)  # fmt: skip

_network = (
    Flag("--host", "http.host", "ADDRESS", text,
         "address to listen on, 0.0.0.0 for every IPv4 one, :: for every IPv6 one; may be given "
         "several times", repeats=True),
    Flag("--port", "http.port", "PORT", integer(0, 65535),
         "port of every --host, 0 for any free one"),
    Flag("--listen", "http.listen", "ADDRESS", text,
         "further address: host:port, [ipv6]:port or unix:/path; may be given several times. "
         "Without --host and --port, these are the only ones",
         shows_default=False, repeats=True),
    Flag("--uds", "http.listen", "PATH", lambda value: f"unix:{text(value)}",
         "Unix socket, the same as --listen unix:PATH", shows_default=False, repeats=True),
    Flag("--uds-mode", "http.unix_mode", "OCTAL", mode, "permissions of Unix sockets", show_mode),
    Flag("--root-path", "http.root_path", "PATH", root_path,
         "what a proxy leaves in front of every path, such as /v2/abc/openai; paths without it are "
         "answered too", shows_default=False),
    Flag("--reuse-port", "http.reuse_port", "", None,
         "let other processes listen on the same ports (SO_REUSEPORT)"),
    Flag("--backlog", "http.backlog", "N", integer(1, 65535),
         "connections that the kernel queues; it caps this at net.core.somaxconn"),
    Flag("--ssl-certfile", "http.tls_certificate", "FILE", text,
         "PEM file with the certificate chain: serve HTTPS. Read again on SIGHUP"),
    Flag("--ssl-keyfile", "http.tls_key", "FILE", text,
         "PEM file with its key (default: it is in the certificate's file)", shows_default=False),
)  # fmt: skip

_access = (
    Flag("--api-key-file", "security.api_key_file", "FILE", path,
         "file with the keys that clients may use, one a line; read again on SIGHUP (default: the "
         "one in the environment's API_KEY or VLLM_API_KEY, else anybody may ask)",
         shows_default=False),
    Flag("--api-key", "security.api_keys", "KEY", text,
         "a key that clients may use; may be given several times. Other users of the machine can "
         "see it: prefer --api-key-file", shows_default=False, repeats=True),
    Flag("--allowed-origins", "security.allowed_origins", "ORIGINS", names,
         "origins whose pages may ask, separated by commas, * for any (CORS); others get 403 "
         "(default: * where a key is needed, else none but the server's own)",
         shows_default=False),
    Flag("--allowed-methods", "security.allowed_methods", "METHODS", names,
         "methods that they may use"),
    Flag("--allowed-headers", "security.allowed_headers", "HEADERS", names,
         "headers that they may set"),
    Flag("--allow-credentials", "security.allow_credentials", "", None,
         "let them send cookies; only for origins that are listed by name"),
    Flag("--allowed-hosts", "security.allowed_hosts", "NAMES", names,
         "names that requests may give the server in Host, beside addresses, localhost and the "
         "machine's own, separated by commas, * for any; others get 421 (default: none more where "
         "no key is needed and only this machine can reach the server, else *)",
         shows_default=False),
)  # fmt: skip

_engine = (
    Flag("--device", "engine.device", "DEVICE", text, "OpenVINO device"),
    Flag("--backend", "engine.backend", "NAME", choice("auto", "paged", "genai"),
         "what runs the model: paged = the engine of this server, genai = the pipeline of "
         "openvino_genai, auto = paged where it can"),
    Flag("--plugin-config", "engine.plugin_config", "JSON", json_object,
         "OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
         shows_default=False),
    Flag("--cache-size", "engine.cache_size", "GB", number("GB"),
         "memory for the KV cache, used as it fills; 0 = half of the memory that is free at start"),
    Flag("--max-model-len", "engine.max_model_len", "TOKENS", model_length,
         "context length to offer, such as 8192 or 8k; auto = the model's",
         shows_default=False),
    Flag("--generation-config", "model.generation_config", "WHENCE", path,
         "where the defaults of requests come from: auto = the model's generation_config.json, "
         "vllm = no file, or a directory or file in its place", shows_default=False),
    Flag("--kv-cache-precision", "plugin.KV_CACHE_PRECISION", "PRECISION",
         choice("u8", "f16", "bf16", "f32"),
         "of the KV cache: u8, f16, bf16 or f32 (default: the fastest that the device has)"),
    Flag("--precision", "engine.precision", "PRECISION", choice("auto", "exact"),
         "auto = the fastest; exact = f32 throughout, and nothing else that runs changes a text"),
    Flag("--max-num-seqs", "engine.max_num_seqs", "N", integer(1),
         "sequences that run at the same time; more wait"),
    Flag("--max-num-batched-tokens", "engine.max_num_batched_tokens", "TOKENS", integer(1),
         "tokens computed in one step, over all sequences (default: what was measured on this "
         f"machine, else {DEFAULT_TOKEN_BUDGET})", shows_default=False),
    Flag("--tune", "engine.tune", "", None,
         "measure at the first start, for a few seconds, which precisions and token budget are "
         "the fastest"),
    Flag("--max-queued-requests", "engine.max_num_queued_requests", "N", integer(1),
         "samples that may wait to run; more are refused with 429"),
    Flag("--enable-prefix-caching", "engine.enable_prefix_caching", "", None,
         "reuse what is computed of equal prompt beginnings"),
    Flag("--enable-prompt-lookup", "engine.enable_prompt_lookup", "", None,
         "guess tokens from earlier text (default: where that pays; with the genai backend, where "
         "it is all or nothing, no)", shows_default=False),
    Flag("--draft-model", "engine.draft_model", "DIR", path,
         "directory of a smaller model with the same vocabulary, which guesses tokens where that "
         "pays (default: none)", shows_default=False),
    Flag("--cache-dir", "engine.cache_dir", "DIR", str,
         "directory for what makes the next start faster; \"\" = none (default: fastovms in "
         "XDG_CACHE_HOME or ~/.cache)", shows_default=False),
)  # fmt: skip

TOOL_PARSERS_OF_VLLM: Final = {
    "deepseek_v3": "deepseek",
    "glm47": "glm45",
    "granite4": "hermes3",
    "hermes": "hermes3",
    "llama3_json": "llama3",
    "llama4_json": "llama3",
    "llama4_pythonic": "pythonic",
    "openai": "gptoss",
    "phi4_mini_json": "phi4",
    "qwen3_coder": "qwen3coder",
    "qwen3_xml": "qwen3coder",
}
REASONING_PARSERS_OF_VLLM: Final = {
    "deepseek_v3": "deepseek", "glm45": "qwen3", "glm47": "qwen3", "openai_gptoss": "gptoss",
}  # fmt: skip
"""Names that vLLM has for the same formats."""

_chat = (
    Flag("--chat-template", "chat.chat_template", "FILE", template,
         "file with a Jinja template in place of the model's, or the template itself",
         shows_default=False),
    Flag("--chat-template-content-format", "chat.chat_template_content_format", "FORM",
         choice("auto", "string", "openai"),
         "the content of messages as templates get it: string, openai (a list of parts), or auto = "
         "as they read it"),
    Flag("--default-chat-template-kwargs", "chat.default_chat_template_kwargs", "JSON",
         json_object,
         "variables of the template that a request does not set, such as "
         "'{\"enable_thinking\": false}'", shows_default=False),
    Flag("--trust-request-chat-template", "chat.trust_request_chat_template", "", None,
         "a request may bring a template of its own"),
    Flag("--tool-parser", "chat.tool_parser", "NAME",
         choice("auto", "none", *TOOL_FORMATS, aliases=TOOL_PARSERS_OF_VLLM),
         f"format of the model's tool calls: {', '.join(TOOL_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--reasoning-parser", "chat.reasoning_parser", "NAME",
         choice("auto", "none", *REASONING_FORMATS, aliases=REASONING_PARSERS_OF_VLLM),
         f"format of the model's thoughts: {', '.join(REASONING_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--response-role", "chat.response_role", "ROLE", text,
         "role of the messages that are generated"),
)  # fmt: skip

_limits = (
    Flag("--max-logprobs", "api.max_logprobs", "N", integer(-1),
         "log probabilities of one token that a request may ask for; -1 = of every token there is"),
    Flag("--max-request-line", "http.max_request_line", "SIZE", size, "414 beyond it", show_size),
    Flag("--max-head", "http.max_head", "SIZE", size,
         "request line and headers together; 431 beyond it", show_size),
    Flag("--max-header-fields", "http.max_header_fields", "N", integer(1), "431 beyond it"),
    Flag("--max-body", "http.max_body", "SIZE", size, "413 beyond it", show_size),
    Flag("--max-buffered-bodies", "http.max_buffered_bodies", "SIZE", size,
         "all request bodies in memory, of which one client's may be half, or less beside others'; "
         "503 beyond it", show_size),
    Flag("--max-pipelined", "http.max_pipelined", "N", integer(1),
         "requests that wait on one connection behind the current one"),
    Flag("--max-connections", "http.max_connections", "N", integer(1), "503 beyond it"),
    Flag("--max-write-buffer", "http.max_write_buffer", "SIZE", size,
         "what may lie unread of a stream before its client is cut", show_size),
    Flag("--max-pending-chars", "api.max_pending_chars", "N", integer(1),
         "text that waits for a client which does not read its stream, before it is cut"),
    Flag("--head-timeout", "http.head_timeout", "SECONDS", _some_seconds,
         "for all headers of a request to arrive"),
    Flag("--body-timeout", "http.body_timeout", "SECONDS", _some_seconds,
         "for the whole body to arrive, and --min-body-rate for its size"),
    Flag("--min-body-rate", "http.min_body_rate", "SIZE", size,
         "bytes a second that a large body must come with", show_size),
    Flag("--keep-alive-timeout", "http.keep_alive_timeout", "SECONDS", _some_seconds,
         "idle time between two requests"),
    Flag("--write-timeout", "http.write_timeout", "SECONDS", _some_seconds,
         "a client that reads nothing of its answer for so long is cut"),
    Flag("--linger-timeout", "http.linger_timeout", "SECONDS", _seconds,
         "for reading what a client still sends after its request was refused"),
    Flag("--close-timeout", "http.close_timeout", "SECONDS", _some_seconds,
         "a client that reads nothing of its connection's last answer for so long is cut"),
    Flag("--ping-interval", "http.ping_interval", "SECONDS", _seconds,
         "silence in a stream before a comment is sent; 0 = never"),
)  # fmt: skip

_operation = (
    Flag("--drain-delay", "service.drain_delay", "SECONDS", _seconds,
         "at shutdown, how long requests are still taken while readiness says no"),
    Flag("--drain-timeout", "http.drain_timeout", "SECONDS", _seconds,
         "at shutdown, how long running requests may take to end"),
    Flag("--drain-grace", "http.drain_grace", "SECONDS", _seconds,
         "at shutdown, how long an idle connection may still bring a request"),
    Flag("--engine-timeout", "service.engine_timeout", "SECONDS", _seconds,
         "an engine that has work and ends no step for so long hangs; 0 = it may take any time"),
    Flag("--failure-grace", "service.failure_grace", "SECONDS", _seconds,
         "between the failure of an engine and the end of the process, with exit code 1"),
    Flag("--log-level", "service.log_level", "LEVEL", choice(*_LOG_LEVELS),
         ", ".join(_LOG_LEVELS)),
    Flag("--log-file", "service.log_file", "FILE", path,
         "append the log to a file, opened anew on SIGHUP (default: stderr)", shows_default=False),
    Flag("--access-log", "service.access_log", "FORM", choice("off", "text", "json"),
         "a line a request: off, text or json"),
    Flag("--access-log-file", "service.access_log_file", "FILE", path,
         "append it to a file of its own, opened anew on SIGHUP (default: where the log goes)",
         shows_default=False),
    Flag("--ovms-metrics", "service.ovms_metrics", "", None,
         "export the ovms_requests_* counters of OpenVINO Model Server too"),
)  # fmt: skip

HUB_FLAGS: Final = "models of a hub"
ENGINE_FLAGS: Final = "batching and memory"

_state = (
    Flag("--enable-store", "state.enable_store", "", None,
         "keep responses and conversations for later requests"),
    Flag("--state-dir", "state.state_dir", "DIR", text,
         "directory for them; :memory: keeps them until the end only (default: $STATE_DIRECTORY, "
         "else $XDG_STATE_HOME/fastovms)", shows_default=False),
    Flag("--state-max-age", "state.max_age", "SECONDS", _some_seconds,
         "since their last use, then they are deleted"),
    Flag("--state-max-objects", "state.max_objects", "N", integer(1),
         "responses and conversations that are kept"),
    Flag("--state-max-size", "state.max_bytes", "SIZE", size,
         "of all of them together; the ones not used for longest are deleted", show_size),
    Flag("--max-background-responses", "state.max_background", "N", integer(1),
         "responses that run without a client; more are refused with 429"),
)  # fmt: skip

_images = (
    Flag("--allowed-media-domains", "media.allowed_media_domains", "DOMAINS", text,
         "hosts that images are fetched from, separated by commas; all = any (default: none)",
         shows_default=False),
    Flag("--allowed-local-media-path", "media.allowed_local_media_path", "DIR", path,
         "images may be read from files below it that have no further hard links (default: from "
         "none)", shows_default=False),
    Flag("--allow-media-redirects", "media.allow_media_redirects", "", None,
         "follow redirects, to those hosts"),
    Flag("--allow-private-media", "media.allow_private_media", "", None,
         "fetch from addresses that are not public, too, such as the local network's"),
    Flag("--media-timeout", "media.media_timeout", "SECONDS", _some_seconds,
         "for fetching an image"),
    Flag("--max-images", "media.max_images", "N", integer(1), "images of one request"),
    Flag("--max-image-bytes", "media.max_image_bytes", "SIZE", size,
         "of one image, encoded", show_size),
    Flag("--max-image-pixels", "media.max_image_pixels", "N", integer(1),
         "of one image, width times height"),
    Flag("--max-image-memory", "media.max_image_memory", "SIZE", size,
         "for all decoded images of the requests in progress; 429 beyond it", show_size),
)  # fmt: skip

GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    HUB_FLAGS: _repository,
    "network": _network,
    "access": _access,
    ENGINE_FLAGS: _engine,
    "chat": _chat,
    "images": _images,
    "limits": _limits,
    "operation": _operation,
    "stored responses": _state,
}


def add_flags(parser: argparse.ArgumentParser, titles: Collection[str] = GROUPS) -> None:
    """Adds the groups with the given titles."""
    for title, flags in GROUPS.items():
        if title not in titles:
            continue
        group = parser.add_argument_group(title)
        for flag in flags:
            _add_flag(group, flag)


def _add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    options: dict[str, Any] = {
        "dest": flag.field,
        "default": argparse.SUPPRESS,
        "help": _help(flag),
    }
    if flag.parse is None:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"metavar": flag.metavar, "type": flag.parse}
        if flag.repeats:
            options["action"] = "append"
    group.add_argument(flag.name, **options)


def _help(flag: Flag) -> str:
    if not flag.shows_default or flag.default is None:
        return flag.help
    shown = ("yes" if flag.default else "no") if flag.parse is None else flag.show(flag.default)
    return f"{flag.help} (default: {shown})".replace("%", "%%")
