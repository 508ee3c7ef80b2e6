"""Builds OpenVINO GenAI's pipeline, and limits the requests that it runs at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai

from fastovms.backends.model_task import weights_file
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, exact_properties
from fastovms.engine.model.devices import (
    FREE_MEMORY_SHARE,
    GIB,
    device_memory,
    find_device,
    is_cpu,
    is_gpu,
    is_npu,
    log_lack,
    reason_of,
    share_of_cpu,
)
from fastovms.errors import ConfigurationError, InvalidField
from fastovms.params import MAX_DRAFT_TOKENS, GenerationRequest
from fastovms.parts.genai.one_request import OneRequestPipeline, load_one_request_pipeline
from fastovms.parts.genai.support import (
    DraftSource,
    has_prefix_cache,
    num_assistant_tokens,
    token_budget,
)


class PromptReader:
    """Converts prompts to the pipeline's inputs: token ids, or text with images for models with
    image support. For a text, the pipeline tokenizes and adds special tokens itself. `tokenizer` is
    an `openvino_genai.Tokenizer`."""

    def __init__(self, tokenizer: Any, *, takes_images: bool) -> None:
        self._tokenizer = tokenizer
        self._takes_images = takes_images
        self._start = self._encode("") if takes_images else []
        self._start_text = self._decode(self._start) if self._start else ""

    def arguments(self, request: GenerationRequest) -> tuple[Any, ...]:
        """Returns the arguments of `add_request` between id and configuration. Raises InvalidField
        if the prompt has token ids that do not correspond to a text."""
        if not self._takes_images:
            return (ov.Tensor(np.array([request.prompt_token_ids], np.int64)),)
        if request.prompt is None:
            return self._text_of(request), []
        text = request.prompt.text
        if self._start_text:
            text = text.removeprefix(self._start_text)
        return text, [
            ov.Tensor(np.ascontiguousarray(image[np.newaxis])) for image in request.prompt.images
        ]

    def _text_of(self, request: GenerationRequest) -> str:
        token_ids = list(request.prompt_token_ids)
        if token_ids[: len(self._start)] == self._start:
            text = self._decode(token_ids[len(self._start) :])
            if self._encode(text) == token_ids:
                return text
        raise InvalidField.about(
            "prompt",
            "must be a text for this model: it supports images, and these token ids "
            "do not correspond to a text",
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).input_ids.data[0].tolist()
        return ids

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))


_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_KV_PRECISION: Final = "KV_CACHE_PRECISION"
_BLOCK_SIZE: Final = 32
_GPU_BLOCK_SIZE: Final = 16


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
) -> tuple[genai.ContinuousBatchingPipeline | OneRequestPipeline, CacheCapacity]:
    """Loads a pipeline, which takes seconds or minutes. Raises ConfigurationError if the pipeline
    cannot run the model on the device.

    Args:
        available: free memory in bytes, for a KV cache of automatic size.
    """
    device = find_device(ov.Core(), config.device, allows_npu=True)
    if is_npu(device):
        return _load_on_npu(model_dir, config, device)
    if is_gpu(device):
        available = device_memory(ov.Core(), device)
    wanted = config.cache_size * GIB
    size = min(wanted, available) if wanted else available * FREE_MEMORY_SHARE
    if size < wanted:
        log_lack(config.cache_size, size)
    block_size = _GPU_BLOCK_SIZE if is_gpu(device) else _BLOCK_SIZE
    try:
        if size >= GIB:
            pipeline = _load(model_dir, config, device, cache_size=int(size // GIB))
        else:
            # The pipeline accepts whole GiB or a number of blocks, and the size of a block is
            # known only once there is a cache.
            growing = _load(model_dir, config, device)
            used = int(growing.get_metrics().kv_cache_size_in_bytes)
            num_blocks = int(size / math.ceil(used / _num_blocks(growing)))
            del growing
            if num_blocks < 2:
                raise ConfigurationError(
                    f"a KV cache of {size / GIB:.2g} GiB holds fewer than two blocks: raise "
                    "--cache-size"
                )
            pipeline = _load(model_dir, config, device, num_kv_blocks=num_blocks)
        return pipeline, CacheCapacity(_num_blocks(pipeline), block_size)
    except RuntimeError as error:
        raise ConfigurationError(
            f"the genai backend cannot run the model in {model_dir}: {reason_of(error)}"
        ) from error


def _load_on_npu(
    model_dir: Path, config: EngineConfig, device: str
) -> tuple[OneRequestPipeline, CacheCapacity]:
    try:
        pipeline, lengths = load_one_request_pipeline(model_dir, config, device)
        _warm_up(pipeline, DraftSource())
    except RuntimeError as error:
        raise ConfigurationError(
            f"{device} cannot run the model in {model_dir}: {reason_of(error)}"
        ) from error
    return pipeline, CacheCapacity(sum(lengths), block_size=1)


def _load(
    model_dir: Path, config: EngineConfig, device: str, **cache: int
) -> genai.ContinuousBatchingPipeline:
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
    pipeline = genai.ContinuousBatchingPipeline(model_dir, scheduler, device, properties)
    _warm_up(pipeline, DraftSource.of(config))
    return pipeline


def properties_of(config: EngineConfig, device: str, *, weights_size: int) -> dict[str, object]:
    """Returns OpenVINO's properties. The smallest models are computed in f32, as in the paged
    backend. An f32 cache requires f32 inference, which in turn does not support a bf16 cache.

    Args:
        weights_size: the bytes of the model part that generates text.
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


