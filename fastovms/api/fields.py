"""Reads and checks the fields that several endpoints share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from fastovms.api import offload
from fastovms.api.body import one_of, optional, show, typed, wrong
from fastovms.api.client_request import ClientRequest
from fastovms.api.dialect import Dialect
from fastovms.api.endpoint import check_id
from fastovms.api.logprobs import TokenNames
from fastovms.api.prompt import Truncation, check_token_range, context_exceeded, encoding_cost
from fastovms.api.request_schemas import GenerationFields, StreamOptions
from fastovms.config import ApiConfig, ModelLimits
from fastovms.errors import InvalidField
from fastovms.http.messages import Caller
from fastovms.params import (
    ALL_LOGPROBS,
    MAX_DRAFT_TOKENS,
    BeamSearch,
    EarlyStopping,
    ModelInfo,
    RepetitionDetection,
    SamplingDefaults,
)
from fastovms.request_fields import ranges_of, unsupported_of
from fastovms.text.tokenizer import Tokenizer

MAX_NGRAM_SIZE: Final = 16
"""The maximum n-gram size. Drafts never change the output, so larger values in requests are reduced
to it."""

_MAX_CACHE_SALT: Final = 128


@dataclass(frozen=True, slots=True)
class Stopping:
    """The stop strings of a sample, and whether its text includes them.

    A stop string within the first `min_tokens` tokens is ignored, as in vLLM. A stop string in
    reasoning or in a tool call ends the sample only with `in_reasoning`.
    """

    strings: tuple[str, ...] = ()
    include: bool = False
    min_tokens: int = 0
    in_reasoning: bool = False


class Queueing(NamedTuple):
    """The fields of a request for the queue and the prefix cache."""

    priority: int
    cache_salt: str | None
    tenant: str
    owner: str


def check_ranges(body: GenerationFields, dialect: Dialect) -> None:
    """Raises InvalidField for a null that the dialect does not allow, or a number out of range."""
    for name in dialect.refuses_null:
        if getattr(body, name, UNSET) is None:
            raise InvalidField.about(name, "must not be null")
    for name, allowed in ranges_of(type(body), dialect.name).items():
        value = getattr(body, name)
        if value is not None and value is not UNSET and value not in allowed:
            raise wrong(name, f"{allowed}", value)


def check_numbers(body: GenerationFields, dialect: Dialect) -> None:
    """Checks numbers and options; every endpoint calls this first. Raises InvalidField for numbers
    out of range and for unsupported options."""
    check_ranges(body, dialect)
    for name, neutral in unsupported_of(type(body)).items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            only = "".join(f", only {number}" for number in neutral)
            raise InvalidField.about(name, f"is not supported by this server version{only}")


def is_streamed(body: GenerationFields) -> bool:
    """Returns whether the answer is an event stream."""
    return body.stream is True


def stream_options(body: GenerationFields, dialect: Dialect) -> StreamOptions:
    """Reads the options of a stream. Raises InvalidField if they are given without `stream`, or are
    invalid."""
    options = body.stream_options
    if options is None:
        return StreamOptions()
    if not is_streamed(body):
        raise InvalidField.about("stream_options", "is only allowed when stream is true")
    known: tuple[str, ...] = ("include_usage",)
    if dialect.strict_stream_options:
        for name in options:
            if name not in known:
                raise InvalidField.about(
                    "stream_options", f"has no field {show(name)}, only include_usage"
                )
    else:
        known = StreamOptions.__struct_fields__
    chosen = {name: options[name] for name in known if options.get(name) is not None}
    for name, value in chosen.items():
        value = typed(value, bool, f"stream_options.{name}")
    return StreamOptions(**chosen)


def stopping(
    body: GenerationFields, dialect: Dialect, config: ApiConfig, field: str = "stop"
) -> Stopping:
    """Reads the stop strings. Raises InvalidField if there are too many, or one is empty or too
    long. `field` is the client's name of the field."""
    given = body.stop
    strings: list[str] = [] if given is None else [given] if isinstance(given, str) else given
    limit = dialect.max_stop_strings or config.max_stop_strings
    if len(strings) > limit:
        raise InvalidField.about(field, f"must have at most {limit} strings, not {len(strings)}")
    for position, string in enumerate(strings):
        name = field if isinstance(given, str) else f"{field}[{position}]"
        if not string:
            raise InvalidField.about(name, "must not be an empty string")
        if len(string) > config.max_stop_length:
            raise InvalidField.about(
                name, f"must be at most {config.max_stop_length} characters, not {len(string)}"
            )
    include = body.include_stop_str_in_output
    kept_by_streams = dialect.stop_in_streams and is_streamed(body)
    if include is False and kept_by_streams:
        raise InvalidField.about(
            "include_stop_str_in_output", "must not be false when stream is true"
        )
    kept = kept_by_streams if include is None else include
    return Stopping(tuple(strings), kept, body.min_tokens or 0, body.stop_in_reasoning or False)


