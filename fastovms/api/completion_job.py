"""What a completions request asks for, checked in every respect and ready to run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from fastovms.api.body import show
from fastovms.api.candidates import Candidates, candidates
from fastovms.api.completion_format import TokenReport
from fastovms.api.dialect import Dialect
from fastovms.api.fim import FimTokens
from fastovms.api.generate import PromptTask
from fastovms.api.logprobs import TokenNames
from fastovms.api.prompts import (
    Prompt,
    Truncation,
    check_text,
    encode_prompts,
    fit_max_tokens,
    is_long_text,
    prompt_name,
    split_prompts,
)
from fastovms.api.report_size import check_total_logprobs
from fastovms.api.sampling import (
    Queueing,
    Stopping,
    check_ranges,
    check_supported,
    is_streamed,
    num_logprobs,
    queueing,
    sampling_params,
    stopping,
    stream_options,
)
from fastovms.api.schemas import CompletionRequest, StreamOptions
from fastovms.api.served import ServedModel
from fastovms.api.structured import grammar_of
from fastovms.api.token_rules import TokenRules, bad_words_token_ids, token_rules
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField, RequestError
from fastovms.params import ALL_LOGPROBS, Grammar, ModelInfo

_MAX_REASON: Final = 300
"""Characters of what the grammar compiler says: it may repeat the whole grammar."""


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """
    Attributes:
        prompts: with their texts, as the client sees them.
        tasks: the same, as the model sees them.
        max_tokens: 0 = nothing is generated.
        num_prompt_logprobs: top log probabilities of the prompts' tokens that the report needs.
    """

    prompts: Sequence[Prompt]
    tasks: Sequence[PromptTask]
    candidates: Candidates
    max_tokens: int | None
    echo: bool
    report: TokenReport
    num_prompt_logprobs: int | None
    stopping: Stopping
    skip_special_tokens: bool
    queueing: Queueing
    stream_options: StreamOptions


async def prepare(
    body: CompletionRequest,
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
    fim: FimTokens | None,
) -> CompletionJob:
    """Long texts are encoded, and grammars compiled, in a thread.

    Args:
        fim: the model's tokens for a suffix, if it has them.

    Raises:
        RequestError: a field is at fault.
    """
    check_ranges(body, dialect)
    check_supported(body)
    chosen = candidates(body, dialect, model.info.defaults, model.limits)
    options = stream_options(body, dialect)
    stop = stopping(body, dialect, config)
    rules = token_rules(body, model.info, config)
    grammar = grammar_of(body, config)
    queue = queueing(body)
    report = _report(body, model, config)
    _check_echo(body, fim)
    requested, max_tokens = _max_tokens(body, model, dialect)
    truncation = _truncation(body, model.info, max_tokens, clamps=dialect.clamps_max_tokens)
    texts = split_prompts(body.prompt, model.info, config, truncation=truncation)
    if len(texts) * chosen.num_samples > config.max_choices:
        name = "n" if chosen.num_samples == chosen.n else "best_of"
        raise InvalidField(
            f"{name} must be at most {config.max_choices // len(texts)} with {len(texts)} "
            f"prompts, not {chosen.num_samples}",
            param=name,
        )
    prompts, inputs = await _encode(body, texts, model, truncation, fim)
    check_total_logprobs(
        report,
        [len(token_ids) for token_ids in inputs],
        max_tokens,
        model.info,
        config,
        echo=body.echo is True,
        num_samples=chosen.num_samples,
    )
    words = await _bad_words(rules, model)
    num_prompt_logprobs = _num_prompt_logprobs(body, report)
    logprobs = 0 if report.num_logprobs is None and chosen.are_ranked else report.num_logprobs
    tasks = []
    for position, token_ids in enumerate(inputs):
        fitting = fit_max_tokens(
            len(token_ids),
            max_tokens,
            model.info,
            clamp=requested is None or dialect.clamps_max_tokens,
            name=prompt_name(position, len(prompts)),
        )
        params = sampling_params(
            body,
            dialect,
            model.info,
            candidates=chosen,
            num_prompt_tokens=len(token_ids),
            max_tokens=fitting,
            rules=rules,
            bad_words_token_ids=words,
            grammar=grammar,
            logprobs=logprobs,
            prompt_logprobs=None if is_streamed(body) else num_prompt_logprobs,
        )
        tasks.append(PromptTask(token_ids, params))
    if grammar is not None:
        await _compile(grammar, model)
    return CompletionJob(
        prompts=prompts,
        tasks=tasks,
        candidates=chosen,
        max_tokens=max_tokens,
        echo=body.echo is True,
        report=report,
        num_prompt_logprobs=num_prompt_logprobs,
        stopping=stop,
        skip_special_tokens=body.skip_special_tokens is not False,
        queueing=queue,
        stream_options=options,
    )


def _report(body: CompletionRequest, model: ServedModel, config: ApiConfig) -> TokenReport:
    logprobs = num_logprobs(body.logprobs, "logprobs", config)
    prompt_logprobs = num_logprobs(body.prompt_logprobs, "prompt_logprobs", config)
    if is_streamed(body):
        if logprobs == ALL_LOGPROBS:
            raise InvalidField("logprobs must not be -1 when stream is true", param="logprobs")
        if prompt_logprobs:
            raise InvalidField(
                "prompt_logprobs cannot be used when stream is true", param="prompt_logprobs"
            )
        prompt_logprobs = None
    names = TokenNames(model.tokenizer.token_bytes, as_ids=body.return_tokens_as_token_ids is True)
    return TokenReport(logprobs, prompt_logprobs, body.return_token_ids is True, names)


def _num_prompt_logprobs(body: CompletionRequest, report: TokenReport) -> int | None:
    wanted = [report.num_prompt_logprobs]
    if body.echo:
        wanted.append(report.num_logprobs)
    numbers = [number for number in wanted if number is not None]
    if ALL_LOGPROBS in numbers:
        return ALL_LOGPROBS
    return max(numbers, default=None)


def _check_echo(body: CompletionRequest, fim: FimTokens | None) -> None:
    if not body.suffix:
        return
    if body.echo:
        raise InvalidField("suffix cannot be used when echo is true", param="suffix")
    if fim is None:
        raise InvalidField(
            "suffix needs a model that can fill in the middle: this one's vocabulary has no "
            "tokens for it",
            param="suffix",
        )


def _max_tokens(
    body: CompletionRequest, model: ServedModel, dialect: Dialect
) -> tuple[int | None, int | None]:
    """What the request says, and what applies to each sample, the context apart."""
    requested = None if body.max_tokens is UNSET else body.max_tokens
    if requested == 0 and not body.echo:
        raise InvalidField(
            "max_tokens must be at least 1, not 0, unless echo is true", param="max_tokens"
        )
    limit = model.limits.max_tokens_limit
    if requested is None:
        max_tokens = dialect.default_max_tokens or model.info.defaults.max_new_tokens or limit
    else:
        max_tokens = requested
    if limit is None or max_tokens is None or max_tokens < limit:
        return requested, max_tokens
    if requested is not None and not dialect.clamps_max_tokens:
        raise InvalidField(
            f"max_tokens must be less than {limit}, not {show(requested)}", param="max_tokens"
        )
    return requested, limit


def _truncation(
    body: CompletionRequest, model: ModelInfo, max_tokens: int | None, *, clamps: bool
) -> Truncation | None:
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
    """What `max_tokens` leaves of the context. Where that would be less than half of it, a
    `max_tokens` that may be lowered is: it is more often a large number than a need."""
    context = model.max_model_len
    if max_tokens is None or (clamps and max_tokens > context // 2):
        return context - 1
    return context - max_tokens


async def _encode(
    body: CompletionRequest,
    texts: Sequence[str | list[int]],
    model: ServedModel,
    truncation: Truncation | None,
    fim: FimTokens | None,
) -> tuple[list[Prompt], list[Sequence[int]]]:
    """The prompts, and what the model gets for each of them."""
    add_special_tokens = body.add_special_tokens is not False
    tokenizer = model.tokenizer
    if not body.suffix:
        prompts = await encode_prompts(
            texts,
            tokenizer,
            model.info,
            add_special_tokens=add_special_tokens,
            truncation=truncation,
        )
        return prompts, [prompt.token_ids for prompt in prompts]
    assert fim is not None
    check_text(body.suffix, "suffix", model.info)
    prompts = await encode_prompts(
        texts, tokenizer, model.info, add_special_tokens=False, truncation=truncation
    )
    [suffix] = await encode_prompts([body.suffix], tokenizer, model.info, add_special_tokens=False)
    # What begins every text of the model, if anything does, begins this one too.
    start = tokenizer.encode("", add_special_tokens=add_special_tokens)
    return prompts, [[*start, *fim.join(prompt.token_ids, suffix.token_ids)] for prompt in prompts]


async def _bad_words(rules: TokenRules, model: ServedModel) -> tuple[tuple[int, ...], ...]:
    if not is_long_text(rules.bad_words):
        return bad_words_token_ids(rules.bad_words, model.tokenizer)
    return await asyncio.to_thread(bad_words_token_ids, rules.bad_words, model.tokenizer)


async def _compile(grammar: Grammar, model: ServedModel) -> None:
    try:
        await asyncio.to_thread(model.backend.compile_grammar, grammar)
    except RequestError as error:
        reason = error.message
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise InvalidField(f"{grammar.param}: {reason}", param=grammar.param) from None
