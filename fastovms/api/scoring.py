"""Log probabilities of prompts, ranking of samples, and alignment of tokens with text."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from fastovms.api.fields import Candidates
from fastovms.api.generate import SampleDelta, failure, submit_all
from fastovms.backend import GenerationBackend
from fastovms.params import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
)
from fastovms.text.detokenizer import TextToken
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece


class TokenAligner:
    """Finds the tokens of each piece of a text. Pieces are taken in order.

    There may be markup between pieces. A token belongs to the piece in which its text begins. A
    token that begins in markup belongs to the piece into which it reaches. A token without text
    belongs to the piece around or after it, and to none at the end. `tags` is the markup. In a
    token that is a tag, a piece can begin only at its start.
    """

    def __init__(self, tags: Collection[str] = frozenset()) -> None:
        self._tags = tags
        self._texts: list[str] = []
        # Characters that were dropped before those of `_texts`.
        self._position = 0
        # Tokens whose text begins in `_texts`.
        self._tokens: deque[TextToken] = deque()

    def push(self, text: str, tokens: Iterable[TextToken]) -> None:
        """Adds text. `tokens` are the tokens that begin in `text`, with offsets in characters."""
        self._texts.append(text)
        self._tokens += tokens

    def take(self, piece: str) -> list[TextToken]:
        """Returns the tokens of the piece and drops the text before them. Returns [] if the piece
        is not in the text."""
        text = "".join(self._texts)
        self._texts = [text]
        found = self._find(text, piece)
        if found < 0:
            return []
        start = self._position + found
        end = start + len(piece)
        taken: list[TextToken] = []
        while self._tokens and self._tokens[0].offset < end:
            token = self._tokens.popleft()
            goes_on = not self._tokens or self._tokens[0].offset > start
            if token.offset >= start or goes_on:
                taken.append(token)
        self._texts = [text[found + len(piece) :]]
        self._position = end
        return taken

    def skip_to(self, position: int) -> None:
        """Drops the text before a position, and the tokens that begin in it."""
        num_chars = position - self._position
        if num_chars <= 0:
            return
        self._texts = ["".join(self._texts)[num_chars:]]
        self._position = position
        while self._tokens and self._tokens[0].offset < position:
            self._tokens.popleft()

    def _find(self, text: str, piece: str) -> int:
        """Returns the index of the piece in the text; -1 = not found."""
        found = text.find(piece)
        for start, end in self._spans(len(text)):
            if found < start:
                break
            if start < found < end and text[start:end] in self._tags:
                found = text.find(piece, end)
        return found

    def _spans(self, length: int) -> Iterator[tuple[int, int]]:
        """Yields the begin and end of each token in the remaining text."""
        ends = [token.offset - self._position for token in islice(self._tokens, 1, None)]
        for token, end in zip(self._tokens, [*ends, length], strict=False):
            yield token.offset - self._position, end


class ContentTokens:
    """Finds the tokens of an answer's content, piece by piece.

    Args:
        aligner: finds the tokens of a piece; None = the answer is only content, so all tokens
            belong to it.
    """

    def __init__(self, aligner: TokenAligner | None) -> None:
        self._aligner = aligner
        self._unreported: list[TextToken] = []

    def push(self, text: str, tokens: Sequence[TextToken]) -> None:
        """Adds the parsed text, and the tokens that begin in it."""
        if self._aligner is None:
            self._unreported += tokens
        else:
            self._aligner.push(text, tokens)

    def take(self, piece: Piece) -> Sequence[TextToken]:
        """Returns the tokens of a piece; none for a piece that is not content."""
        if self._aligner is None:
            return self.rest()
        if isinstance(piece, CallEnd):
            self._aligner.skip_to(piece.position)
        if isinstance(piece, CallBegin | CallArguments | CallEnd):
            return ()
        tokens = self._aligner.take(piece.text)
        return tokens if isinstance(piece, Content) else ()

    def rest(self) -> Sequence[TextToken]:
        """Returns the tokens that are certainly content and have not been reported with any
        piece."""
        unreported, self._unreported = self._unreported, []
        return unreported


def best_samples(samples: Sequence[SampleDelta], candidates: Candidates) -> Sequence[SampleDelta]:
    """Returns the `n` most likely samples of each prompt. The samples of a prompt must be
    consecutive."""
    n, num_samples = candidates.n, candidates.num_samples
    if num_samples == n:
        return samples
    chosen: list[SampleDelta] = []
    for start in range(0, len(samples), num_samples):
        ranked = sorted(
            samples[start : start + num_samples],
            key=lambda sample: mean_logprob(sample.tokens),
            reverse=True,
        )
        chosen += ranked[:n]
    return chosen


def mean_logprob(tokens: Sequence[TextToken]) -> float:
    """Returns the mean log probability of the tokens of a text; minus infinity for a text without
    tokens."""
    values = [token.logprobs.logprob for token in tokens if token.logprobs is not None]
    return sum(values) / len(values) if values else float("-inf")


class PromptScore(NamedTuple):
    """The log probabilities of one prompt: `logprobs` has an entry for each token, of which the
    first is None."""

    logprobs: Sequence[TokenLogprobs | None]
    num_cached_tokens: int


async def run_single_steps(
    backend: GenerationBackend, requests: Sequence[GenerationRequest]
) -> list[GenerationOutput]:
    """Runs requests for one token each, and returns their outputs in order. Raises RequestError if
    one can never run, and BackendError if the backend refuses them or fails."""
    outputs: dict[int, GenerationOutput] = {}
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_output(position: int, output: GenerationOutput) -> None:
        if done.done():
            return
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            done.set_exception(failure(output))
            return
        outputs[position] = output
        if len(outputs) == len(requests):
            done.set_result(None)

    try:
        submit_all(
            backend,
            [(request, partial(on_output, position)) for position, request in enumerate(requests)],
        )
        await done
    finally:
        if len(outputs) < len(requests):
            for request in requests:
                backend.abort(request.request_id)
    return [outputs[position] for position in range(len(requests))]


async def score_prompts(
    backend: GenerationBackend, requests: Sequence[GenerationRequest], num_top: int
) -> list[PromptScore]:
    """Returns the log probabilities of prompts. Each request generates one token, which is dropped.
    Raises RequestError if a prompt can never run, and BackendError if the backend refuses the
    prompts or fails. `num_top` is the number of top log probabilities per token, or
    `ALL_LOGPROBS`."""
    most = backend.model.max_model_len
    scoring = [_scoring_request(request, num_top, most) for request in requests]
    return [
        PromptScore((*output.prompt_logprobs, *output.logprobs), output.num_cached_tokens)
        for output in await run_single_steps(backend, scoring)
    ]


def _scoring_request(
    request: GenerationRequest, num_top: int, max_model_len: int
) -> GenerationRequest:
    """Returns a request that scores a prompt. The engine generates at least one token. If the
    prompt fills the context, its last token is removed and generated as the only allowed token; the
    reported log probabilities are still those of the raw logits."""
    token_ids = request.prompt_token_ids
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=num_top)
    if len(token_ids) == max_model_len:
        params = replace(params, logprobs=num_top, allowed_token_ids=(token_ids[-1],))
        token_ids = token_ids[:-1]
    return replace(
        request,
        request_id=f"{request.request_id}-score",
        prompt_token_ids=token_ids,
        params=params,
        prompt=None,
        ends_text=None,
    )
