"""Decides how many requests OpenVINO GenAI's pipeline is given at once.

When half-read prompts fill the KV cache, the pipeline gives all of them up. So no more prompts are
admitted than it can hold.

With prompt lookup a step raises, and the pipeline is lost, when the drafts of all sequences are
more than it may compute, and when the KV cache is full and a sequence is preempted. So no more
requests are admitted then than can run to their ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fastovms.backends.genai.pipeline import CacheCapacity
from fastovms.backends.genai.support import Assistance, num_assistant_tokens, token_budget
from fastovms.config.engine_config import EngineConfig
from fastovms.params import MAX_DRAFT_TOKENS, GenerationRequest

_PIXELS_PER_TOKEN: Final = 28 * 28
"""How many pixels make a token in Qwen's models, which see images in their own sizes."""

_MIN_IMAGE_TOKENS: Final = 256
"""How many tokens an image has in models that see all of them in one size."""


class PipelineNeed(NamedTuple):
    """What a request takes of the pipeline, or what the pipeline has.

    Attributes:
        num_seqs: how many sequences.
        num_step_tokens: how many tokens of a step, once the prompt is computed, where that counts.
        num_blocks: how many blocks of the KV cache.
    """

    num_seqs: int
    num_step_tokens: int = 0
    num_blocks: int = 0

    def plus(self, other: PipelineNeed) -> PipelineNeed:
        return PipelineNeed(*(mine + its for mine, its in zip(self, other, strict=True)))

    def fits(self, limits: PipelineNeed) -> bool:
        return all(mine <= limit for mine, limit in zip(self, limits, strict=True))


def longest_context(config: EngineConfig, capacity: CacheCapacity) -> int:
    """Returns how many tokens of one sequence the cache holds beside its drafts."""
    num_drafts = MAX_DRAFT_TOKENS if Assistance.of(config) else 0
    return max(1, capacity.num_tokens - num_drafts)


class Admission:
    """Says what may run beside what already does."""

    def __init__(self, config: EngineConfig, capacity: CacheCapacity, max_model_len: int) -> None:
        self._assistance = Assistance.of(config)
        self._block_size = capacity.block_size
        self._max_model_len = max_model_len
        self._limits = PipelineNeed(config.max_num_seqs, token_budget(config), capacity.num_blocks)

    def need(self, request: GenerationRequest, num_seqs: int) -> PipelineNeed:
        """Returns what a request needs. `num_seqs` is the number of its beams; samples run one by
        one."""
        if not self._assistance.prompt_lookup:
            return PipelineNeed(
                num_seqs, num_blocks=self._num_blocks(self._num_prompt_tokens(request))
            )
        num_drafts = num_assistant_tokens(request.params)
        num_tokens = self._num_tokens(request) + num_drafts
        return PipelineNeed(num_seqs, num_drafts + 1, self._num_blocks(num_tokens))

    def room(self, running: Iterable[PipelineNeed]) -> PipelineRoom:
        room = PipelineRoom(self._limits)
        for need in running:
            room.take(need)
        return room

    def _num_blocks(self, num_tokens: int) -> int:
        return num_tokens // self._block_size + 1

    def _num_prompt_tokens(self, request: GenerationRequest) -> int:
        """Returns the length of a prompt. How many tokens its images have is guessed."""
        num_tokens = len(request.prompt_token_ids)
        for image in request.prompt.images if request.prompt else ():
            height, width, _ = image.shape
            num_tokens += max(_MIN_IMAGE_TOKENS, height * width // _PIXELS_PER_TOKEN)
        return min(num_tokens, self._max_model_len)

    def _num_tokens(self, request: GenerationRequest) -> int:
        """Returns the most tokens that prompt and output may have. Nobody knows yet how many tokens
        images have."""
        limit = request.params.max_tokens
        has_images = request.prompt is not None and request.prompt.images
        if limit is None or has_images:
            return self._max_model_len
        return min(len(request.prompt_token_ids) + limit, self._max_model_len)


class PipelineRoom:
    """What is left for further requests. A request that is alone always has room."""

    def __init__(self, limits: PipelineNeed) -> None:
        self._limits = limits
        self._taken = PipelineNeed(0)

    def has(self, need: PipelineNeed) -> bool:
        return not self._taken.num_seqs or self._taken.plus(need).fits(self._limits)

    def take(self, need: PipelineNeed) -> None:
        self._taken = self._taken.plus(need)
