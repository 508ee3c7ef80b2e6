"""Declares how an engine computes: its memory, its steps and its stored prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
