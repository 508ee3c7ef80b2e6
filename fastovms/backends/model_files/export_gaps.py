"""Warns of what optimum-intel leaves out of the models that it exports, so that no graph can tell
of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)

Config = Mapping[str, Any]


def _soft_cap(config: Config) -> str | None:
    cap = config.get("attn_logit_softcapping")
    if not isinstance(cap, int | float):
        return None
    return (
        f"attn_logit_softcapping ({cap:g}), the soft cap of attention scores, is not in the "
        "exported graph: answers differ a little from those of the original model"
    )


def _dynamic_scaling(config: Config) -> str | None:
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return None
    if scaling.get("rope_type", scaling.get("type")) != "dynamic":
        return None
    return (
        "the exported graph has no dynamic scaling of positions (NTK): the context is that of "
        "unscaled ones"
    )


_GAPS: Final[tuple[Callable[[Config], str | None], ...]] = (_soft_cap, _dynamic_scaling)


def log_gaps(model: ModelInfo) -> None:
    """Warns of what config.json says of the attention and no exported graph has."""
    text_config = model.config.get("text_config")
    config = text_config if isinstance(text_config, dict) else model.config
    for find in _GAPS:
        gap = find(config)
        if gap is not None:
            logger.warning("%s: %s", model.name, gap)
