"""Frozen configuration. Each default stands here and nowhere else; the CLI reads them from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs a model.

    Attributes:
        device: OpenVINO device name.
        plugin_config: properties handed to `compile_model` unchanged.
        cache_size: KV cache in GB; 0 = a share of the memory that is free at start.
        max_num_seqs: sequences that run in one step.
        max_num_batched_tokens: token budget of one step.
        max_num_queued_requests: samples that may wait to run; more are refused as overload.
        enable_prefix_caching: reuse the KV blocks of equal prompt beginnings.
    """

    device: str = "CPU"
    plugin_config: Mapping[str, object] = field(default_factory=dict)
    cache_size: float = 0.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 256
    max_num_queued_requests: int = 1024
    enable_prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where to listen and what a client may cost. Sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    backlog: int = 2048
    max_request_line: int = 16 * 1024
    max_head: int = 64 * 1024
    max_header_fields: int = 128
    max_body: int = 64 * 1024 * 1024
    max_pipelined: int = 16


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """What one request may ask for, beyond the limits of the model and of the contracts.

    Attributes:
        max_prompts: prompts in one completions request.
        max_choices: samples of all its prompts together.
        max_stop_strings: stop strings, where the contract sets no lower limit.
        max_stop_length: characters of one stop string.
        max_pending_chars: text that waits for a client which does not read its stream.
    """

    max_prompts: int = 1024
    max_choices: int = 1024
    max_stop_strings: int = 256
    max_stop_length: int = 1024
    max_pending_chars: int = 1024 * 1024
