"""Writes the body of a whole answer of `/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fastovms.api.completions.echo import Echo
from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.generation.envelope import Envelope, closing_members
from fastovms.api.request.tokens.logprob_formats import (
    LogprobArrays,
    logprob_arrays,
    prompt_logprobs_body,
)
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.wire.dialect import Dialect
from fastovms.params import TokenLogprobs


class CompletionPromptReport(NamedTuple):
    """What the choices of one prompt tell about it."""

    echo: Echo
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]


def echoed_logprobs(echo: Echo, report: TokenReport) -> LogprobArrays | None:
    if report.num_logprobs is None:
        return None
    return logprob_arrays(echo.tokens, report.num_logprobs, report.names)


def generated_logprobs(delta: SampleDelta, echo: Echo, report: TokenReport) -> LogprobArrays | None:
    if report.num_logprobs is None:
        return None
    return logprob_arrays(delta.tokens, report.num_logprobs, report.names, start=echo.length)


_CHOICE_MEMBERS: Final = ("token_ids", "prompt_logprobs", "prompt_token_ids")
"""Members that vLLM's choices always have, null where there is nothing to tell."""


def completion_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompts: Sequence[CompletionPromptReport],
    report: TokenReport,
    usage: Usage,
) -> dict[str, object]:
    """Returns the unary answer. `samples` hold the whole texts, in order, equally many for each
    prompt."""
    n = len(samples) // len(prompts)
    choices: list[dict[str, object]] = []
    for position, prompt in enumerate(prompts):
        of_prompt = prompt_members(prompt, report)
        echoed = echoed_logprobs(prompt.echo, report)
        for sample in samples[position * n : position * n + n]:
            choice = _choice(sample, prompt.echo, echoed, report, envelope.dialect)
            choices.append({"index": len(choices), **choice, **of_prompt})
    return {
        **envelope.members("text_completion"),
        "choices": choices,
        **({"service_tier": None, "kv_transfer_params": None} if envelope.dialect.has_ids else {}),
        **closing_members(usage),
    }


def prompt_members(prompt: CompletionPromptReport, report: TokenReport) -> dict[str, object]:
    members: dict[str, object] = {}
    if report.num_prompt_logprobs is not None:
        members["prompt_logprobs"] = prompt_logprobs_body(
            prompt.logprobs, report.num_prompt_logprobs, report.names
        )
    if report.has_token_ids:
        members["prompt_token_ids"] = list(prompt.token_ids)
    return members


def _choice(
    sample: SampleDelta,
    echo: Echo,
    echoed: LogprobArrays | None,
    report: TokenReport,
    dialect: Dialect,
) -> dict[str, object]:
    logprobs = generated_logprobs(sample, echo, report)
    if logprobs is not None and echoed is not None:
        logprobs = echoed.followed_by(logprobs)
    choice: dict[str, object] = {
        "text": echo.text + sample.text,
        "logprobs": logprobs,
        "finish_reason": None if sample.finish_reason is None else sample.finish_reason.value,
    }
    if dialect.has_ids:
        choice |= {"stop_reason": sample.stop_reason, **dict.fromkeys(_CHOICE_MEMBERS)}
    if report.has_token_ids:
        choice["token_ids"] = [token.token_id for token in sample.tokens]
    return choice
