"""Checks every field of a completions request, refuses `suffix` and `echo` where they cannot be
had, and makes what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET

from fastovms.api.request.candidates import check_num_choices
from fastovms.api.request.generation_options import (
    GenerationOptions,
    check_numbers,
    generation_options,
)
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import FieldName, FieldNames, Preparation
from fastovms.api.request.prompting.prompt_task import ModelInput, PromptTask, make_tasks
from fastovms.api.request.prompting.prompts import (
    Prompt,
    PromptEncoder,
    Truncation,
    check_text,
    encode_prompts,
    prompt_name,
    split_prompts,
)
from fastovms.api.request.structured import compile_grammar, grammar_of
from fastovms.api.request.tokens.token_budget import TokenBudget, token_budget
from fastovms.api.request.tokens.token_report import TokenReport, token_report
from fastovms.api.serving.images import ImageInput
from fastovms.api.wire.bodies.request_schemas import CompletionRequest
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField, RequestError
from fastovms.media.image_tags import check_tags
from fastovms.params import ALL_LOGPROBS, TextPrompt
from fastovms.text.tokens.fim import FimTokens


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """A completions request that is ready to run.

    Attributes:
        prompts: the prompts with their texts, as the client sees them.
        tasks: the same, as the model sees them.
        num_prompt_logprobs: how many top log probabilities of the prompts' tokens the report needs.
        warnings: what of the request is not done.
    """

    preparation: Preparation[CompletionRequest]
    options: GenerationOptions
    prompts: Sequence[Prompt]
    tasks: Sequence[PromptTask]
    is_echoed: bool
    num_prompt_logprobs: int | None
    warnings: Sequence[str] = ()

    @property
    def generates(self) -> bool:
        """Whether anything is generated, or only the prompts count."""
        return self.options.budget.max_tokens != 0


async def prepare(request: Preparation[CompletionRequest], fim: FimTokens | None) -> CompletionJob:
    """Checks a request and makes what runs it. Long texts are encoded in a thread.

    Args:
        fim: the model's tokens for a suffix, if it has them.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    body, model = request.body, request.model
    check_numbers(request)
    warnings: list[str] = []
    grammar = await offload.run(partial(grammar_of, request, warnings), request.size)
    report = token_report(request, body.logprobs)
    _check_suffix(body, fim)
    options = generation_options(request, report, _budget(request))
    texts = split_prompts(body.prompt, model.info, request.config, truncation=options.truncation)
    check_num_choices(options.candidates, request.config, len(texts))
    if model.images is not None:
        _check_texts(texts, model.images, request.dialect)
    prompts, inputs = await _encode(request, texts, options.truncation, fim)
    num_prompt_logprobs = _num_prompt_logprobs(body, report)
    if grammar is not None:
        grammar = await compile_grammar(grammar, model, request.client)
    is_echoed = body.echo is True
    given = ModelInput(inputs, grammar, num_prompt_logprobs, is_echoed)
    tasks = await make_tasks(request, options, given)
    if model.images is not None and not body.suffix and body.add_special_tokens is not False:
        tasks = [
            task._replace(prompt=None if prompt.text is None else TextPrompt(prompt.text))
            for task, prompt in zip(tasks, prompts, strict=True)
        ]
    return CompletionJob(request, options, prompts, tasks, is_echoed, num_prompt_logprobs, warnings)


def names_of(body: CompletionRequest) -> FieldNames:
    """Returns what a completion's request calls its fields."""
    names = FieldNames(prompt="prompt", max_tokens="max_tokens", logprobs="logprobs")
    if body.prompt_logprobs is not None:
        return names
    return replace(names, prompt_logprobs=FieldName("echo", "echo with logprobs"))


def _budget(request: Preparation[CompletionRequest]) -> TokenBudget:
    body = request.body
    requested = None if body.max_tokens is UNSET else body.max_tokens
    if requested == 0 and not body.echo:
        raise InvalidField(
            "max_tokens must be at least 1, not 0, unless echo is true", param="max_tokens"
        )
    return token_budget(request, requested, request.dialect.default_max_tokens)


def _check_texts(texts: Sequence[str | list[int]], images: ImageInput, dialect: Dialect) -> None:
    """Checks the texts of prompts for images.

    Raises:
        RequestError: a model that takes images is not to complete texts, or a text would be taken
            for an image.
    """
    if not dialect.completes_vision_models:
        raise RequestError("completions are not for a model that takes images; chats are")
    for position, text in enumerate(texts):
        if isinstance(text, str):
            check_tags(text, 0, prompt_name(position, len(texts)), images.reserved)


def _num_prompt_logprobs(body: CompletionRequest, report: TokenReport) -> int | None:
    wanted = [report.num_prompt_logprobs]
    if body.echo:
        wanted.append(report.num_logprobs)
    numbers = [number for number in wanted if number is not None]
    if ALL_LOGPROBS in numbers:
        return ALL_LOGPROBS
    return max(numbers, default=None)


def _check_suffix(body: CompletionRequest, fim: FimTokens | None) -> None:
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
    request: Preparation[CompletionRequest],
    texts: Sequence[str | list[int]],
    truncation: Truncation | None,
    fim: FimTokens | None,
) -> tuple[list[Prompt], list[Sequence[int]]]:
    """Returns the prompts, and what the model gets for each of them."""
    body, tokenizer, model = request.body, request.model.tokenizer, request.model.info
    add_special_tokens = body.add_special_tokens is not False
    if not body.suffix:
        encoder = PromptEncoder(tokenizer, model, add_special_tokens, truncation)
        prompts = await encode_prompts(texts, encoder)
        return prompts, [prompt.token_ids for prompt in prompts]
    assert fim is not None
    check_text(body.suffix, "suffix", model)
    bare = PromptEncoder(tokenizer, model, add_special_tokens=False)
    prompts = await encode_prompts(texts, replace(bare, truncation=truncation))
    [suffix] = await encode_prompts([body.suffix], bare)
    # The token that begins a text, if the tokenizer adds one.
    start = tokenizer.encode("", add_special_tokens=add_special_tokens)
    return prompts, [[*start, *fim.join(prompt.token_ids, suffix.token_ids)] for prompt in prompts]
