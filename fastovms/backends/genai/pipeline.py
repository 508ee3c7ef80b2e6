"""Declares what the engine needs of `openvino_genai.ContinuousBatchingPipeline`, and loads one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import openvino as ov
import openvino_genai as genai

from fastovms.backends.genai.support import Assistance, has_prefix_cache, token_budget
from fastovms.backends.model_files.required_files import weights_file
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, exact_properties
from fastovms.engine.model.graph.paging import reason_of
from fastovms.engine.model.machine.device_memory import FREE_MEMORY_SHARE, GIB
from fastovms.engine.model.machine.devices import (
    device_memory,
    find_device,
    is_cpu,
    is_gpu,
    share_of_cpu,
)
from fastovms.errors import ConfigurationError

_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_KV_PRECISION: Final = "KV_CACHE_PRECISION"
_BLOCK_SIZE: Final = 32
_GPU_BLOCK_SIZE: Final = 16


class GenerationHandle(Protocol):
    """What is used of `openvino_genai.GenerationHandle`."""

    def can_read(self) -> bool: ...
    def read(self) -> dict[int, Any]: ...
    def get_status(self) -> Any: ...
    def cancel(self) -> None: ...
    def get_perf_metrics(self) -> Any: ...


class Pipeline(Protocol):
    """What is used of `openvino_genai.ContinuousBatchingPipeline`."""

    def add_request(self, request_id: int, *arguments: Any) -> GenerationHandle: ...
    def step(self) -> None: ...
    def has_non_finished_requests(self) -> bool: ...
    def get_metrics(self) -> Any: ...
    def get_tokenizer(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """The size of the KV cache."""

    num_blocks: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def load_pipeline(
    model_dir: Path, config: EngineConfig, *, available: int
) -> tuple[Pipeline, CacheCapacity]:
    """Loads a pipeline, which takes seconds or minutes.

    Args:
        available: bytes of memory that a cache of automatic size takes its share of.

    Raises:
        ConfigurationError: the pipeline cannot run the model, or not on the device.
    """
    device = find_device(ov.Core(), config.device)
    if is_gpu(device):
        available = device_memory(ov.Core(), device)
    size = config.cache_size * GIB if config.cache_size else available * FREE_MEMORY_SHARE
    block_size = _GPU_BLOCK_SIZE if is_gpu(device) else _BLOCK_SIZE
    try:
        if size >= GIB:
            pipeline = _load(model_dir, config, device, cache_size=int(size // GIB))
        else:
            # The pipeline takes whole gigabytes or a number of blocks, and tells what a block
            # takes only once it has a cache.
            growing = _load(model_dir, config, device)
            num_blocks = int(size / _bytes_per_block(growing))
            del growing
            if num_blocks < 2:
                raise ConfigurationError(
                    f"a KV cache of {size / GIB:.2g} GB holds no two blocks: raise --cache-size"
                )
            pipeline = _load(model_dir, config, device, num_kv_blocks=num_blocks)
        return pipeline, CacheCapacity(_num_blocks(pipeline), block_size)
    except RuntimeError as error:
        raise ConfigurationError(
            f"the genai backend cannot run the model in {model_dir}: {reason_of(error)}"
        ) from error


def _load(model_dir: Path, config: EngineConfig, device: str, **cache: int) -> Pipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.max_num_batched_tokens = token_budget(config)
    scheduler.enable_prefix_caching = has_prefix_cache(config)
    scheduler.cache_size = 0
    for name, value in cache.items():
        setattr(scheduler, name, value)
    weights_size = weights_file(model_dir).stat().st_size
    properties = properties_of(config, device, weights_size=weights_size)
    if config.enable_prompt_lookup:
        properties["prompt_lookup"] = True
    if config.draft_model is not None:
        properties["draft_model"] = genai.draft_model(
            str(config.draft_model), device, **_share_of(device)
        )
    pipeline: Pipeline = genai.ContinuousBatchingPipeline(model_dir, scheduler, device, properties)
    _warm_up(pipeline, Assistance.of(config))
    return pipeline


def properties_of(config: EngineConfig, device: str, *, weights_size: int) -> dict[str, object]:
    """Returns OpenVINO's properties. The smallest models are computed exactly, as by the paged
    backend, and what a cache of f32 is to hold must be of f32; f32 takes no cache of bf16.

    Args:
        weights_size: size in bytes of the part of the model that generates the text.
    """
    given = {**_share_of(device), **config.plugin_config}
    is_exact = config.precision == "exact" or given.get(_KV_PRECISION) == "f32"
    is_small = weights_size <= EXACT_WEIGHTS_SIZE and given.get(_KV_PRECISION) != "bf16"
    if not is_exact and not (is_cpu(device) and is_small):
        return given
    properties = exact_properties(device, given)
    if is_cpu(device) and properties[_PRECISION] == "f32":
        properties.setdefault(_KV_PRECISION, "f32")
    return properties


def _share_of(device: str) -> dict[str, object]:
    return share_of_cpu() if is_cpu(device) else {}


def _warm_up(pipeline: Pipeline, assistance: Assistance) -> None:
    """Generates one token, so that the first request finds everything in place, and a model that
    cannot run is found out now."""
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = 1
    if assistance:
        config.num_assistant_tokens = 1
    if assistance.prompt_lookup:
        config.max_ngram_size = 1
    handle = pipeline.add_request(0, "a", config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    del handle  # without it, the pipeline would have dropped the request


def _num_blocks(pipeline: Pipeline) -> int:
    """Returns how many blocks the cache has. The warm-up has used one of them, by which their
    number is known."""
    return max(1, round(100 / float(pipeline.get_metrics().cache_usage)))


def _bytes_per_block(pipeline: Pipeline) -> int:
    return math.ceil(int(pipeline.get_metrics().kv_cache_size_in_bytes) / _num_blocks(pipeline))
