"""Log probabilities and token ids in answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fastovms.api.dialect import AnswerSchema
from fastovms.params import ALL_LOGPROBS, TokenLogprobs
from fastovms.text.detokenizer import TextToken

LOWEST: Final = -9999.0
"""Replaces minus infinity, which JSON cannot express; vLLM's value."""


class PromptLogprob(AnswerSchema):
    """The log probability of a token of the prompt, in vLLM's format."""

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
        """Returns these arrays joined with others after them."""
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Names tokens: by their text, or as `token_id:<id>`. A token that is not valid UTF-8 is named
    `bytes:` followed by each byte as `\\x..`, OpenAI's format, which is unique."""

    token_bytes: Callable[[int], bytes]
    as_ids: bool = False

    def __call__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.as_ids else self.text(token_id)

    def text(self, token_id: int) -> str:
        """Returns the name of a token."""
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
        num_top: the number of most likely tokens to list, in addition to the token itself.
        start: the text offset at the beginning.
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
    """Returns log probabilities by token name; of tokens with the same name, the most likely one
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
    """Yields (id, log probability, rank) of the `num_top` most likely tokens; the sampled token is
    among them or last."""
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
    """Returns the log probability limited to the range that JSON can hold, and to at most 0, which
    rounding may exceed."""
    return min(0.0, max(LOWEST, logprob))
