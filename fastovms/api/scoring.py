"""Log probabilities of prompts, without a text: what evaluation harnesses ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fastovms.api.generate import failure
from fastovms.api.sampling import Queueing
from fastovms.backends.base import Backend
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
)


class PromptScore(NamedTuple):
    """`logprobs` has one entry for each token, the first being None."""

    logprobs: Sequence[TokenLogprobs | None]
    num_cached_tokens: int


async def score_prompts(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    num_top: int,
    *,
    request_id: str,
    queueing: Queueing,
) -> list[PromptScore]:
    """Runs the prompts for one token each, which is dropped.

    Args:
        num_top: top log probabilities of each token, or `ALL_LOGPROBS`.

    Raises:
        RequestError: a prompt can never run.
        BackendError: the backend cannot take the prompts, or failed on the way.
    """
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=num_top)
    requests = [
        GenerationRequest(f"{request_id}-{position}", token_ids, params, *queueing)
        for position, token_ids in enumerate(prompts)
    ]
    scores: dict[int, PromptScore] = {}
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_output(position: int, output: GenerationOutput) -> None:
        if done.done():
            return
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            done.set_exception(failure(output))
            return
        scores[position] = PromptScore(output.prompt_logprobs, output.num_cached_tokens)
        if len(scores) == len(requests):
            done.set_result(None)

    try:
        for position, request in enumerate(requests):
            backend.submit(request, partial(on_output, position))
        await done
    finally:
        if len(scores) < len(requests):
            for request in requests:
                backend.abort(request.request_id)
    return [scores[position] for position in range(len(requests))]
