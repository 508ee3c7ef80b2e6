"""Computes log probabilities of prompts, without a text: what evaluation harnesses ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fastovms.api.generation.cut_generation import failure
from fastovms.api.generation.submission import submit_all
from fastovms.api.request.common_fields import Queueing
from fastovms.backend import GenerationBackend
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
)


class PromptScore(NamedTuple):
    """The log probabilities of one prompt: `logprobs` has an entry for each token, the first being
    None."""

    logprobs: Sequence[TokenLogprobs | None]
    num_cached_tokens: int


async def score_prompts(
    backend: GenerationBackend,
    prompts: Sequence[Sequence[int]],
    num_top: int,
    *,
    request_id: str,
    queueing: Queueing,
) -> list[PromptScore]:
    """Runs the prompts for one token each, which is dropped.

    Args:
        num_top: how many top log probabilities of each token, or `ALL_LOGPROBS`.

    Raises:
        RequestError: a prompt can never run.
        BackendError: the backend cannot take the prompts, or failed on the way.
    """
    requests = [
        _scoring_request(
            f"{request_id}-{position}", token_ids, num_top, backend.model.max_model_len, queueing
        )
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
        logprobs = (*output.prompt_logprobs, *output.logprobs)
        scores[position] = PromptScore(logprobs, output.num_cached_tokens)
        if len(scores) == len(requests):
            done.set_result(None)

    try:
        submit_all(
            backend,
            [(request, partial(on_output, position)) for position, request in enumerate(requests)],
        )
        await done
    finally:
        if len(scores) < len(requests):
            for request in requests:
                backend.abort(request.request_id)
    return [scores[position] for position in range(len(requests))]


def _scoring_request(
    request_id: str,
    token_ids: Sequence[int],
    num_top: int,
    max_model_len: int,
    queueing: Queueing,
) -> GenerationRequest:
    """Returns a request that scores a prompt. One that fills the context leaves no room for a token
    to drop: its last one is then generated, as the only one allowed. What is reported of it are the
    raw logits all the same."""
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=num_top)
    if len(token_ids) == max_model_len:
        params = replace(params, logprobs=num_top, allowed_token_ids=(token_ids[-1],))
        token_ids = token_ids[:-1]
    return GenerationRequest(request_id, token_ids, params, **queueing._asdict())
