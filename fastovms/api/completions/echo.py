"""Puts the prompt before the text of a completion, with its tokens, where a request sets
`echo`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastovms.api.request.prompting.prompts import Prompt
from fastovms.params import TokenLogprobs
from fastovms.text.tokens.tokenizer import Tokenizer
from fastovms.text.tokens.tracking import Measure, TextToken, TrackingDetokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """What the texts of one prompt's choices begin with.

    Attributes:
        text: what stands before the text of each of the prompt's choices.
        length: the length of `text`, in the unit of the offsets.
        tokens: the prompt's, if their log probabilities were asked for.
    """

    text: str = ""
    length: int = 0
    tokens: Sequence[TextToken] = ()


NO_ECHO = Echo()


def make_echo(
    prompt: Prompt,
    logprobs: Sequence[TokenLogprobs | None] | None,
    tokenizer: Tokenizer,
    measure: Measure,
    *,
    skip_special_tokens: bool = True,
) -> Echo:
    """Returns the text that the client sent or, for token ids, what they decode to."""
    text = prompt.text
    if text is None:
        text = tokenizer.decode(prompt.token_ids, skip_special_tokens=skip_special_tokens)
    if logprobs is None:
        return Echo(text)
    length = measure(text)
    offsets = _offsets(prompt.token_ids, text, tokenizer, measure)
    tokens = [
        TextToken(token_id, min(offset, length), entry)
        for token_id, offset, entry in zip(prompt.token_ids, offsets, logprobs, strict=True)
    ]
    return Echo(text, length, tokens)


def _offsets(
    token_ids: Sequence[int], text: str, tokenizer: Tokenizer, measure: Measure
) -> Iterator[int]:
    """Returns where in `text` each token begins. Special tokens may be written out in it or, as the
    one at the beginning of many prompts, not be part of it."""
    for skip_special_tokens in (False, True):
        tracking = TrackingDetokenizer(
            tokenizer.detokenizer(skip_special_tokens=skip_special_tokens), measure
        )
        decoded = tracking.push(token_ids) + tracking.flush()
        start = decoded.find(text)
        if start >= 0:
            break
    # A tokenizer that normalizes does not give the text back: then offsets are approximate.
    skipped = measure(decoded[: max(start, 0)])
    return (max(token.offset - skipped, 0) for token in tracking.take(decoded, ended=True))
