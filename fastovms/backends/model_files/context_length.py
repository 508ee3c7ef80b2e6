"""Shortens the context of a model to what the operator wants, and to what the KV cache holds."""

from __future__ import annotations

import logging
from dataclasses import replace

from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)


def limit_context(model: ModelInfo, max_model_len: int | None) -> ModelInfo:
    """Returns the model with the context that the operator wants; None = its own.

    Raises:
        ConfigurationError: the model's is shorter.
    """
    if max_model_len is None:
        return model
    if max_model_len > model.max_model_len:
        raise ConfigurationError(
            f"--max-model-len must be at most {model.max_model_len}, the context length of "
            f"{model.name}, not {max_model_len}"
        )
    return replace(model, max_model_len=max_model_len)


def fit_cache(model: ModelInfo, num_tokens: int) -> ModelInfo:
    """Returns the model with a context that its KV cache can hold, and with the reason, for
    clients, where that is less than its own.

    Args:
        num_tokens: how many tokens of one sequence the cache holds.
    """
    if num_tokens >= model.max_model_len:
        return model
    logger.warning(
        "context length reduced from %d to the %d tokens that the KV cache holds",
        model.max_model_len,
        num_tokens,
    )
    reason = (
        "The KV cache of this server holds no more; without that limit it would be "
        f"{model.max_model_len} tokens."
    )
    return replace(model, max_model_len=num_tokens, context_reason=reason)
