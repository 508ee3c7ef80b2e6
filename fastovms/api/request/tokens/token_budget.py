"""Decides how many tokens a sample may have, and how many are kept of a long prompt."""

from __future__ import annotations

from typing import NamedTuple

from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompts import Truncation, context_exceeded
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo


class TokenBudget(NamedTuple):
    """How many new tokens each sample may have.

    Attributes:
        requested: what the request says; None = nothing.
        max_tokens: what applies, the context apart; None = what it leaves, 0 = nothing is
            generated.
        may_be_cut: whether `max_tokens` is lowered to what the context leaves, rather than refused.
    """

    requested: int | None
    max_tokens: int | None
    may_be_cut: bool = True


def token_budget(
    request: Preparation[GenerationFields],
    requested: int | None,
    default: int | None = None,
    *,
    may_reach_limit: bool = False,
) -> TokenBudget:
    """Reads the budget.

    Args:
        default: what applies where neither the request nor the model says anything.
        may_reach_limit: whether the operator's limit is allowed itself, otherwise only what is
            less.

    Raises:
        InvalidField: it is more than the operator allows, where the dialect has that refused.
    """
    model, dialect, name = request.model, request.dialect, request.names.max_tokens
    limit = model.limits.max_tokens_limit
    if requested is None:
        max_tokens = default or model.info.defaults.max_new_tokens or limit
    else:
        max_tokens = requested
    if limit is not None and max_tokens is not None and max_tokens >= limit + may_reach_limit:
        if requested is not None and not dialect.clamps_max_tokens:
            allowed = "at most" if may_reach_limit else "less than"
            raise InvalidField(
                f"{name} must be {allowed} {limit}, not {show(requested)}", param=name
            )
        max_tokens = limit
    # The operator's limit counts as if the request had named it; the model's default does not.
    is_models = requested is None and max_tokens != limit
    return TokenBudget(requested, max_tokens, dialect.clamps_max_tokens or is_models)


def fit_max_tokens(
    request: Preparation[GenerationFields], budget: TokenBudget, num_prompt_tokens: int, name: str
) -> int | None:
    """Returns `budget.max_tokens` as the context allows it.

    Args:
        name: the prompt's, for error messages.

    Raises:
        InvalidField: they do not fit (`context_length_exceeded`), with the counts.
    """
    max_tokens, model = budget.max_tokens, request.model.info
    room = model.max_model_len - num_prompt_tokens
    if num_prompt_tokens == 0:
        raise InvalidField(f"{name} must have at least one token", param=name)
    if room < 0:
        raise context_exceeded(f"the prompt has {num_prompt_tokens} tokens", model, name)
    if room == 0 and max_tokens != 0:
        raise context_exceeded(
            f"the prompt has {num_prompt_tokens} tokens and one must be left to generate",
            model,
            name,
        )
    if max_tokens is None or max_tokens <= room:
        return max_tokens
    if budget.may_be_cut:
        return room
    default = ", the default" if budget.requested is None else ""
    raise context_exceeded(
        f"the request needs {num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the "
        f"prompt and {request.names.max_tokens} {max_tokens}{default})",
        model,
        request.names.max_tokens,
    )


def truncation(
    body: GenerationFields, model: ModelInfo, max_tokens: int | None, clamps: bool
) -> Truncation | None:
    """Reads how much of a long prompt is kept.

    Raises:
        InvalidField: a number is beyond the context, or the side unknown.
    """
    side = body.truncation_side
    if side not in (None, "left", "right"):
        raise InvalidField(
            f'truncation_side must be "left" or "right", not {show(side)}', param="truncation_side"
        )
    kept = body.truncate_prompt_tokens
    if kept is None:
        return None
    if kept > model.max_model_len:
        raise InvalidField(
            f"truncate_prompt_tokens must be at most the context length of {model.max_model_len} "
            f"tokens, not {kept}",
            param="truncate_prompt_tokens",
        )
    if kept == -1:
        kept = max(1, _longest_prompt(model, max_tokens, clamps))
    return Truncation(kept, keeps_end=side != "right")


def _longest_prompt(model: ModelInfo, max_tokens: int | None, clamps: bool) -> int:
    """Returns how many tokens of prompt `max_tokens` leaves room for. Where that would be less than
    half of the context, a `max_tokens` that may be lowered is: it is more often a large number than
    a need."""
    context = model.max_model_len
    if max_tokens is None or (clamps and max_tokens > context // 2):
        return context - 1
    return context - max_tokens