def num_logprobs(value: int | None, name: str, config: ApiConfig) -> int | None:
    """Returns the number of top log probabilities per token, after checking it; None = not
    requested. Raises InvalidField if it exceeds the server's limit."""
    limit = config.max_logprobs
    if value is None or 0 <= value <= limit or (limit == ALL_LOGPROBS and value >= limit):
        return value
    allowed = "-1 or at least 0" if limit == ALL_LOGPROBS else f"at least 0 and at most {limit}"
    raise InvalidField.about(name, f"must be {allowed}, not {value}")


def queueing(body: GenerationFields, caller: Caller, owner: str) -> Queueing:
    """Reads the fields for the queue and the prefix cache. Raises InvalidField if `cache_salt` is
    invalid.

    Args:
        caller: its priority, if set, replaces the body's.
        owner: the API key or address of the client.
    """
    salt = body.cache_salt
    if salt is not None and (
        not 0 < len(salt) <= _MAX_CACHE_SALT or any(char in "@/\\\0" for char in salt)
    ):
        raise InvalidField.about(
            "cache_salt",
            f"must have 1 to {_MAX_CACHE_SALT} characters, none of them @, /, \\ or "
            f"NUL, not {show(salt)}",
        )
    priority = (body.priority or 0) if caller.priority is None else caller.priority
    return Queueing(priority=priority, cache_salt=salt, tenant=caller.tenant, owner=owner)


def request_id(body: GenerationFields, default: str) -> str:
    """Returns the client's id, or `default`. Raises InvalidField if the client's id is not
    valid."""
    given = body.request_id
    if given is None:
        return default
    return check_id(given, "request_id")


@dataclass(frozen=True, slots=True)
class Candidates:
    """The number of samples generated and returned for a prompt.

    Attributes:
        n: the number returned for each prompt.
        num_samples: the number generated; if more than `n`, the most likely ones are returned.
        is_greedy: whether the requested beam search has one beam, which is greedy decoding.
    """

    n: int
    num_samples: int
    beam_search: BeamSearch | None = None
    is_greedy: bool = False

    @property
    def are_ranked(self) -> bool:
        """Whether the samples must be ranked. The results of a beam search are already ordered."""
        return self.num_samples > self.n


def candidates(
    body: GenerationFields, dialect: Dialect, defaults: SamplingDefaults, limits: ModelLimits
) -> Candidates:
    """Reads `n`, `best_of` and the fields of beam search. Raises InvalidField if the numbers
    contradict each other, or are not available in streams."""
    n = body.n or 1
    best_of = body.best_of
    beams = body.use_beam_search is True
    if best_of is not None:
        if dialect.best_of_is_beam_search:
            beams = beams or best_of > 1
            if best_of >= limits.best_of_limit:
                raise wrong("best_of", f"less than {limits.best_of_limit}", best_of)
        if body.stream is True and (dialect.best_of_is_beam_search or (best_of > 1 and not beams)):
            raise InvalidField.about("best_of", "cannot be used when stream is true")
        if n > best_of:
            raise InvalidField.about("n", f"must be at most best_of ({best_of}), not {n}")
    early_stopping = _early_stopping(body)
    if not beams:
        return Candidates(n, best_of or n)
    search = _beam_search(body, best_of or n, early_stopping, defaults)
    return Candidates(n, n, search, is_greedy=search is None)


