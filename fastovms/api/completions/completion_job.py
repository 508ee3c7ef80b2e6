"""What a completions request asks for, checked in every respect and ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from fastovms.api.completions.fim import FimTokens
from fastovms.api.request.generation_request import (
    Terms,
    check_num_choices,
    check_numbers,
    make_tasks,
    terms,
)
from fastovms.api.request.prompt_images import check_images
from fastovms.api.request.prompt_task import PromptTask
from fastovms.api.request.prompts import (
    Prompt,
    Truncation,
    check_text,
    encode_prompts,
    prompt_name,
    split_prompts,
)
from fastovms.api.request.structured import compile_grammar, grammar_of
from fastovms.api.request.token_budget import TokenBudget, token_budget
from fastovms.api.request.token_report import TokenReport, token_report
from fastovms.api.serving.images import ImageInput
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import CompletionRequest
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField, RequestError
from fastovms.params import ALL_LOGPROBS, TextPrompt


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """
    Attributes:
        prompts: with their texts, as the client sees them.
        tasks: the same, as the model sees them.
        num_prompt_logprobs: top log probabilities of the prompts' tokens that the report needs.
    """

    terms: Terms
    prompts: Sequence[Prompt]
    tasks: Sequence[PromptTask]
    echo: bool
    num_prompt_logprobs: int | None

    @property
    def generates(self) -> bool:
        """Whether anything is, or only the prompts count."""
        return self.terms.budget.max_tokens != 0


async def prepare(
    body: CompletionRequest,
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
    fim: FimTokens | None,
    *,
    client: str,
) -> CompletionJob:
    """Long texts are encoded in a thread.

    Args:
        fim: the model's tokens for a suffix, if it has them.
        client: who asks.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    check_numbers(body, dialect)
    grammar = grammar_of(body, config)
    report = token_report(body, body.logprobs, "logprobs", model, config)
    _check_echo(body, fim)
    asked = terms(body, _budget(body, model, dialect), report, model, dialect, config)
    texts = split_prompts(body.prompt, model.info, config, truncation=asked.truncation)
    check_num_choices(len(texts), asked.candidates, config)
    if model.images is not None:
        _check_texts(texts, model.images, dialect)
    prompts, inputs = await _encode(body, texts, model, asked.truncation, fim)
    num_prompt_logprobs = _num_prompt_logprobs(body, report)
    if grammar is not None:
        grammar = await compile_grammar(grammar, model, client)
    tasks = await make_tasks(
        body,
        asked,
        inputs,
        [prompt_name(position, len(prompts)) for position in range(len(prompts))],
        model,
        dialect,
        config,
        grammar=grammar,
        echo=body.echo is True,
        num_prompt_logprobs=num_prompt_logprobs,
    )
    if model.images is not None and not body.suffix and body.add_special_tokens is not False:
        tasks = [
            task._replace(prompt=None if prompt.text is None else TextPrompt(prompt.text))
            for task, prompt in zip(tasks, prompts, strict=True)
        ]
    return CompletionJob(asked, prompts, tasks, body.echo is True, num_prompt_logprobs)


def _budget(body: CompletionRequest, model: ServedModel, dialect: Dialect) -> TokenBudget:
    requested = None if body.max_tokens is UNSET else body.max_tokens
    if requested == 0 and not body.echo:
        raise InvalidField(
            "max_tokens must be at least 1, not 0, unless echo is true", param="max_tokens"
        )
    return token_budget(
        requested, model, dialect, name="max_tokens", default=dialect.default_max_tokens
    )


def _check_texts(texts: Sequence[str | list[int]], images: ImageInput, dialect: Dialect) -> None:
    """Raises RequestError: a model that takes images is not to complete texts, or one of them
    would be taken for an image."""
    if not dialect.completes_vision_models:
        raise RequestError("completions are not for a model that takes images; chats are")
    for position, text in enumerate(texts):
        if isinstance(text, str):
            check_images(text, 0, prompt_name(position, len(texts)), images)


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
