"""Converts a client's request to engine requests, for all endpoints: checks its fields, renders its
chat or encodes its texts, and compiles the grammar of the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple

from fastovms.api.client_request import Body, ClientRequest
from fastovms.api.constraint import (
    Constraint,
    constraint,
    constraint_of,
    usable,
    with_reasoning_budget,
)
from fastovms.api.fields import (
    MAX_NGRAM_SIZE,
    Candidates,
    Stopping,
    TokenBudget,
    TokenReport,
    candidates,
    check_num_choices,
    check_numbers,
    encode_bad_words,
    fit_max_tokens,
    num_drafts,
    num_values,
    queueing,
    repetition_detection,
    stopping,
    stream_options,
    token_report,
    token_rules,
    truncation,
)
from fastovms.api.image_parts import check_tags
from fastovms.api.prompt import (
    Chat,
    Prompt,
    PromptEncoder,
    Truncation,
    chat_prompt,
    check_text,
    encode_prompts,
    prompt_name,
    split_prompts,
)
from fastovms.api.request_schemas import GenerationFields, StreamOptions
from fastovms.errors import FieldFault, InvalidField
from fastovms.params import (
    EndsText,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    sampling_numbers,
)
from fastovms.text.detokenizer import LocatingDetokenizer
from fastovms.text.output import CustomCallParser, content_of, output_parser
from fastovms.text.scanning import OutputParser, PlainParser
from fastovms.text.stop import completes_stop


class CompletionPrompts(NamedTuple):
    """The prompts of a request, for the model to continue.

    Attributes:
        prompts: in any of the forms of `split_prompts`.
        suffix: the text after the generated text; "" = none. Needs a model with fill-in-the-middle
            tokens.
        context: tokens before the prompt.
        is_echoed: whether the choices repeat their prompt's log probabilities.
    """

    prompts: str | list[str | int | list[int]] | None
    suffix: str = ""
    context: Sequence[int] = ()
    is_echoed: bool = False


@dataclass(frozen=True, slots=True)
class RequestReader(ABC, Generic[Body]):
    """Reads the fields that only the requests of one endpoint have. `prepare` calls its methods in
    this order, after checking `asked`. They raise InvalidField."""

    asked: ClientRequest[Body]

    def report(self) -> TokenReport:
        """Returns the details about tokens that the answer reports."""
        return token_report(self.asked, None)

    @abstractmethod
    def budget(self) -> TokenBudget:
        """Returns the number of tokens that may be generated."""

    @abstractmethod
    def read(self, budget: TokenBudget) -> Chat | CompletionPrompts:
        """Returns the input of the model, in time proportional to `asked.size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput(Generic[Body]):
    """A request that is ready to run, and the objects that read its output.

    Attributes:
        requests: the requests for the engine, one for each prompt.
        prompts: the prompts, in order.
        chat: the chat, with only its last message; empty for texts.
        new_detokenizer: creates the detokenizer of one sample.
        new_parser: creates the parser that finds tool calls and reasoning in one sample's text;
            None = all text is content that continues the prompt's.
        warnings: parts of the request that are ignored, not visible to the model, or not enforced.
    """

    asked: ClientRequest[Body]
    requests: Sequence[GenerationRequest]
    prompts: Sequence[Prompt]
    chat: Chat
    candidates: Candidates
    report: TokenReport
    stopping: Stopping
    stream_options: StreamOptions
    new_detokenizer: Callable[[], LocatingDetokenizer]
    new_parser: Callable[[], OutputParser] | None
    warnings: Sequence[str]

    @property
    def finds_markup(self) -> bool:
        """Whether the answers are parsed for tool calls or reasoning."""
        chat = self.asked.model.chat
        has_calls = chat.tool_format is not None and bool(self.chat.tools.tools)
        return self.asked.parses and (has_calls or chat.reasoning_format is not None)

    @property
    def hides_content(self) -> bool:
        """Whether only the tool calls of an answer are reported, because calls are required.
        Without a parser, all text is content."""
        return self.chat.tools.is_required and self.asked.parses


_NO_CHAT: Final = Chat(())


async def prepare(reader: RequestReader[Body]) -> ModelInput[Body]:
    """Returns the model's input for a request. Long chats are rendered, and long texts encoded, in
    a thread. Raises RequestError if a field is invalid, the prompt does not fit into the context,
    or the backend does not support an option, and BackendError if the grammar cannot be compiled
    now or there is not enough memory for images."""
    asked = reader.asked
    body, model, names, dialect = asked.body, asked.model, asked.names, asked.dialect
    check_numbers(body, dialect)
    report, budget = reader.report(), reader.budget()
    chosen = candidates(body, dialect, model.info.defaults, model.limits)
    cut = truncation(body, model.info, budget.max_tokens, dialect.clamps_max_tokens)
    rules = token_rules(body, model.info, asked.config)
    stops = stopping(body, dialect, asked.config, names.stop)
    queue = queueing(body, asked.caller, asked.client)
    streamed = stream_options(body, dialect)
    drafts, repetition = num_drafts(body), repetition_detection(body, chosen)

    def read() -> _Read:
        given = reader.read(budget)
        if isinstance(given, CompletionPrompts):
            return _read_texts(asked, given, chosen, cut)
        check_num_choices(chosen, asked.config)
        prompt, images = chat_prompt(asked, given, cut)
        wanted = constraint(asked, given, prompt.end) if given.is_answered else None
        last = given._replace(messages=given.messages[-1:], images=images)
        return _Read(last, [prompt], wanted)

    given = await model.chat.rendered(asked.client, read, asked.size)
    chat, prompts = given.chat or _NO_CHAT, given.prompts
    grammar = await usable(asked, given.constraint)
    _check_total_logprobs(asked, budget, chosen, report, given)
    bad_words = await encode_bad_words(rules, model.tokenizer) if rules.bad_words else ()

    def params_of(position: int, num_prompt_tokens: int) -> SamplingParams:
        name = names.prompt_at(position, len(prompts))
        max_tokens = fit_max_tokens(asked, budget, num_prompt_tokens, name)
        most = model.info.max_model_len - num_prompt_tokens if max_tokens is None else max_tokens
        _check_min_tokens(body.min_tokens or 0, most, names.max_tokens)
        return SamplingParams(
            **_numbers(asked, is_greedy=chosen.is_greedy),
            max_tokens=max_tokens,
            n=chosen.num_samples,
            ignore_eos=bool(body.ignore_eos),
            eos_token_ids=model.info.eos_token_ids,
            stop_token_ids=rules.stop_token_ids,
            min_tokens=body.min_tokens or 0,
            logit_bias=rules.logit_bias,
            allowed_token_ids=rules.allowed_token_ids,
            bad_words_token_ids=bad_words,
            logprobs=0
            if report.num_logprobs is None and chosen.are_ranked
            else report.num_logprobs,
            logprob_token_ids=tuple(dict.fromkeys(body.logprob_token_ids or ())),
            prompt_logprobs=None if body.stream is True else report.num_scored,
            grammar=grammar,
            beam_search=chosen.beam_search,
            num_assistant_tokens=drafts,
            max_ngram_size=body.max_ngram_size and min(body.max_ngram_size, MAX_NGRAM_SIZE),
            assistant_confidence_threshold=body.assistant_confidence_threshold,
            repetition_detection=repetition,
        )

    params = [params_of(i, len(prompt.token_ids)) for i, prompt in enumerate(prompts)]
    try:
        for each in params:
            model.backend.check(each)
    except FieldFault as fault:
        raise names.named(fault) from fault
    new_parser, unlimited = None, list[str]()
    if given.chat is not None:
        params[0] = with_reasoning_budget(asked, params[0], chat, prompts[0], unlimited)
        new_parser = _parser_maker(asked, chat, prompts[0])
    texts = await _text_prompts(asked, given, cut)
    # With `min_tokens` the backend would not accept end tokens.
    if chat.images and not body.min_tokens:
        # The backend reports the number of image tokens only if it ends the sample itself.
        params[0] = replace(params[0], stop_strings=stops.strings)
    new_detokenizer = partial(
        model.tokenizer.detokenizer,
        skip_special_tokens=asked.skips_special_tokens,
        continues=new_parser is None,
        keep=frozenset() if new_parser is None else model.chat.tags,
    )
    ends_text = (
        None if chosen.beam_search is None else _ends_text(stops, new_detokenizer, new_parser)
    )
    return ModelInput(
        asked=asked,
        requests=[
            GenerationRequest(
                f"{asked.id}-{position}",
                prompt.token_ids,
                params[position],
                prompt=texts[position],
                ends_text=ends_text,
                **queue._asdict(),
            )
            for position, prompt in enumerate(prompts)
        ],
        prompts=prompts,
        chat=chat,
        candidates=chosen,
        report=report,
        stopping=stops,
        stream_options=streamed,
        new_detokenizer=new_detokenizer,
        new_parser=new_parser,
        warnings=[
            *ignored_parts_warning([*chat.tools.skipped, *chat.skipped]),
            *chat.unseen,
            *(given.constraint.warnings if given.constraint else ()),
            *chat.tools.warnings_for(model.chat.tool_format),
            *prompts[0].warnings,
            *unlimited,
        ],
    )


def ignored_parts_warning(names: Sequence[str]) -> Sequence[str]:
    """Returns the warning about ignored parts of a request. They are not refused, because agents
    send the tools of OpenAI's servers to every server."""
    return [f"passed over, as this server does not have it: {', '.join(names)}"] if names else ()


class _Read(NamedTuple):
    """The model's input, and the constraint on its output.

    Attributes:
        chat: only the last message of the chat; None = the prompts are texts.
        is_echoed: see `CompletionPrompts`.
    """

    chat: Chat | None
    prompts: Sequence[Prompt]
    constraint: Constraint | None
    is_echoed: bool = False


def _read_texts(
    asked: ClientRequest[GenerationFields],
    given: CompletionPrompts,
    chosen: Candidates,
    cut: Truncation | None,
) -> _Read:
    """Encodes texts. Raises RequestError like `prepare`."""
    model, tokenizer, images = asked.model.info, asked.model.tokenizer, asked.model.images
    texts = split_prompts(given.prompts, model, asked.config, truncation=cut)
    check_num_choices(chosen, asked.config, len(texts))
    for position, text in enumerate(texts if images is not None else ()):
        if images is not None and isinstance(text, str):
            check_tags(text, 0, prompt_name(position, len(texts)), images.reserved)
    warnings: list[str] = []
    grammar = constraint_of(asked, warnings)
    special = asked.body.add_special_tokens is not False
    encoder = PromptEncoder(tokenizer, model, special and not given.suffix, cut)
    if given.suffix:
        check_text(given.suffix, "suffix", model)
    prompts = encode_prompts(texts, encoder)
    fim = tokenizer.fim_tokens if given.suffix else None
    if fim is not None:
        suffix = replace(encoder, truncation=None).encode(given.suffix, "suffix")
        # The token that begins a text, if the tokenizer adds one.
        start = tokenizer.encode("", add_special_tokens=special)
        prompts = [Prompt([*start, *fim.join(prompt.token_ids, suffix)]) for prompt in prompts]
    elif given.context:
        prompts = [
            replace(prompt, token_ids=[*given.context, *prompt.token_ids]) for prompt in prompts
        ]
    wanted = None if grammar is None else Constraint(grammar, warnings)
    return _Read(None, prompts, wanted, given.is_echoed)


async def _text_prompts(
    asked: ClientRequest[GenerationFields], given: _Read, cut: Truncation | None
) -> Sequence[TextPrompt | None]:
    """Returns each prompt with its loaded images, for a vision model; None = the model reads token
    ids. Raises InvalidField if an image is not available, and Overloaded if there is not enough
    memory for the images."""
    images, chat, name = asked.model.images, given.chat, asked.names.prompt
    texts = [None if images is None else prompt.text for prompt in given.prompts]
    if chat is not None and chat.images:
        sources, [text] = chat.images, texts
        if images is None or text is None:
            return [None]
        loaded = await images.fetch(sources)
        return [TextPrompt(text, loaded, name, [source.name for source in sources])]
    is_cut = cut is not None if chat is not None else asked.body.add_special_tokens is False
    return [None if text is None or is_cut else TextPrompt(text, name=name) for text in texts]


def _parser_maker(
    asked: ClientRequest[GenerationFields], chat: Chat, prompt: Prompt
) -> Callable[[], OutputParser]:
    if not asked.parses:
        return PlainParser
    new_parser = partial(
        output_parser,
        asked.model.chat.tool_format,
        asked.model.chat.reasoning_format,
        prompt=prompt.end,
        tools=chat.tools.tools,
    )
    custom = chat.tools.custom
    return (lambda: CustomCallParser(new_parser(), custom)) if custom else new_parser


def _ends_text(
    stops: Stopping,
    new_detokenizer: Callable[[], LocatingDetokenizer],
    new_parser: Callable[[], OutputParser] | None,
) -> EndsText | None:
    """Returns a function that finds stop strings in the beams of a search; None = no stop
    strings."""
    if not stops.strings:
        return None
    searched = None
    if new_parser is not None and not stops.in_reasoning:
        searched = partial(content_of, new_parser)
    return partial(completes_stop, new_detokenizer, stops.strings, stops.min_tokens, searched)


def _check_total_logprobs(
    asked: ClientRequest[GenerationFields],
    budget: TokenBudget,
    chosen: Candidates,
    report: TokenReport,
    given: _Read,
) -> None:
    """Raises InvalidField if the answer may have more than `max_total_logprobs` log probabilities.
    Every choice repeats those of its prompt."""
    model, names = asked.model.info, asked.names
    max_tokens, num_samples = budget.max_tokens, chosen.num_samples
    total = num_all = 0
    for num_prompt_tokens in [len(prompt.token_ids) for prompt in given.prompts]:
        room = max(0, model.max_model_len - num_prompt_tokens)
        num_generated = room if max_tokens is None else min(max_tokens, room)
        num_tokens = num_generated + (num_prompt_tokens if given.is_echoed else 0)
        total += num_tokens * num_values(report.num_logprobs, model)
        total += num_prompt_tokens * num_values(report.num_prompt_logprobs, model)
        num_all += num_prompt_tokens
    total *= num_samples
    if total <= asked.config.max_total_logprobs:
        return
    by_name = {names.logprobs: report.num_logprobs, "prompt_logprobs": report.num_prompt_logprobs}
    counts = {name: value for name, value in by_name.items() if value is not None}
    numbers = [f"{name} {value}" for name, value in counts.items()]
    raise InvalidField(
        f"{' and '.join(counts)} would report up to {total} log probabilities ({', '.join(numbers)}"
        f", n {num_samples}, {num_all} prompt tokens, {names.max_tokens} {max_tokens}), but a "
        f"request may have at most {asked.config.max_total_logprobs}",
        param=next(iter(counts)),
    )


def _check_min_tokens(min_tokens: int, most: int, name_of_most: str) -> None:
    if min_tokens > most:
        raise InvalidField.about(
            "min_tokens", f"must be at most {name_of_most} ({most}), not {min_tokens}"
        )


def _numbers(asked: ClientRequest[GenerationFields], *, is_greedy: bool) -> dict[str, Any]:
    """Returns the numeric sampling parameters. A value of the request overrides the model's
    generation_config.json, which overrides the dialect's constants."""
    model = asked.model.info
    numbers = sampling_numbers(asked.body, model.defaults, asked.dialect.name)
    if is_greedy:
        numbers["temperature"] = 0.0
    if not 0 < numbers.get("top_k", 0) < model.vocab_size:
        numbers["top_k"] = 0
    return numbers