def _early_stopping(body: GenerationFields) -> EarlyStopping:
    value = False if body.early_stopping is None else body.early_stopping
    try:
        return EarlyStopping(value)
    except ValueError:
        raise wrong("early_stopping", 'true, false or "never"', value) from None


def _beam_search(
    body: GenerationFields,
    num_beams: int,
    early_stopping: EarlyStopping,
    defaults: SamplingDefaults,
) -> BeamSearch | None:
    """Returns the requested beam search; None = one beam, which is greedy decoding."""
    num_groups = body.num_beam_groups or 1
    diversity_penalty = body.diversity_penalty or 0.0
    if num_beams % num_groups:
        raise InvalidField.about(
            "num_beam_groups", f"must divide the number of beams ({num_beams}), not {num_groups}"
        )
    if diversity_penalty and num_groups == 1:
        raise InvalidField.about("diversity_penalty", "needs num_beam_groups of at least 2")
    if num_beams == 1:
        return None
    length_penalty = body.length_penalty
    if length_penalty is None:
        length_penalty = 1.0 if defaults.length_penalty is None else defaults.length_penalty
    return BeamSearch(
        num_beams=num_beams,
        num_beam_groups=num_groups,
        diversity_penalty=diversity_penalty,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        param="n" if body.best_of is None else "best_of",
    )


def check_num_choices(chosen: Candidates, config: ApiConfig, num_prompts: int = 1) -> None:
    """Raises InvalidField if a request asks for more samples than the limit."""
    most = config.max_choices
    if num_prompts * chosen.num_samples <= most:
        return
    name = "n" if chosen.num_samples == chosen.n else "best_of"
    prompts = f" with {num_prompts} prompts" if num_prompts > 1 else ""
    raise InvalidField.about(
        name, f"must be at most {most // num_prompts}{prompts}, not {chosen.num_samples}"
    )


MAX_PATTERN_SIZE: Final = 1000
"""The maximum number of tokens of a repeated pattern: each size is searched after each token."""


def repetition_detection(body: GenerationFields, chosen: Candidates) -> RepetitionDetection | None:
    """Reads `repetition_detection`, as in vLLM; a `max_pattern_size` of 0 switches it off. Raises
    InvalidField if a number is out of range, or the request is a beam search."""
    name, given = "repetition_detection", body.repetition_detection
    if given is None:
        return None
    numbers = {}
    for member in ("max_pattern_size", "min_pattern_size", "min_count"):
        value = given.get(member)
        if value is None:
            value = 0
        if type(value) is not int or not 0 <= value <= MAX_PATTERN_SIZE:
            raise wrong(f"{name}.{member}", f"an integer from 0 to {MAX_PATTERN_SIZE}", value)
        numbers[member] = value
    longest, shortest, count = numbers.values()
    if shortest > longest:
        allowed = f"at most max_pattern_size ({longest})"
        raise wrong(f"{name}.min_pattern_size", allowed, shortest)
    if not longest:
        return None
    if count < 2:
        raise wrong(f"{name}.min_count", "at least 2", count)
    if chosen.beam_search is not None:
        raise InvalidField.about(name, "cannot be used with beam search")
    return RepetitionDetection(longest, max(1, shortest), count)


_CACHE_MODES: Final = ("implicit", "explicit")
_CACHE_TTLS: Final = ("30m", "12h")
_RETENTIONS: Final = ("in_memory", "in-memory", "24h")


