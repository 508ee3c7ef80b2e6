"""Shrinks the context of models whose layers do not see all that is before a token, where the
compiled model would show it to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastovms.engine.model.graph.paging import ExactLength, PagedGraph, applies_sliding_window
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)


_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Keys of config.json that may hold a window."""

_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
"""Types of layers in config.json that have one."""


MIN_EXACT_LEN = 16
"""The fewest tokens that texts must be able to have for a model to be worth serving."""


def fit_attention(model: ModelInfo, graph: PagedGraph) -> ModelInfo:
    """Returns the model with the context in which its attention is computed as it has learned it.

    Raises:
        ConfigurationError: hardly any text is as short as that.
    """
    model = fit_length(model, graph.max_exact_len)
    return fit_window(model, is_applied=applies_sliding_window(graph.model))


def fit_length(model: ModelInfo, limit: ExactLength | None) -> ModelInfo:
    """Raises ConfigurationError: hardly any text is as short as that."""
    if limit is None or limit.num_tokens >= model.max_model_len:
        return model
    if limit.num_tokens < MIN_EXACT_LEN:
        raise ConfigurationError(f"{model.name} cannot be served: {limit.reason}")
    logger.warning(
        "%s is exact for short texts only, as %s: context length reduced from %d to %d tokens",
        model.name,
        limit.reason,
        model.max_model_len,
        limit.num_tokens,
    )
    return replace(model, max_model_len=limit.num_tokens)


def fit_window(model: ModelInfo, *, is_applied: bool) -> ModelInfo:
    """Returns what is known of the model, with a context that fits into its sliding window if need
    be. Within a window all attention is full. So where the compiled model does not apply the window
    that config.json speaks of, the context shrinks to it, so that the model is not asked for what
    it has not learned."""
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
    """Returns the window that config.json says some layers have, in tokens, or None."""
    scope = config.get("text_config")
    scope = scope if isinstance(scope, dict) else config
    window = next((scope[name] for name in _WINDOWS if scope.get(name)), None)
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return None
    layers = scope.get("layer_types")
    layers = layers if isinstance(layers, list) else scope.get("attention_layers")
    is_used = scope.get("use_sliding_window") is not False and (
        not isinstance(layers, list) or not _WINDOWED.isdisjoint(layers)
    )
    return window if is_used else None
