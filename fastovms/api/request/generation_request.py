"""What a request asks for, its prompts apart: the same for every endpoint that generates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fastovms.api.request.audio_fields import check_audio_fields
from fastovms.api.request.candidates import Candidates, candidates
from fastovms.api.request.prompt_task import PromptTask
from fastovms.api.request.prompts import Truncation
from fastovms.api.request.sampling import (
    Queueing,
    Stopping,
    check_ranges,
    check_supported,
    is_streamed,
    queueing,
    sampling_params,
    stopping,
    stream_options,
)
from fastovms.api.request.token_budget import TokenBudget, fit_max_tokens, truncation
from fastovms.api.request.token_report import TokenReport, check_total_logprobs
from fastovms.api.request.token_rules import TokenRules, encode_bad_words, token_rules
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import GenerationFields, StreamOptions
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import Grammar


@dataclass(frozen=True, slots=True)
class Terms:
    """
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


def check_numbers(body: GenerationFields, dialect: Dialect) -> None:
    """What every endpoint checks first. Raises InvalidField."""
    check_ranges(body, dialect)
    check_supported(body)
    if dialect.checks_audio_fields:
        check_audio_fields(body)


def terms(
    body: GenerationFields,
    budget: TokenBudget,
    report: TokenReport,
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
) -> Terms:
    """`body` must have passed `check_numbers`. Raises InvalidField."""
    return Terms(
        candidates=candidates(body, dialect, model.info.defaults, model.limits),
        budget=budget,
        truncation=truncation(
            body, model.info, budget.max_tokens, clamps=dialect.clamps_max_tokens
        ),
        report=report,
        rules=token_rules(body, model.info, config),
        stopping=stopping(body, dialect, config),
        skip_special_tokens=body.skip_special_tokens is not False,
        queueing=queueing(body),
        stream_options=stream_options(body, dialect),
    )


def check_num_choices(num_prompts: int, chosen: Candidates, config: ApiConfig) -> None:
    """Raises InvalidField: more samples than one request may ask for."""
    if num_prompts * chosen.num_samples <= config.max_choices:
        return
    name = "n" if chosen.num_samples == chosen.n else "best_of"
    prompts = f" with {num_prompts} prompts" if num_prompts > 1 else ""
    raise InvalidField(
        f"{name} must be at most {config.max_choices // num_prompts}{prompts}, not "
        f"{chosen.num_samples}",
        param=name,
    )


@contextmanager
def _named_as_asked(report: TokenReport) -> Iterator[None]:
    """A backend names what it cannot do as `SamplingParams` does."""
    names = {"logprobs": (report.field, report.field)}
    if report.num_prompt_logprobs is None:
        names["prompt_logprobs"] = ("echo", "echo with logprobs")
    try:
        yield
    except InvalidField as error:
        param = error.param or ""
        if param not in names:
            raise
        name, words = names[param]
        message = error.message.replace(param, words, 1)
        raise InvalidField(message, param=name, code=error.code) from None


async def make_tasks(
    body: GenerationFields,
    asked: Terms,
    inputs: Sequence[Sequence[int]],
    names: Sequence[str],
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
    *,
    grammar: Grammar | None,
    echo: bool,
    num_prompt_logprobs: int | None,
) -> list[PromptTask]:
    """What the backend gets for each prompt.

    Args:
        inputs: token ids, as the model gets them.
        names: of the prompts, for error messages.
        grammar: as `compile_grammar` returns it.
        echo: the choices repeat their prompt's log probabilities.
        num_prompt_logprobs: top log probabilities of the prompts' tokens that are needed.

    Raises RequestError: a prompt does not fit, or the backend cannot do it.
    """
    report, ranked = asked.report, asked.candidates.are_ranked
    check_total_logprobs(
        report,
        [len(token_ids) for token_ids in inputs],
        asked.budget.max_tokens,
        model.info,
        config,
        echo=echo,
        num_samples=asked.candidates.num_samples,
    )
    words = await encode_bad_words(asked.rules, model.tokenizer)
    tasks = [
        PromptTask(
            token_ids,
            sampling_params(
                body,
                dialect,
                model.info,
                candidates=asked.candidates,
                num_prompt_tokens=len(token_ids),
                max_tokens=fit_max_tokens(len(token_ids), asked.budget, model.info, name=name),
                rules=asked.rules,
                bad_words_token_ids=words,
                grammar=grammar,
                logprobs=0 if report.num_logprobs is None and ranked else report.num_logprobs,
                prompt_logprobs=None if is_streamed(body) else num_prompt_logprobs,
            ),
        )
        for token_ids, name in zip(inputs, names, strict=True)
    ]
    with _named_as_asked(report):
        for task in tasks:
            model.backend.check(task.params)
    return tasks
