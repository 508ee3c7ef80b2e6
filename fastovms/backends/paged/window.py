"""Models whose layers see only the last tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)


def fit_window(model: ModelInfo, *, is_applied: bool) -> ModelInfo:
    """Within a sliding window all attention is full. So where the compiled model does not apply
    the window that config.json speaks of, the context shrinks to it, lest the model be asked for
    what it has not learned."""
    window = sliding_window(model.config)
    if is_applied or window is None or window >= model.max_model_len:
        return model
    logger.warning(
        "the exported graph does not show its sliding window: context length reduced from %d to "
        "its %d tokens",
        model.max_model_len,
        window,
    )
    return replace(model, max_model_len=window)


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """The window that config.json says some layers have, in tokens, or None."""
    scope = config.get("text_config")
    scope = scope if isinstance(scope, dict) else config
    window = scope.get("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return None
    layers = scope.get("layer_types")
    is_used = scope.get("use_sliding_window") is not False and (
        not isinstance(layers, list) or "sliding_attention" in layers
    )
    return window if is_used else None
