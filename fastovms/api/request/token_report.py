"""What an answer tells about its tokens, and how much of that a request may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastovms.api.request.logprob_formats import TokenNames
from fastovms.api.request.sampling import is_streamed, num_logprobs
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.request_schemas import GenerationFields
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import ALL_LOGPROBS, ModelInfo


@dataclass(frozen=True, slots=True)
class TokenReport:
    """What a choice tells about its tokens, apart from their text.

    Attributes:
        num_logprobs: top log probabilities of each token; None = no `logprobs` object.
        num_prompt_logprobs: the same for vLLM's `prompt_logprobs`.
        has_token_ids: of the prompt and of the text.
        field: of the request, that says how many `num_logprobs` are.
    """

    num_logprobs: int | None
    num_prompt_logprobs: int | None
    has_token_ids: bool
    names: TokenNames
    field: str = "logprobs"

    @property
    def needs_tokens(self) -> bool:
        return self.num_logprobs is not None or self.has_token_ids


def token_report(
    body: GenerationFields, logprobs: int | None, name: str, model: ServedModel, config: ApiConfig
) -> TokenReport:
    """
    Args:
        logprobs: top log probabilities that the body asks for in the field `name`.

    Raises InvalidField: more than the server allows, or what no stream has.
    """
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
    names = TokenNames(model.tokenizer.token_bytes, as_ids=body.return_tokens_as_token_ids is True)
    return TokenReport(logprobs, prompt_logprobs, body.return_token_ids is True, names, name)


def check_total_logprobs(
    report: TokenReport,
    prompt_lengths: Sequence[int],
    max_tokens: int | None,
    model: ModelInfo,
    config: ApiConfig,
    *,
    echo: bool,
    num_samples: int,
) -> None:
    """Every choice repeats those of its prompt.

    Args:
        max_tokens: of each sample; None = what the context leaves.
        num_samples: of each prompt.

    Raises InvalidField: the answer might hold more than `max_total_logprobs`.
    """
    total = 0
    for num_prompt_tokens in prompt_lengths:
        room = max(0, model.max_model_len - num_prompt_tokens)
        num_generated = room if max_tokens is None else min(max_tokens, room)
        num_tokens = num_generated + (num_prompt_tokens if echo else 0)
        total += num_tokens * num_values(report.num_logprobs, model)
        total += num_prompt_tokens * num_values(report.num_prompt_logprobs, model)
    total *= num_samples
    if total <= config.max_total_logprobs:
        return
    by_name = {"logprobs": report.num_logprobs, "prompt_logprobs": report.num_prompt_logprobs}
    asked = {name: value for name, value in by_name.items() if value is not None}
    numbers = [f"{name} {value}" for name, value in asked.items()]
    raise InvalidField(
        f"{' and '.join(asked)} would report up to {total} log probabilities ({', '.join(numbers)}"
        f", n {num_samples}, {sum(prompt_lengths)} prompt tokens, max_tokens {max_tokens}), but a "
        f"request may have at most {config.max_total_logprobs}",
        param=next(iter(asked)),
    )


def num_values(num_top: int | None, model: ModelInfo) -> int:
    """Log probabilities that are told of a token when its `num_top` likeliest are asked for."""
    if num_top is None:
        return 0
    return 1 + (model.vocab_size if num_top == ALL_LOGPROBS else num_top)
