"""Log probabilities and token ids in answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fastovms.api.client_request import ClientRequest
from fastovms.api.dialect import AnswerSchema
from fastovms.api.fields import is_streamed, num_logprobs
from fastovms.api.prompt import check_token_range
from fastovms.api.request_schemas import GenerationFields
from fastovms.errors import InvalidField
from fastovms.params import ALL_LOGPROBS, ModelInfo, TokenLogprobs
from fastovms.text.detokenizer import TextToken

MAX_LISTED: Final = 128
"""The most entries of `logprob_token_ids`, as in vLLM."""

LOWEST: Final = -9999.0
"""Replaces minus infinity, which JSON cannot express; vLLM's value."""


class PromptLogprob(AnswerSchema):
    """The log probability of a token of the prompt, in vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Log probabilities by token id, for each token of the prompt; null for the first one."""


class TopLogprob(AnswerSchema):
    """An alternative to a token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token, and the most likely tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerSchema):
    """The log probabilities of a message's tokens."""

    content: list[TokenLogprob] | None
    refusal: None = None


class CompletionLogprobs(AnswerSchema):
    """Parallel arrays with an entry for each token; null for a token without data, such as the
    first one of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, other: CompletionLogprobs) -> CompletionLogprobs:
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class TokenNames:
    """Names tokens: by their text, or as `token_id:<id>`. A token that is not valid UTF-8 is named
    `bytes:` followed by each byte as `\\x..`, OpenAI's form, which is unique."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, as_ids: bool = False) -> None:
        self.token_bytes = token_bytes
        self._as_ids = as_ids

    def __call__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.text(token_id)

    def text(self, token_id: int) -> str:
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def logprob_arrays(
    tokens: Sequence[TextToken], num_top: int, names: TokenNames, *, start: int = 0
) -> CompletionLogprobs:
    """Returns the `logprobs` of a completion's choice.

    Args:
        num_top: how many of the most likely tokens are listed, in addition to the token itself.
        start: the offset of the text's beginning.
    """
    entries = [token.logprobs for token in tokens]
    return CompletionLogprobs(
        tokens=[names(token.token_id) for token in tokens],
        token_logprobs=[None if entry is None else finite(entry.logprob) for entry in entries],
        top_logprobs=[
            None if entry is None else _by_name(entry, num_top, names) for entry in entries
        ],
        text_offset=[start + token.offset for token in tokens],
    )


def _by_name(entry: TokenLogprobs, num_top: int, names: TokenNames) -> dict[str, float]:
    """Returns log probabilities by name; of tokens with the same text, the most likely one
    counts."""
    found: dict[str, float] = {}
    for token_id, logprob, _ in likeliest(entry, num_top):
        found.setdefault(names(token_id), logprob)
    return found


def chat_logprobs(
    tokens: Sequence[TextToken], num_top: int, names: TokenNames
) -> list[TokenLogprob]:
    """Returns the `content` of a chat choice's `logprobs`. Each entry lists exactly the `num_top`
    most likely tokens."""
    return [
        TokenLogprob(
            *_chat_entry(entry.token_id, entry.logprob, names),
            [
                TopLogprob(*_chat_entry(token_id, logprob, names))
                for token_id, logprob in zip(
                    entry.top_token_ids[: None if num_top == ALL_LOGPROBS else num_top],
                    entry.top_logprobs,
                    strict=False,
                )
            ],
        )
        for token in tokens
        if (entry := token.logprobs) is not None
    ]


def _chat_entry(token_id: int, logprob: float, names: TokenNames) -> tuple[str, float, list[int]]:
    return names(token_id), finite(logprob), list(names.token_bytes(token_id))


def prompt_logprobs_body(
    entries: Sequence[TokenLogprobs | None], num_top: int, names: TokenNames
) -> PromptLogprobs:
    """Returns vLLM's `prompt_logprobs` of a choice."""
    return [
        None
        if entry is None
        else {
            str(token_id): PromptLogprob(logprob, rank, names.text(token_id))
            for token_id, logprob, rank in likeliest(entry, num_top)
        }
        for entry in entries
    ]


def likeliest(entry: TokenLogprobs, num_top: int) -> Iterator[tuple[int, float, int]]:
    """Returns (id, log probability, rank) of the `num_top` likeliest tokens; the sampled token is
    among them or follows them."""
    num_listed = len(entry.top_token_ids) if num_top == ALL_LOGPROBS else num_top
    seen = False
    listed = zip(entry.top_token_ids, entry.top_logprobs, range(1, num_listed + 1), strict=False)
    for token_id, logprob, rank in listed:
        if token_id == entry.token_id:
            seen = True
            rank = entry.rank
        yield token_id, finite(logprob), rank
    if not seen:
        yield entry.token_id, finite(entry.logprob), entry.rank


def finite(logprob: float) -> float:
    """Returns the log probability limited to the range that JSON can hold and to at most 0;
    rounding may exceed it."""
    return min(0.0, max(LOWEST, logprob))


@dataclass(frozen=True, slots=True)
class TokenReport:
    """The details about tokens that an answer reports in addition to their text.

    Attributes:
        num_logprobs: how many top log probabilities of each token; None = no `logprobs` object.
        num_prompt_logprobs: as for `num_logprobs`, for vLLM's `prompt_logprobs`.
        num_scored: how many top log probabilities of each prompt token the model computes; None =
            the prompt is not scored.
        has_token_ids: whether log probabilities of the prompt and of the text are reported.
        has_timings: whether the answer reports its duration.
    """

    num_logprobs: int | None
    num_prompt_logprobs: int | None
    has_token_ids: bool
    names: TokenNames
    has_timings: bool = False
    num_scored: int | None = None

    @property
    def needs_tokens(self) -> bool:
        return self.num_logprobs is not None or self.has_token_ids


def token_report(
    request: ClientRequest[GenerationFields], logprobs: int | None, *, scores: bool = False
) -> TokenReport:
    """Reads which token details the answer reports. Raises InvalidField if the number exceeds the
    server's limit, or the detail is not available in streams.

    Args:
        logprobs: how many top log probabilities of each token the request asks for.
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
            raise InvalidField(f"{name} must not be -1 when stream is true", param=name)
        if prompt_logprobs:
            raise InvalidField(
                "prompt_logprobs cannot be used when stream is true", param="prompt_logprobs"
            )
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
        raise InvalidField(
            f"{param} must have 1 to {MAX_LISTED} entries, not {len(token_ids)}", param=param
        )
    check_token_range(token_ids, param, model)
    if logprobs is None:
        raise InvalidField(f"{param} needs {name}", param=param)


def num_values(num_top: int | None, model: ModelInfo) -> int:
    """Returns the number of log probabilities reported for a token if its `num_top` likeliest
    alternatives are requested."""
    if num_top is None:
        return 0
    return 1 + (model.vocab_size if num_top == ALL_LOGPROBS else num_top)