class PromptCaching(NamedTuple):
    """The request's options for the prefix cache, which is used without them, too.

    Attributes:
        echoed: the options as echoed in a response; None = the request has none.
        prewarms: whether the prompt is only computed.
    """

    echoed: Mapping[str, str] | None = None
    prewarms: bool = False


def prompt_caching(options: Mapping[str, Any] | None, retention: str | None) -> PromptCaching:
    """Reads `prompt_cache_options` and `prompt_cache_retention`. Raises InvalidField if a value is
    not one of OpenAI's."""
    if retention is not None:
        one_of(retention, _RETENTIONS, "prompt_cache_retention")
    if options is None:
        return PromptCaching()
    echoed = {"mode": _CACHE_MODES[0], "ttl": _CACHE_TTLS[0]}
    for member, allowed in (("mode", _CACHE_MODES), ("ttl", _CACHE_TTLS)):
        if options.get(member) is not None:
            echoed[member] = one_of(options[member], allowed, f"prompt_cache_options.{member}")
    prewarms = optional(options.get("prewarm"), bool, "prompt_cache_options.prewarm")
    return PromptCaching(echoed, prewarms is True)


MAX_BIAS: Final = 100.0
"""The largest absolute value in `logit_bias`: OpenAI's range."""

MAX_NUM_BIASES: Final = 10_000
"""The maximum number of entries of `logit_bias`: each is checked while the event loop waits."""

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The attributes of `SamplingParams` with token ids; `bad_words` are still strings."""

    logit_bias: tuple[tuple[int, float], ...]
    allowed_token_ids: tuple[int, ...] | None
    stop_token_ids: frozenset[int]
    bad_words: tuple[str, ...]


def token_rules(body: GenerationFields, model: ModelInfo, config: ApiConfig) -> TokenRules:
    """Reads the fields that ban, bias or allow tokens. Raises InvalidField if a token id is not in
    the vocabulary, or `bad_words` are empty, too long or too many."""
    allowed = body.allowed_token_ids
    if allowed is not None:
        if not allowed:
            raise InvalidField.about("allowed_token_ids", "must have at least one token id")
        check_token_range(allowed, "allowed_token_ids", model)
    stop_token_ids = body.stop_token_ids or []
    check_token_range(stop_token_ids, "stop_token_ids", model)
    bad_words = body.bad_words or []
    _check_words(bad_words, config)
    return TokenRules(
        logit_bias=tuple(_logit_bias(body.logit_bias or {}, model)),
        allowed_token_ids=None if allowed is None else tuple(dict.fromkeys(allowed)),
        stop_token_ids=frozenset(stop_token_ids),
        bad_words=tuple(dict.fromkeys(bad_words)),
    )


def bad_words_token_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Returns the token ids of each word at the beginning of text and after a space; a word that
    begins with a space has only that form. (vLLM bans the second form only if it has the same
    number of tokens.)"""
    found: list[tuple[int, ...]] = []
    for word in words:
        first = tuple(tokenizer.encode(word, add_special_tokens=False))
        if not first:
            continue
        found.append(first)
        if not word[0].isspace():
            inner = tuple(tokenizer.encode(f" {word}", add_special_tokens=False))
            if inner[-len(first) :] != first:  # a ban of `first` covers it otherwise
                found.append(inner)
    return tuple(dict.fromkeys(found))


