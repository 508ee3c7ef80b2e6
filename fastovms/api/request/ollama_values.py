"""Declares what Ollama's clients put into `options`, and reads the values."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

Whole = int | float
"""An integer, which Ollama takes as 5.0, too."""


class OllamaOptions(Struct, frozen=True, kw_only=True):
    """What `options` may hold. Those behind `stop` say how Ollama loads a model, or are of samplers
    that few have."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None
    num_predict: Whole | None = None
    num_ctx: Whole | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None

    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Whole | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None
    num_keep: Whole | None = None
    num_batch: Whole | None = None
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


_FRACTIONS: Final = frozenset(
    (
        "temperature",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "typical_p",
        "tfs_z",
        "mirostat_tau",
        "mirostat_eta",
    )
)
"""The options that need not be whole numbers."""


def option_values(options: OllamaOptions) -> dict[str, Any]:
    """Returns each option's value, None where it is not given.

    Raises:
        InvalidField: one is no whole number, though it has to be. It may have a fraction of zero.
    """
    return {name: _value(options, name) for name in options.__struct_fields__}


def _value(options: OllamaOptions, name: str) -> Any:
    value = getattr(options, name)
    if not isinstance(value, float) or name in _FRACTIONS:
        return value
    if not value.is_integer():
        param = f"options.{name}"
        raise InvalidField(f"{param} must be an integer, not {show(value)}", param=param)
    return int(value)
