"""Turns a checked request into a task for the backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from msgspec import Struct

from fastovms.api.client_request import ClientRequest
from fastovms.api.fields import (
    MAX_NGRAM_SIZE,
    Candidates,
    Queueing,
    Stopping,
    TokenBudget,
    TokenRules,
    candidates,
    check_ranges,
    encode_bad_words,
    fit_max_tokens,
    is_streamed,
    queueing,
    repetition_detection,
    stopping,
    stream_options,
    token_rules,
    truncation,
)
from fastovms.api.image_parts import ForbiddenTag, ImageSource, forbidden_tag, renumbered
from fastovms.api.logprobs import TokenReport, num_values
from fastovms.api.prompt import Prompt, Truncation
from fastovms.api.request_schemas import GenerationFields, StreamOptions
from fastovms.api.served import ServedModel
from fastovms.api.typed_body import place_of
from fastovms.config import ApiConfig
from fastovms.errors import FieldFault, InvalidField, RequestError
from fastovms.grammar_tree import num_characters
from fastovms.params import (
    MAX_DRAFT_TOKENS,
    Grammar,
    SamplingParams,
    TextPrompt,
    sampling_numbers,
)
from fastovms.request_fields import unsupported_of


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The checked fields of a request that control the generation.

    Attributes:
        truncation: how to cut a long prompt; None = not cut.
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


def check_numbers(request: ClientRequest[GenerationFields]) -> None:
    """The first check of every endpoint. Raises InvalidField for numbers out of range and for
    unsupported options."""
    body = request.body
    check_ranges(body, request.dialect)
    for name, neutral in unsupported_of(type(body)).items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            only = "".join(f", only {number}" for number in neutral)
            raise InvalidField(f"{name} is not supported by this server version{only}", param=name)


def generation_options(
    request: ClientRequest[GenerationFields], report: TokenReport, budget: TokenBudget
) -> GenerationOptions:
    """Reads the options of a request that has passed `check_numbers`. Raises InvalidField if
    options contradict each other, or are not supported."""
    body, model, dialect = request.body, request.model, request.dialect
    return GenerationOptions(
        candidates=candidates(body, dialect, model.info.defaults, model.limits),
        budget=budget,
        truncation=truncation(body, model.info, budget.max_tokens, dialect.clamps_max_tokens),
        report=report,
        rules=token_rules(body, model.info, request.config),
        stopping=stopping(body, dialect, request.config, request.names.stop),
        skip_special_tokens=body.skip_special_tokens is not False,
        queueing=queueing(body, request.caller, request.client),
        stream_options=stream_options(body, dialect),
    )


@contextmanager
def tags_named(body: Struct) -> Iterator[None]:
    """While the context is open, errors about an image tag in the client's text name the part that
    contains it."""
    try:
        yield
    except ForbiddenTag as error:
        place = place_of(error.tag, body)
        if place is None:
            raise
        raise forbidden_tag(error.tag, place) from None


async def with_images(
    request: ClientRequest[GenerationFields],
    options: GenerationOptions,
    task: PromptTask,
    text: str | None,
    sources: Sequence[ImageSource],
) -> PromptTask:
    """Returns the task with the prompt and its images in the form of a vision model. Loads the
    images. Raises InvalidField if an image is not available; Overloaded if there is not enough
    memory for the images. `text` is the whole text of the prompt, even if its tokens are
    truncated."""
    images, name = request.model.images, request.names.prompt
    if images is None or text is None:
        return task
    if not sources:
        whole = TextPrompt(text, name=name)
        return task if options.truncation is not None else task._replace(prompt=whole)
    loaded = await images.fetch(sources)
    # Only a sample that the backend ends itself tells how many tokens the images were.
    if not task.params.min_tokens:  # `min_tokens` would not let end tokens pass
        params = replace(task.params, stop_strings=options.stopping.strings)
        task = task._replace(params=params)
    names = [source.name for source in sources]
    return task._replace(prompt=TextPrompt(text, loaded, name, names))


def kept_images(prompt: Prompt, sources: Sequence[ImageSource]) -> tuple[Prompt, list[ImageSource]]:
    """Returns, where messages were dropped, the prompt with tags that count only the images that
    are left, and these."""
    text, kept = renumbered(prompt.text or "", len(sources))
    return replace(prompt, text=text), [sources[index] for index in kept]


_MAX_REASON: Final = 300
"""Characters that are repeated of what the grammar compiler says: it may repeat the whole
grammar."""


def check_length(grammar: Grammar, config: ApiConfig) -> None:
    """Raises InvalidField for a source that is too long to compile."""
    length = len(grammar.source) + num_characters(grammar.tree)
    if length > config.max_grammar_length:
        raise InvalidField(
            f"{grammar.param} must be at most {config.max_grammar_length} characters, not {length}",
            param=grammar.param,
        )


async def compile_grammar(grammar: Grammar, model: ServedModel, client: str) -> Grammar:
    """Makes a grammar ready to be used in `SamplingParams`. Raises InvalidField if the grammar is
    invalid; BackendError if too many grammars wait, or the compiler is not available. `client` is
    the sender."""
    try:
        return await model.backend.compile_grammar(grammar, client)
    except RequestError as error:
        reason = error.message
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise InvalidField(f"{grammar.param}: {reason}", param=grammar.param) from None


class PromptTask(NamedTuple):
    """One prompt to continue. All prompts of a request ask for the same number of samples.

    Attributes:
        prompt: see `GenerationRequest`.
    """

    token_ids: Sequence[int]
    params: SamplingParams
    prompt: TextPrompt | None = None


class ModelInput(NamedTuple):
    """The input of the model for one request.

    Attributes:
        prompts: the token ids of each prompt.
        grammar: as `compile_grammar` returns it.
        num_prompt_logprobs: the number of top log probabilities needed for prompt tokens.
        is_echoed: whether the choices repeat their prompt's log probabilities.
    """

    prompts: Sequence[Sequence[int]]
    grammar: Grammar | None
    num_prompt_logprobs: int | None = None
    is_echoed: bool = False


async def make_tasks(
    request: ClientRequest[GenerationFields], options: GenerationOptions, given: ModelInput
) -> list[PromptTask]:
    """Returns the backend's input for each prompt.

    Raises RequestError: a prompt does not fit, or an option is not supported by the backend.
    """
    model, names = request.model, request.names
    _check_total_logprobs(request, options, given)
    bad_words = await encode_bad_words(options.rules, model.tokenizer)
    tasks = []
    for position, token_ids in enumerate(given.prompts):
        name = names.prompt_at(position, len(given.prompts))
        max_tokens = fit_max_tokens(request, options.budget, len(token_ids), name)
        most = model.info.max_model_len - len(token_ids) if max_tokens is None else max_tokens
        _check_min_tokens(request.body.min_tokens or 0, most, names.max_tokens)
        params = _sampling_params(request, options, given, max_tokens, bad_words)
        tasks.append(PromptTask(token_ids, params))
    try:
        for task in tasks:
            model.backend.check(task.params)
    except FieldFault as fault:
        raise names.named(fault) from fault
    return tasks


def _check_total_logprobs(
    request: ClientRequest[GenerationFields], options: GenerationOptions, given: ModelInput
) -> None:
    """Checks the maximum number of log probabilities in the answer. Every choice repeats those of
    its prompt. Raises InvalidField if they may be more than `max_total_logprobs`."""
    report, model, names = options.report, request.model.info, request.names
    max_tokens = options.budget.max_tokens
    num_samples = options.candidates.num_samples
    total = num_all = 0
    for num_prompt_tokens in map(len, given.prompts):
        room = max(0, model.max_model_len - num_prompt_tokens)
        num_generated = room if max_tokens is None else min(max_tokens, room)
        num_tokens = num_generated + (num_prompt_tokens if given.is_echoed else 0)
        total += num_tokens * num_values(report.num_logprobs, model)
        total += num_prompt_tokens * num_values(report.num_prompt_logprobs, model)
        num_all += num_prompt_tokens
    total *= num_samples
    if total <= request.config.max_total_logprobs:
        return
    by_name = {names.logprobs: report.num_logprobs, "prompt_logprobs": report.num_prompt_logprobs}
    asked = {name: value for name, value in by_name.items() if value is not None}
    numbers = [f"{name} {value}" for name, value in asked.items()]
    raise InvalidField(
        f"{' and '.join(asked)} would report up to {total} log probabilities ({', '.join(numbers)}"
        f", n {num_samples}, {num_all} prompt tokens, {names.max_tokens} {max_tokens}), but a "
        f"request may have at most {request.config.max_total_logprobs}",
        param=next(iter(asked)),
    )


def _check_min_tokens(min_tokens: int, most: int, name_of_most: str) -> None:
    if min_tokens > most:
        raise InvalidField(
            f"min_tokens must be at most {name_of_most} ({most}), not {min_tokens}",
            param="min_tokens",
        )


def _sampling_params(
    request: ClientRequest[GenerationFields],
    options: GenerationOptions,
    given: ModelInput,
    max_tokens: int | None,
    bad_words_token_ids: tuple[tuple[int, ...], ...],
) -> SamplingParams:
    """Returns the sampling parameters. A value of the request overrides the model's
    generation_config.json, which overrides the dialect's constants. Raises InvalidField for fields
    that contradict each other."""
    body, model = request.body, request.model.info
    defaults, rules, chosen = model.defaults, options.rules, options.candidates
    ngram_size = body.max_ngram_size
    logprobs = options.report.num_logprobs
    numbers = sampling_numbers(body, defaults, request.dialect.name)
    if chosen.is_greedy:
        numbers["temperature"] = 0.0
    if not 0 < numbers.get("top_k", 0) < model.vocab_size:
        numbers["top_k"] = 0
    return SamplingParams(
        **numbers,
        max_tokens=max_tokens,
        n=chosen.num_samples,
        ignore_eos=bool(body.ignore_eos),
        eos_token_ids=model.eos_token_ids,
        stop_token_ids=rules.stop_token_ids,
        min_tokens=body.min_tokens or 0,
        logit_bias=rules.logit_bias,
        allowed_token_ids=rules.allowed_token_ids,
        bad_words_token_ids=bad_words_token_ids,
        logprobs=0 if logprobs is None and chosen.are_ranked else logprobs,
        logprob_token_ids=tuple(dict.fromkeys(body.logprob_token_ids or ())),
        prompt_logprobs=None if is_streamed(body) else given.num_prompt_logprobs,
        grammar=given.grammar,
        beam_search=chosen.beam_search,
        num_assistant_tokens=_num_drafts(body),
        max_ngram_size=None if ngram_size is None else min(ngram_size, MAX_NGRAM_SIZE),
        assistant_confidence_threshold=body.assistant_confidence_threshold,
        repetition_detection=repetition_detection(body, chosen),
    )


def _num_drafts(body: GenerationFields) -> int | None:
    num_drafts = body.num_assistant_tokens
    if body.assistant_confidence_threshold is not None:
        if num_drafts:
            raise InvalidField(
                "assistant_confidence_threshold cannot be used with num_assistant_tokens",
                param="assistant_confidence_threshold",
            )
        return None  # 0 beside a threshold leaves the number to that, as in OpenVINO
    return None if num_drafts is None else min(num_drafts, MAX_DRAFT_TOKENS)
