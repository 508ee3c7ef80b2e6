"""Reserves the KV caches of a model and of its draft model."""

from __future__ import annotations

import logging
import math

from fastovms.config.engine_config import EngineConfig
from fastovms.engine.drafting.draft_model import DraftModel
from fastovms.engine.model.machine.device_memory import GIB, MIB, available_memory, num_cache_blocks
from fastovms.engine.model.model import Model
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)


def reserve_cache(
    paged_model: Model,
    draft_model: DraftModel | None,
    model: ModelInfo,
    config: EngineConfig,
    available: int | None,
) -> int:
    """Reserves the caches of both models for equally many tokens, and returns how many blocks the
    first one's has.

    Args:
        available: bytes of memory that a cache of automatic size takes its share of; None = all
            that is free.

    Raises:
        ConfigurationError: no block fits.
    """
    block_size = paged_model.block_size
    bytes_per_block = paged_model.bytes_per_block
    states = paged_model.states
    if draft_model is not None:
        bytes_per_block += math.ceil(block_size * draft_model.bytes_per_token)
    max_num_seqs = min(config.max_num_seqs, config.token_budget)  # see `Scheduler`
    max_useful_blocks = max_num_seqs * -(-model.max_model_len // block_size)
    num_blocks = num_cache_blocks(
        config.cache_size,
        bytes_per_block=bytes_per_block,
        extra_bytes=states.extra_bytes if states is not None else 0,
        max_useful_blocks=max_useful_blocks,
        available=available_memory() if available is None else available,
    )
    if num_blocks < 1:
        size = f"of {config.cache_size:g} GB" if config.cache_size else "in the free memory"
        raise ConfigurationError(
            f"a KV cache {size} holds no block ({bytes_per_block} bytes each): raise --cache-size"
        )
    paged_model.allocate_cache(num_blocks)
    if draft_model is not None:
        draft_model.allocate_cache(num_blocks * block_size)
    logger.info("KV cache: %d blocks of %d tokens", num_blocks, block_size)
    if states is not None:
        logger.info(
            "KV cache: states beside attention take %.3g of the %.3g MB of a block, and %.3g "
            "MB beside the blocks; cached prefixes are multiples of %d tokens",
            states.num_bytes / MIB,
            paged_model.bytes_per_block / MIB,
            states.extra_bytes / MIB,
            block_size,
        )
    if num_blocks == max_useful_blocks and config.cache_size:
        logger.info(
            "KV cache: %.3g of %.3g GB, as %d sequences of %d tokens can use no more",
            num_blocks * bytes_per_block / GIB,
            config.cache_size,
            max_num_seqs,
            model.max_model_len,
        )
    return num_blocks
