"""Checks the generation fields of a request and turns them into `SamplingParams`.

Precedence: the request, then the model's generation_config.json, then the dialect's constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import UNSET

from fastovms.api.body import show
from fastovms.api.dialect import Dialect
from fastovms.api.schemas import GenerationFields, StreamOptions
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo, SamplingParams

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "use_beam_search": (False,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "priority": (0,),
    "cache_salt": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_embeds": (),
    "logprobs": (),
    "suffix": ("",),
}
"""Fields that the server does not act on, with the values (besides null) that ask for nothing.
Any other value would change the answer, so it is refused rather than ignored."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Stopping:
    """Strings at which a sample ends, and whether its text keeps them."""

    strings: tuple[str, ...] = ()
    include: bool = False


def check_ranges(body: GenerationFields, dialect: Dialect) -> None:
    """Raises InvalidField for a null where the dialect wants none, or a number out of range."""
    for name in dialect.refuses_null:
        if getattr(body, name, UNSET) is None:
            raise InvalidField(f"{name} must not be null", param=name)
    for name, allowed in dialect.ranges.items():
        value = getattr(body, name, None)
        if value is not None and value is not UNSET and value not in allowed:
            raise InvalidField(f"{name} must be {allowed}, not {show(value)}", param=name)


def check_supported(body: GenerationFields) -> None:
    """Raises InvalidField for a field whose value asks for something the server cannot do."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise InvalidField(f"{name} is not supported by this server version", param=name)


def is_streamed(body: GenerationFields) -> bool:
    return body.stream is True


def stream_options(body: GenerationFields, dialect: Dialect) -> StreamOptions:
    """Raises InvalidField when they are given without `stream`, or hold what is not allowed."""
    options = body.stream_options
    if options is None:
        return StreamOptions()
    if not is_streamed(body):
        raise InvalidField(
            "stream_options is only allowed when stream is true", param="stream_options"
        )
    known: tuple[str, ...] = ("include_usage",)
    if dialect.strict_stream_options:
        for name in options:
            if name not in known:
                raise InvalidField(
                    f"stream_options has no field {show(name)}, only include_usage",
                    param="stream_options",
                )
    else:
        known = StreamOptions.__struct_fields__
    chosen = {name: options[name] for name in known if options.get(name) is not None}
    for name, value in chosen.items():
        if not isinstance(value, bool):
            field = f"stream_options.{name}"
            raise InvalidField(f"{field} must be true or false, not {show(value)}", param=field)
    return StreamOptions(**chosen)


def stopping(body: GenerationFields, dialect: Dialect, config: ApiConfig) -> Stopping:
    """Raises InvalidField for too many, empty or oversized stop strings."""
    given = body.stop
    strings: list[str] = [] if given is None else [given] if isinstance(given, str) else given
    limit = dialect.max_stop_strings or config.max_stop_strings
    if len(strings) > limit:
        raise InvalidField(
            f"stop must have at most {limit} strings, not {len(strings)}", param="stop"
        )
    for position, string in enumerate(strings):
        name = "stop" if isinstance(given, str) else f"stop[{position}]"
        if not string:
            raise InvalidField(f"{name} must not be an empty string", param=name)
        if len(string) > config.max_stop_length:
            raise InvalidField(
                f"{name} must be at most {config.max_stop_length} characters, not {len(string)}",
                param=name,
            )
    include = body.include_stop_str_in_output
    kept_by_streams = dialect.stop_in_streams and is_streamed(body)
    if include is False and kept_by_streams:
        raise InvalidField(
            "include_stop_str_in_output must not be false when stream is true",
            param="include_stop_str_in_output",
        )
    return Stopping(tuple(strings), kept_by_streams if include is None else include)


def num_samples(body: GenerationFields, dialect: Dialect) -> int:
    """`n`, checked against `best_of`. Raises InvalidField."""
    n = body.n or 1
    best_of = body.best_of
    if best_of is None:
        return n
    if is_streamed(body) and (dialect.best_of_is_beam_search or best_of > 1):
        raise InvalidField("best_of cannot be used when stream is true", param="best_of")
    if n > best_of:
        raise InvalidField(f"n must be at most best_of ({best_of}), not {n}", param="n")
    if best_of > 1 if dialect.best_of_is_beam_search else best_of > n:
        raise InvalidField("best_of is not supported by this server version", param="best_of")
    return n


def sampling_params(
    body: GenerationFields,
    dialect: Dialect,
    model: ModelInfo,
    *,
    n: int,
    max_tokens: int | None,
) -> SamplingParams:
    """`body` must have passed `check_ranges`."""
    defaults = model.defaults
    top_k = _first(body.top_k, defaults.top_k, dialect.default_top_k)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        top_k=top_k if 0 < top_k < model.vocab_size else 0,
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        seed=body.seed,
        n=n,
        ignore_eos=bool(body.ignore_eos),
        eos_token_ids=model.eos_token_ids,
    )


def _first(requested: Number | None, models: Number | None, constant: Number) -> Number:
    if requested is not None:
        return requested
    return constant if models is None else models