def _warm_up(
    pipeline: genai.ContinuousBatchingPipeline | OneRequestPipeline, assistance: DraftSource
) -> None:
    """Generates one token, so that the first request is fast, and an unsupported model is detected
    at once."""
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
    del handle  # prevents that the pipeline drops the request


def _num_blocks(pipeline: genai.ContinuousBatchingPipeline) -> int:
    """Returns the number of blocks of the KV cache, computed from its usage while the warm-up holds
    one block."""
    return max(1, round(100 / float(pipeline.get_metrics().cache_usage)))


_PIXELS_PER_TOKEN: Final = 28 * 28
"""The number of image pixels per token in Qwen's models, which process images in their original
size."""

_MIN_IMAGE_TOKENS: Final = 256
"""The number of tokens per image in models that resize all images to one size."""


class RequiredResources(NamedTuple):
    """The resources that a request needs, or that the pipeline has.

    Attributes:
        num_step_tokens: the tokens per step after the prompt, if limited.
        num_blocks: the number of blocks of the KV cache.
    """

    num_seqs: int
    num_step_tokens: int = 0
    num_blocks: int = 0

    def plus(self, other: RequiredResources) -> RequiredResources:
        """Returns the sum of two needs."""
        return RequiredResources(*(mine + its for mine, its in zip(self, other, strict=True)))

    def fits(self, limits: RequiredResources) -> bool:
        """Returns whether no need exceeds its limit."""
        return all(mine <= limit for mine, limit in zip(self, limits, strict=True))


def longest_context(config: EngineConfig, capacity: CacheCapacity) -> int:
    """Returns the number of tokens of the longest sequence that fits into the KV cache together
    with its draft tokens."""
    num_drafts = MAX_DRAFT_TOKENS if DraftSource.of(config) else 0
    return max(1, capacity.num_tokens - num_drafts)


class Admission:
    """Decides which waiting requests may start in addition to the running ones.

    If partly computed prompts fill the KV cache, the pipeline drops all of them, so no more prompts
    are admitted than the cache can hold. With prompt lookup, a step fails and the pipeline is lost
    if the drafts of all sequences exceed the token budget, or if the KV cache is full and a
    sequence is preempted. In that case no more requests are admitted than can run to their ends.
    """

    def __init__(self, config: EngineConfig, capacity: CacheCapacity, max_model_len: int) -> None:
        self._assistance = DraftSource.of(config)
        self._block_size = capacity.block_size
        self._max_model_len = max_model_len
        self._limits = RequiredResources(
            config.max_num_seqs, token_budget(config), capacity.num_blocks
        )

    def need(self, request: GenerationRequest, num_seqs: int) -> RequiredResources:
        """Returns the resources that a request needs. `num_seqs` is the number of its beams;
        samples run one after another."""
        if not self._assistance.prompt_lookup:
            return RequiredResources(
                num_seqs, num_blocks=self._num_blocks(self._num_prompt_tokens(request))
            )
        num_drafts = num_assistant_tokens(request.params)
        num_tokens = self._num_tokens(request) + num_drafts
        return RequiredResources(num_seqs, num_drafts + 1, self._num_blocks(num_tokens))

    def room(self, running: Iterable[RequiredResources]) -> PipelineCapacity:
        """Returns the capacity that the running requests leave."""
        room = PipelineCapacity(self._limits)
        for need in running:
            room.take(need)
        return room

    def _num_blocks(self, num_tokens: int) -> int:
        return num_tokens // self._block_size + 1

    def _num_prompt_tokens(self, request: GenerationRequest) -> int:
        """Returns the number of tokens of a prompt; image tokens are estimated."""
        num_tokens = len(request.prompt_token_ids)
        for image in request.prompt.images if request.prompt else ():
            height, width, _ = image.shape
            num_tokens += max(_MIN_IMAGE_TOKENS, height * width // _PIXELS_PER_TOKEN)
        return min(num_tokens, self._max_model_len)

    def _num_tokens(self, request: GenerationRequest) -> int:
        """Returns the maximum number of tokens of prompt and output; image tokens are estimated."""
        limit = request.params.max_tokens
        has_images = request.prompt is not None and request.prompt.images
        if limit is None or has_images:
            return self._max_model_len
        return min(len(request.prompt_token_ids) + limit, self._max_model_len)


class PipelineCapacity:
    """The pipeline's capacity for further requests. A request that would run alone always fits."""

    def __init__(self, limits: RequiredResources) -> None:
        self._limits = limits
        self._taken = RequiredResources(0)

    def has(self, need: RequiredResources) -> bool:
        """Returns whether a request with these needs may start."""
        return not self._taken.num_seqs or self._taken.plus(need).fits(self._limits)

    def take(self, need: RequiredResources) -> None:
        """Reserves the resources of a request that starts."""
        self._taken = self._taken.plus(need)
