"""Declares which models are in memory: a section of the configuration, as those of `config` are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResidencyConfig:
    """Which models are in memory. Times in seconds; None = no limit.

    Attributes:
        max_loaded_models, model_memory: how many, and bytes of their weights and KV caches.
        idle_unload: models that nobody has used for so long are unloaded; 0 = never.
        wait_timeout: how long a request waits for its model; 503 beyond it.
        poll_interval: between two looks at the file of `--config-path`; 0 = none.
    """

    max_loaded_models: int | None = None
    model_memory: int | None = None
    idle_unload: float = 0.0
    wait_timeout: float = 300.0
    poll_interval: float = 1.0