async def encode_bad_words(rules: TokenRules, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Runs `bad_words_token_ids`, in a thread if the words are long."""
    words = rules.bad_words
    return await offload.run(partial(bad_words_token_ids, words, tokenizer), encoding_cost(words))


def _logit_bias(bias: dict[str, float], model: ModelInfo) -> Iterable[tuple[int, float]]:
    if len(bias) > MAX_NUM_BIASES:
        raise InvalidField.about(
            "logit_bias", f"must have at most {MAX_NUM_BIASES} entries, not {len(bias)}"
        )
    for key, value in bias.items():
        name = f"logit_bias.{key[:20]}"
        if not _TOKEN_ID.fullmatch(key) or int(key) >= model.vocab_size:
            raise InvalidField(
                f"logit_bias: a key must be a token id from 0 to {model.vocab_size - 1}, not "
                f"{show(key)}",
                param=name,
            )
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise wrong(name, f"at least {-MAX_BIAS:g} and at most {MAX_BIAS:g}", value)
        yield int(key), value


def _check_words(words: Sequence[str], config: ApiConfig) -> None:
    if len(words) > config.max_stop_strings:
        raise InvalidField.about(
            "bad_words", f"must have at most {config.max_stop_strings} strings, not {len(words)}"
        )
    for position, word in enumerate(words):
        name = f"bad_words[{position}]"
        if not word:
            raise InvalidField.about(name, "must not be an empty string")
        if len(word) > config.max_stop_length:
            raise InvalidField.about(
                name, f"must be at most {config.max_stop_length} characters, not {len(word)}"
            )


class TokenBudget(NamedTuple):
    """The number of new tokens that each sample may have.

    Attributes:
        requested: the request's number; None = not given.
        max_tokens: the limit, apart from the context; None = as many as fit into the context, 0 =
            nothing is generated.
        may_be_cut: whether `max_tokens` is lowered to fit into the context instead of refused.
    """

    requested: int | None
    max_tokens: int | None
    may_be_cut: bool = True


def token_budget(
    request: ClientRequest[GenerationFields],
    requested: int | None,
    default: int | None = None,
    *,
    may_reach_limit: bool = False,
) -> TokenBudget:
    """Returns the token budget of a request. Raises InvalidField if the number exceeds the
    operator's limit and the dialect does not lower it.

    Args:
        default: the number if neither the request nor the model sets one.
        may_reach_limit: whether a request may equal the operator's limit; otherwise it must be
            lower.
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
            raise wrong(name, f"{allowed} {limit}", requested)
        max_tokens = limit
    # The operator's limit is treated like a value of the request, which may be refused if it
    # exceeds the context; the model's default is always lowered.
    is_models = requested is None and max_tokens != limit
    return TokenBudget(requested, max_tokens, dialect.clamps_max_tokens or is_models)


def fit_max_tokens(
    request: ClientRequest[GenerationFields], budget: TokenBudget, num_prompt_tokens: int, name: str
) -> int | None:
    """Returns `budget.max_tokens`, lowered to fit into the context if allowed; None = up to the
    context length. Raises InvalidField if prompt and answer do not fit (`context_length_exceeded`),
    with the counts. `name` is the name of the prompt's field, for error messages."""
    max_tokens, model = budget.max_tokens, request.model.info
    room = model.max_model_len - num_prompt_tokens
    if num_prompt_tokens == 0:
        raise InvalidField.about(name, "must have at least one token")
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
    """Reads how many tokens of a long prompt are kept, and from which side; None = not truncated.
    Raises InvalidField if a number exceeds the context, or the side is unknown."""
    side = body.truncation_side
    if side not in (None, "left", "right"):
        raise wrong("truncation_side", '"left" or "right"', side)
    kept = body.truncate_prompt_tokens
    if kept is None:
        return None
    if kept > model.max_model_len:
        raise InvalidField.about(
            "truncate_prompt_tokens",
            f"must be at most the context length of {model.max_model_len} tokens, not {kept}",
        )
    if kept == -1:
        kept = max(1, _longest_prompt(model, max_tokens, clamps))
    return Truncation(kept, keeps_end=side != "right")


def _longest_prompt(model: ModelInfo, max_tokens: int | None, clamps: bool) -> int:
    """Returns the maximum number of prompt tokens with this `max_tokens`. If that were less than
    half of the context and `max_tokens` may be lowered, returns half of the context: a large
    `max_tokens` is usually only an upper bound."""
    context = model.max_model_len
    if max_tokens is None or (clamps and max_tokens > context // 2):
        return context - 1
    return context - max_tokens


def num_drafts(body: GenerationFields) -> int | None:
    """Returns the number of draft tokens per step; None = the model's default. Raises InvalidField
    if it contradicts `assistant_confidence_threshold`."""
    number = body.num_assistant_tokens
    if body.assistant_confidence_threshold is not None:
        if number:
            raise InvalidField.about(
                "assistant_confidence_threshold", "cannot be used with num_assistant_tokens"
            )
        return None  # with 0, the threshold decides the number, as in OpenVINO
    return None if number is None else min(number, MAX_DRAFT_TOKENS)


MAX_LISTED: Final = 128
"""The maximum number of entries of `logprob_token_ids`, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenReport:
    """The details about tokens that an answer reports in addition to their text.

    Attributes:
        num_logprobs: the number of top log probabilities per token; None = no `logprobs` object.
        num_prompt_logprobs: the same for vLLM's `prompt_logprobs`.
        num_scored: the number of top log probabilities per prompt token that the model computes;
            None = the prompt is not scored.
        has_token_ids: whether the token ids of the prompt and of the text are reported.
        has_timings: whether the answer reports its durations.
    """

    num_logprobs: int | None
    num_prompt_logprobs: int | None
    has_token_ids: bool
    names: TokenNames
    has_timings: bool = False
    num_scored: int | None = None

    @property
    def needs_tokens(self) -> bool:
        """Whether the answer reports the tokens of its text."""
        return self.num_logprobs is not None or self.has_token_ids


def token_report(
    request: ClientRequest[GenerationFields], logprobs: int | None, *, scores: bool = False
) -> TokenReport:
    """Reads which token details the answer reports. Raises InvalidField if a number exceeds the
    server's limit, or the detail is not available in streams.

    Args:
        logprobs: the requested number of top log probabilities per token.
        scores: whether the endpoint reports `prompt_logprobs`.
    """
    body, config, name = request.body, request.config, request.names.logprobs
    if body.logprob_token_ids is not None:
        _check_listed(body.logprob_token_ids, logprobs, name, request.model.info)
        logprobs = len(body.logprob_token_ids)
    else:
        logprobs = num_logprobs(logprobs, name, config)
    prompt_logprobs = num_logprobs(body.prompt_logprobs, "prompt_logprobs", config)
    if is_streamed(body):
        if logprobs == ALL_LOGPROBS:
            raise InvalidField.about(name, "must not be -1 when stream is true")
        if prompt_logprobs:
            raise InvalidField.about("prompt_logprobs", "cannot be used when stream is true")
        prompt_logprobs = None
    names = TokenNames(
        request.model.tokenizer.token_bytes, as_ids=body.return_tokens_as_token_ids is True
    )
    return TokenReport(
        logprobs,
        prompt_logprobs,
        body.return_token_ids is True,
        names,
        has_timings=config.per_request_metrics,
        num_scored=prompt_logprobs if scores else None,
    )


def _check_listed(
    token_ids: Sequence[int], logprobs: int | None, name: str, model: ModelInfo
) -> None:
    """Raises InvalidField for tokens whose log probabilities cannot be listed."""
    param = "logprob_token_ids"
    if not 0 < len(token_ids) <= MAX_LISTED:
        raise InvalidField.about(
            param, f"must have 1 to {MAX_LISTED} entries, not {len(token_ids)}"
        )
    check_token_range(token_ids, param, model)
    if logprobs is None:
        raise InvalidField.about(param, f"needs {name}")


def num_values(num_top: int | None, model: ModelInfo) -> int:
    """Returns the number of log probabilities reported per token if its `num_top` most likely
    alternatives are requested."""
    if num_top is None:
        return 0
    return 1 + (model.vocab_size if num_top == ALL_LOGPROBS else num_top)
