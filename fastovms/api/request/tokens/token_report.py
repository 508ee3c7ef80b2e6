"""Decides what an answer tells of its tokens: log probabilities, ids, times, and how tokens are
named."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.api.request.common_fields import is_streamed, num_logprobs
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.tokens.logprob_formats import TokenNames
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.errors import InvalidField
from fastovms.params import ALL_LOGPROBS, ModelInfo


@dataclass(frozen=True, slots=True)
class TokenReport:
    """What an answer tells about its tokens, apart from their text.

    Attributes:
        num_logprobs: how many top log probabilities of each token; None = no `logprobs` object.
        num_prompt_logprobs: the same for vLLM's `prompt_logprobs`.
        has_token_ids: whether those of the prompt and of the text are told.
        has_timings: whether the answer tells how long it took.
    """

    num_logprobs: int | None
    num_prompt_logprobs: int | None
    has_token_ids: bool
    names: TokenNames
    has_timings: bool = False

    @property
    def needs_tokens(self) -> bool:
        return self.num_logprobs is not None or self.has_token_ids


def token_report(request: Preparation[GenerationFields], logprobs: int | None) -> TokenReport:
    """Reads what is to be told.

    Args:
        logprobs: how many top log probabilities of each token the request asks for.

    Raises:
        InvalidField: it is more than the server allows, or what no stream has.
    """
    body, config, name = request.body, request.config, request.names.logprobs
    logprobs = num_logprobs(logprobs, name, config)
    prompt_logprobs = num_logprobs(body.prompt_logprobs, "prompt_logprobs", config)
    if is_streamed(body):
        if logprobs == ALL_LOGPROBS:
            raise InvalidField(f"{name} must not be -1 when stream is true", param=name)
        if prompt_logprobs:
            raise InvalidField(
                "prompt_logprobs cannot be used when stream is true", param="prompt_logprobs"
            )
        prompt_logprobs = None
    names = TokenNames(
        request.model.tokenizer.token_bytes, as_ids=body.return_tokens_as_token_ids is True
    )
    return TokenReport(
        logprobs,
        prompt_logprobs,
        body.return_token_ids is True,
        names,
        has_timings=config.per_request_metrics,
    )


def num_values(num_top: int | None, model: ModelInfo) -> int:
    """Returns how many log probabilities are told of a token when its `num_top` likeliest are asked
    for."""
    if num_top is None:
        return 0
    return 1 + (model.vocab_size if num_top == ALL_LOGPROBS else num_top)
