"""Reads the fields of a request that say how its prompts are continued, the same for every endpoint
that generates."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.api.request.audio_fields import check_audio_fields
from fastovms.api.request.candidates import Candidates, candidates
from fastovms.api.request.common_fields import (
    Queueing,
    Stopping,
    check_ranges,
    check_supported,
    queueing,
    stopping,
    stream_options,
)
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompts import Truncation
from fastovms.api.request.tokens.token_budget import TokenBudget, truncation
from fastovms.api.request.tokens.token_report import TokenReport
from fastovms.api.request.tokens.token_rules import TokenRules, token_rules
from fastovms.api.wire.bodies.request_schemas import GenerationFields, StreamOptions


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The checked fields of a request that say how its prompts are continued.

    Attributes:
        truncation: what is kept of a long prompt; None = all of it.
    """

    candidates: Candidates
    budget: TokenBudget
    truncation: Truncation | None
    report: TokenReport
    rules: TokenRules
    stopping: Stopping
    skip_special_tokens: bool
    queueing: Queueing
    stream_options: StreamOptions

    @property
    def needs_tokens(self) -> bool:
        """Whether the tokens of a text matter, besides the text."""
        return self.report.needs_tokens or self.candidates.are_ranked


def check_numbers(request: Preparation[GenerationFields]) -> None:
    """Checks what every endpoint checks first. Raises InvalidField for a number out of range, and
    for what no endpoint can do."""
    check_ranges(request.body, request.dialect)
    check_supported(request.body)
    if request.dialect.checks_audio_fields:
        check_audio_fields(request.body)


def generation_options(
    request: Preparation[GenerationFields], report: TokenReport, budget: TokenBudget
) -> GenerationOptions:
    """Reads the options of a request that has passed `check_numbers`.

    Raises:
        InvalidField: options contradict each other, or ask for what there is not.
    """
    body, model, dialect = request.body, request.model, request.dialect
    return GenerationOptions(
        candidates=candidates(body, dialect, model.info.defaults, model.limits),
        budget=budget,
        truncation=truncation(body, model.info, budget.max_tokens, dialect.clamps_max_tokens),
        report=report,
        rules=token_rules(body, model.info, request.config),
        stopping=stopping(body, dialect, request.config, request.names.stop),
        skip_special_tokens=body.skip_special_tokens is not False,
        queueing=queueing(body, request.tenant, request.priority, request.client),
        stream_options=stream_options(body, dialect),
    )
