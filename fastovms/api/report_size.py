"""How many log probabilities a request may make the server report, checked before any is made."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.api.completion_format import TokenReport
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import ALL_LOGPROBS, ModelInfo


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
        total += num_tokens * _num_a_token(report.num_logprobs, model)
        total += num_prompt_tokens * _num_a_token(report.num_prompt_logprobs, model)
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


def _num_a_token(num_top: int | None, model: ModelInfo) -> int:
    if num_top is None:
        return 0
    return 1 + (model.vocab_size if num_top == ALL_LOGPROBS else num_top)
