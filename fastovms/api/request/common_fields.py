"""Checks the fields that every endpoint that generates has: ranges of numbers, `stop`,
`stream_options`, `logprobs`, `priority`, `cache_salt`, `request_id`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec import UNSET

from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields, StreamOptions
from fastovms.api.wire.client_ids import check_id
from fastovms.api.wire.dialect import Dialect
from fastovms.config.api_config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import ALL_LOGPROBS

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "prompt_embeds": (),
    "logprob_token_ids": (),
    "thinking_token_budget": (-1,),
    "repetition_detection": (),
    "stream_interval": (1,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}
"""Fields that the server does not act on, with the values (besides null) that ask for nothing. Any
other value would change the answer, so it is refused rather than ignored."""

MAX_NGRAM_SIZE: Final = 16
"""The largest size that is used. Drafts never change a text, so that larger numbers may be lowered
to what can still pay."""

_MAX_CACHE_SALT: Final = 128


@dataclass(frozen=True, slots=True)
class Stopping:
    """Strings at which a sample ends, and whether its text keeps them.

    A string that is complete within the first `min_tokens` tokens is passed over, as in vLLM. One
    in reasoning or in a call ends the sample only with `in_reasoning`.
    """

    strings: tuple[str, ...] = ()
    include: bool = False
    min_tokens: int = 0
    in_reasoning: bool = False


class Queueing(NamedTuple):
    """What decides a request's place in the queue and in the prefix cache."""

    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    owner: str = ""


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
            only = "".join(f", only {number}" for number in neutral)
            raise InvalidField(f"{name} is not supported by this server version{only}", param=name)


def is_streamed(body: GenerationFields) -> bool:
    return body.stream is True


def stream_options(body: GenerationFields, dialect: Dialect) -> StreamOptions:
    """Reads the options of a stream.

    Raises:
        InvalidField: they are given without `stream`, or hold what is not allowed.
    """
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


def stopping(
    body: GenerationFields, dialect: Dialect, config: ApiConfig, field: str = "stop"
) -> Stopping:
    """Reads the stop strings.

    Args:
        field: what the client calls them.

    Raises:
        InvalidField: they are too many, empty or oversized.
    """
    given = body.stop
    strings: list[str] = [] if given is None else [given] if isinstance(given, str) else given
    limit = dialect.max_stop_strings or config.max_stop_strings
    if len(strings) > limit:
        raise InvalidField(
            f"{field} must have at most {limit} strings, not {len(strings)}", param=field
        )
    for position, string in enumerate(strings):
        name = field if isinstance(given, str) else f"{field}[{position}]"
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
    kept = kept_by_streams if include is None else include
    return Stopping(tuple(strings), kept, body.min_tokens or 0, body.stop_in_reasoning or False)


def num_logprobs(value: int | None, name: str, config: ApiConfig) -> int | None:
    """Returns a number of top log probabilities.

    Raises:
        InvalidField: it is beyond the server's limit.
    """
    limit = config.max_logprobs
    if value is None or 0 <= value <= limit or (limit == ALL_LOGPROBS and value >= limit):
        return value
    allowed = "-1 or at least 0" if limit == ALL_LOGPROBS else f"at least 0 and at most {limit}"
    raise InvalidField(f"{name} must be {allowed}, not {value}", param=name)


def queueing(
    body: GenerationFields, tenant: str, priority: int | None, owner: str = ""
) -> Queueing:
    """Reads what the request of a tenant says about its place.

    Args:
        owner: the key or address that asks.
        priority: stands in for the body's; None = nothing does.

    Raises:
        InvalidField: vLLM would refuse the salt.
    """
    salt = body.cache_salt
    if salt is not None and (
        not 0 < len(salt) <= _MAX_CACHE_SALT or any(char in "@/\\\0" for char in salt)
    ):
        raise InvalidField(
            f"cache_salt must have 1 to {_MAX_CACHE_SALT} characters, none of them @, /, \\ or "
            f"NUL, not {show(salt)}",
            param="cache_salt",
        )
    return Queueing((body.priority or 0) if priority is None else priority, salt, tenant, owner)


def request_id(body: GenerationFields, default: str) -> str:
    """Returns the id that the client gave, or `default`.

    Raises:
        InvalidField: it is no id.
    """
    given = body.request_id
    if given is None:
        return default
    return check_id(given, "request_id")
