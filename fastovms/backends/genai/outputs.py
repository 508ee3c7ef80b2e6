"""Converts outputs and refusals of OpenVINO GenAI's pipeline into those of `GenerationBackend`."""

from __future__ import annotations

from typing import Any, Final

import openvino_genai as genai

from fastovms.backends.genai.generation_config import stop_token_ids
from fastovms.engine.model.graph.paging import reason_of
from fastovms.errors import RequestError
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    ModelInfo,
    Refusal,
    SamplingParams,
    TextPrompt,
    TokenLogprobs,
)

TOO_LONG: Final = "'max_length' must be greater"
"""The pipeline's message about a prompt that is as long as the context."""

_CLIENTS_FAULTS: Final = (RuntimeError, IndexError, ValueError)
"""The exceptions by which the pipeline refuses what it is given."""

_FINISH_REASONS: Final = {
    genai.GenerationFinishReason.STOP: FinishReason.STOP,
    genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


def output_of(
    params: SamplingParams,
    index: int,
    token_ids: list[int],
    logprobs: list[float],
    finish_reason: Any,
    *,
    num_generated_tokens: int,
) -> GenerationOutput:
    output = GenerationOutput(
        index, token_ids, _FINISH_REASONS.get(finish_reason), num_generated_tokens
    )
    if output.finish_reason is FinishReason.STOP and token_ids:
        last = token_ids[-1]
        if last in stop_token_ids(params):
            output.token_ids = token_ids[:-1]
            if params.ignore_eos or last not in params.eos_token_ids:
                output.stop_token_id = last
            else:
                token_ids = token_ids[:-1]
    if params.logprobs is not None:
        output.logprobs = [
            _token_logprobs(token_id, logprob, params.logprobs)
            for token_id, logprob in zip(token_ids, logprobs, strict=False)
        ]
    return output


def _token_logprobs(token_id: int, logprob: float, num_top: int) -> TokenLogprobs:
    """Returns log probabilities of the chosen token; the pipeline tells of no other."""
    return TokenLogprobs(
        token_id,
        logprob,
        rank=1,
        top_token_ids=[token_id] * num_top,
        top_logprobs=[logprob] * num_top,
    )


def failed(index: int, error: str, refusal: Refusal | None = None) -> GenerationOutput:
    return GenerationOutput(index, (), FinishReason.ERROR, 0, error=error, refusal=refusal)


def refusal_of(error: Exception, prompt: TextPrompt | None, model: ModelInfo) -> Refusal | None:
    """Returns what of the request is at fault; None = nothing."""
    name = None if prompt is None else prompt.name
    if isinstance(error, RequestError):
        return Refusal(error.message, error.param, error.code)
    if TOO_LONG in str(error):
        return Refusal(
            "the prompt with its images leaves no room to generate in the context of "
            f"{model.max_model_len} tokens",
            name,
            "context_length_exceeded",
        )
    if not isinstance(error, _CLIENTS_FAULTS):
        return None
    reason = reason_of(error)
    if prompt is not None and len(prompt.image_names) == 1:
        name = prompt.image_names[0]
        return Refusal(f"{name}: the model cannot take this image: {reason}", name)
    return Refusal(f"the model cannot take this request: {reason}", name)
