"""The endpoint `/completions`: prompts as text or token ids, suffixes, echo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
import orjson
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from fastovms.api import offload
from fastovms.api.answer import (
    AnswerPart,
    AnswerWriter,
    Envelope,
    FinishWord,
    RequestMetrics,
    StreamUsage,
    TokenUsage,
    closing_members,
    finish_word,
    write_answer,
)
from fastovms.api.client_request import FieldName, FieldNames
from fastovms.api.context import ContextHandlers
from fastovms.api.dialect import DONE, END, START, AnswerSchema, Dialect, last_frames
from fastovms.api.fields import (
    TokenBudget,
    TokenReport,
    is_streamed,
    num_values,
    token_budget,
    token_report,
)
from fastovms.api.generate import DeltaCallback, SampleDelta, TextGeneration, Usage
from fastovms.api.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    logprob_arrays,
    prompt_logprobs_body,
)
from fastovms.api.prepare import CompletionPrompts, ModelInput, RequestReader, prepare
from fastovms.api.prompt import Prompt, prompts_cost
from fastovms.api.request_schemas import CompletionRequest, StreamOptions
from fastovms.api.scoring import best_samples, score_prompts
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Request, Response
from fastovms.params import ALL_LOGPROBS, FinishReason, TokenLogprobs
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.detokenizer import Measure, TextToken, TrackingDetokenizer
from fastovms.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """The echoed prompt before the texts of its choices.

    Attributes:
        text: the text before each of the prompt's choices.
        length: the length of `text`, in the unit of `text_offset`.
        tokens: the prompt's tokens, if their log probabilities are requested.
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
    """Returns the echo: the client's text, or the decoded token ids."""
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
    """Yields each token's start offset in `text`. Special tokens, such as BOS, may be missing from
    the text."""
    for skip_special_tokens in (False, True):
        tracking = TrackingDetokenizer(
            tokenizer.detokenizer(skip_special_tokens=skip_special_tokens), measure
        )
        decoded = tracking.push(token_ids) + tracking.flush()
        start = decoded.find(text)
        if start >= 0:
            break
    # A normalizing tokenizer does not reproduce the text: offsets are then approximate.
    skipped = measure(decoded[: max(start, 0)])
    return (max(token.offset - skipped, 0) for token in tracking.take(decoded, ended=True))


class CompletionPromptReport(NamedTuple):
    """The information about one prompt in its choices."""

    echo: Echo
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]


class CompletionChoice(AnswerSchema, kw_only=True):
    """One sample of one prompt, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | UnsetType | None = UNSET
    finish_reason: FinishWord | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class Completion(AnswerPart, kw_only=True):
    """The answer of `POST /completions`. Below `/v3` it has no `id`, as in OVMS."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    service_tier: UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET
    usage: TokenUsage
    metrics: RequestMetrics | UnsetType = UNSET


class CompletionChunk(AnswerPart, kw_only=True):
    """A frame of a streamed completion. `usage` is present if the request asks for it."""

    object: Literal["text_completion", "text_completion.chunk"]
    choices: list[CompletionChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


def echoed_logprobs(echo: Echo, report: TokenReport) -> CompletionLogprobs | None:
    """Returns the log probabilities of an echoed prompt; None if the request does not ask for log
    probabilities."""
    if report.num_logprobs is None:
        return None
    return logprob_arrays(echo.tokens, report.num_logprobs, report.names)


def generated_logprobs(
    delta: SampleDelta, echo: Echo, report: TokenReport
) -> CompletionLogprobs | None:
    """Returns the log probabilities of generated tokens, whose text offsets begin after the echoed
    prompt; None if the request does not ask for log probabilities."""
    if report.num_logprobs is None:
        return None
    return logprob_arrays(delta.tokens, report.num_logprobs, report.names, start=echo.length)


def completion_body(
    envelope: Envelope,
    samples: Sequence[SampleDelta],
    prompts: Sequence[CompletionPromptReport],
    report: TokenReport,
    usage: Usage,
) -> Completion:
    """Returns the whole answer. `samples` are complete, in order, equally many for each prompt."""
    n = len(samples) // len(prompts)
    # vLLM always writes its own fields, with null for an absent value.
    absent = None if envelope.dialect.has_ids else UNSET
    choices: list[CompletionChoice] = []
    for position, prompt in enumerate(prompts):
        vllms = dict.fromkeys(("token_ids", "prompt_logprobs", "prompt_token_ids"), absent)
        members = {**vllms, **prompt_members(prompt, report)}
        echoed = echoed_logprobs(prompt.echo, report)
        for sample in samples[position * n : position * n + n]:
            logprobs = generated_logprobs(sample, prompt.echo, report)
            if logprobs is not None and echoed is not None:
                logprobs = echoed.followed_by(logprobs)
            if report.has_token_ids:
                members["token_ids"] = [token.token_id for token in sample.tokens]
            choice = CompletionChoice(
                index=len(choices),
                text=prompt.echo.text + sample.text,
                logprobs=logprobs,
                finish_reason=sample.finish_reason and finish_word(sample.finish_reason),
                stop_reason=sample.stop_reason if envelope.dialect.has_ids else UNSET,
                **members,
            )
            choices.append(choice)
    return Completion(
        **envelope.members("text_completion"),
        choices=choices,
        service_tier=absent,
        kv_transfer_params=absent,
        **closing_members(usage),
    )


def prompt_members(prompt: CompletionPromptReport, report: TokenReport) -> dict[str, Any]:
    """Returns the requested fields of a choice about its prompt: `prompt_logprobs` and
    `prompt_token_ids`."""
    members: dict[str, Any] = {}
    if report.num_prompt_logprobs is not None:
        members["prompt_logprobs"] = prompt_logprobs_body(
            prompt.logprobs, report.num_prompt_logprobs, report.names
        )
    if report.has_token_ids:
        members["prompt_token_ids"] = list(prompt.token_ids)
    return members


@dataclass(frozen=True, slots=True)
class ChoiceOpening:
    """The encoded start of one prompt's choices in a stream.

    Attributes:
        logprobs: the elements of each of the log probability arrays, without brackets.
        members: further fields of the choice in its first frame, with a comma before them.
    """

    echo: Echo
    logprobs: tuple[bytes, ...] | None
    members: bytes

    @property
    def length(self) -> int:
        """The approximate size in bytes."""
        return len(self.echo.text) + sum(map(len, self.logprobs or ())) + len(self.members)


def make_opening(prompt: CompletionPromptReport, report: TokenReport) -> ChoiceOpening:
    """Returns the parts of a choice's first frame that depend on the prompt: the echoed text, its
    log probabilities and the fields of `prompt_members`."""
    echoed = echoed_logprobs(prompt.echo, report)
    members = prompt_members(prompt, report)
    return ChoiceOpening(
        prompt.echo,
        _elements(echoed) if echoed is not None and echoed.tokens else None,
        b"," + msgspec.json.encode(members)[1:-1] if members else b"",
    )


def _elements(arrays: CompletionLogprobs) -> tuple[bytes, ...]:
    return tuple(msgspec.json.encode(array)[1:-1] for array in astuple(arrays))


class CompletionFrames:
    """Encodes one stream (`answer.Frames`). Unless token details are requested, a delta costs only
    the encoding of its text."""

    def __init__(
        self,
        envelope: Envelope,
        generation: TextGeneration,
        options: StreamOptions,
        report: TokenReport,
        *,
        openings: Sequence[ChoiceOpening],
    ) -> None:
        """
        Args:
            openings: one for each choice.
        """
        self._dialect = envelope.dialect
        self._usage = StreamUsage(generation, options)
        self._report = report
        self._openings = openings
        # The choices whose opening has not been written yet.
        self._unopened = [opening.length > 0 for opening in openings]
        self._is_plain = not report.needs_tokens and not self._usage.is_continuous
        members = orjson.dumps(envelope.members(envelope.dialect.stream_object))
        self._head = START + members[:-1] + b',"choices":['
        self._choice_heads = [
            self._head + b'{"index":%d,"text":' % index for index in range(len(openings))
        ]
        self._tail = self._rest(SampleDelta(0, ""), b"null", b"", None)

    def delta(self, delta: SampleDelta) -> bytes:
        choice = delta.choice
        head = self._choice_heads[choice]
        if delta.finish_reason is None and not self._unopened[choice]:
            if not delta.text:  # the first event, as OVMS sends it when the prompt is computed
                return head + b'"","finish_reason":null}]}' + END
            if self._is_plain:
                return head + orjson.dumps(delta.text) + self._tail
        opening = self._openings[choice] if self._unopened[choice] else None
        self._unopened[choice] = False
        text = delta.text
        members = b""
        if self._report.has_token_ids:
            members = b',"token_ids":' + orjson.dumps([token.token_id for token in delta.tokens])
        if opening is not None:
            text = opening.echo.text + text
            members += opening.members
        logprobs = self._logprobs(delta, opening)
        return head + orjson.dumps(text) + self._rest(delta, logprobs, members, choice)

    def opening_length(self, choice: int) -> int:
        return self._openings[choice].length if self._unopened[choice] else 0

    def end(self) -> bytes:
        return self._usage.last_frame(self._head) + DONE

    def failure(self, error: Exception) -> bytes:
        return last_frames(error, self._dialect)

    def _logprobs(self, delta: SampleDelta, opening: ChoiceOpening | None) -> bytes:
        arrays = generated_logprobs(delta, self._openings[delta.choice].echo, self._report)
        if arrays is None or opening is None or opening.logprobs is None:
            return msgspec.json.encode(arrays)
        members = []
        for name, before, after in zip(
            arrays.__struct_fields__, opening.logprobs, _elements(arrays), strict=True
        ):
            elements = before + b"," + after if before and after else before or after
            members.append(b'"%s":[%s]' % (name.encode(), elements))
        return b"{" + b",".join(members) + b"}"

    def _rest(
        self, delta: SampleDelta, logprobs: bytes, members: bytes, choice: int | None
    ) -> bytes:
        """Returns the fields after the text in a frame."""
        reason = delta.finish_reason and finish_word(delta.finish_reason)
        tail = b',"logprobs":' + logprobs + b',"finish_reason":' + orjson.dumps(reason)
        if self._dialect.has_ids:
            tail += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        return tail + members + b"}]" + self._usage.member(choice) + b"}" + END


class CompletionReader(RequestReader[CompletionRequest]):
    """Reads the fields that only completion requests have."""

    def report(self) -> TokenReport:
        body = self.asked.body
        report = token_report(self.asked, body.logprobs, scores=True)
        if not body.echo or report.num_logprobs is None:
            return report
        numbers = report.num_logprobs, report.num_prompt_logprobs or 0
        scored = ALL_LOGPROBS if ALL_LOGPROBS in numbers else max(numbers)
        return replace(report, num_scored=scored)

    def budget(self) -> TokenBudget:
        body = self.asked.body
        _check_suffix(body, self.asked.model.tokenizer)
        requested = None if body.max_tokens is UNSET else body.max_tokens
        if requested == 0 and not body.echo:
            raise InvalidField.about("max_tokens", "must be at least 1, not 0, unless echo is true")
        return token_budget(self.asked, requested, self.asked.dialect.default_max_tokens)

    def read(self, budget: TokenBudget) -> CompletionPrompts:
        body, model = self.asked.body, self.asked.model
        if model.images is not None and not self.asked.dialect.completes_vision_models:
            raise RequestError(
                "a model that takes images does not support completions: use chat completions"
            )
        return CompletionPrompts(body.prompt, body.suffix or "", is_echoed=body.echo is True)


def names_of(body: CompletionRequest) -> FieldNames:
    """Returns the names of a completion request's fields, for error messages."""
    names = FieldNames(prompt="prompt", max_tokens="max_tokens", logprobs="logprobs")
    if body.prompt_logprobs is not None:
        return names
    return replace(names, prompt_logprobs=FieldName("echo", "echo with logprobs"))


def _check_suffix(body: CompletionRequest, tokenizer: Tokenizer) -> None:
    if not body.suffix:
        return
    if body.echo:
        raise InvalidField.about("suffix", "cannot be used when echo is true")
    if tokenizer.fim_tokens is None:
        raise InvalidField.about(
            "suffix",
            "is not supported: the vocabulary of this model has no tokens for "
            "filling in the middle",
        )


ScoredPrompts = Sequence[Sequence[TokenLogprobs | None]]
"""The log probabilities of each prompt's tokens."""


class Completions(ContextHandlers):
    """The handler of `POST /completions`, for every dialect."""

    async def __call__(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers a request to `/completions`; None = answered as a stream. Raises RequestError or
        BackendError if the request fails before the answer begins."""
        context = self._context
        asked = await context.read(request, CompletionRequest, dialect, names_of)
        body, model = asked.body, asked.model
        if isinstance(body.prompt, list):
            asked = replace(asked, size=asked.size + prompts_cost(len(body.prompt)))
        given = await prepare(CompletionReader(asked))
        kind = GenerationKind.TEXT_COMPLETION
        envelope, generation = context.start_generation(request, given, "cmpl-", kind)
        with generation:
            prompt_logprobs: ScoredPrompts | None = None
            if given.report.num_scored is not None and (is_streamed(body) or not _generates(given)):
                scores = await score_prompts(model.backend, given.requests, given.report.num_scored)
                prompt_logprobs = [score.logprobs for score in scores]
                generation.note_scored([score.num_cached_tokens for score in scores])
            writer = await _writer(given, envelope, generation, prompt_logprobs)
            run = generation.run if _generates(given) else partial(_send_ends, generation)
            return await write_answer(request, given, generation, writer, run)


def _generates(given: ModelInput[CompletionRequest]) -> bool:
    """Returns whether tokens are generated; False = the prompts are only scored."""
    return given.requests[0].params.max_tokens != 0


async def _send_ends(generation: TextGeneration, on_delta: DeltaCallback) -> None:
    for index in range(generation.num_samples):
        on_delta(SampleDelta(index, "", FinishReason.LENGTH))


async def _writer(
    given: ModelInput[CompletionRequest],
    envelope: Envelope,
    generation: TextGeneration,
    prompt_logprobs: ScoredPrompts | None,
) -> AnswerWriter:
    """Returns the writer of the answer to a completions request.

    Args:
        prompt_logprobs: log probabilities of prompts that are already scored; None = the generation
            computes them if they are requested.
    """
    report, cost = given.report, _prompt_cost(given)

    def whole(samples: Sequence[SampleDelta]) -> bytes:
        logprobs = prompt_logprobs
        if logprobs is None and report.num_scored is not None:
            logprobs = generation.prompt_logprobs
        prompts = _prompt_reports(given, logprobs)
        best = best_samples(samples, given.candidates)
        body = completion_body(envelope, best, prompts, report, generation.usage)
        return msgspec.json.encode(body)

    openings: list[ChoiceOpening] = []
    if is_streamed(given.asked.body):
        openings = await offload.run(partial(_make_openings, given, prompt_logprobs), cost)
    frames = partial(
        CompletionFrames, envelope, generation, given.stream_options, report, openings=openings
    )
    return AnswerWriter(whole, frames, cost, handshake=envelope.dialect.handshake)


def _make_openings(
    given: ModelInput[CompletionRequest], prompt_logprobs: ScoredPrompts | None
) -> list[ChoiceOpening]:
    """Returns the opening of each choice of a stream. The choices of one prompt share one."""
    prompts = _prompt_reports(given, prompt_logprobs)
    openings = [make_opening(prompt, given.report) for prompt in prompts]
    return [opening for opening in openings for _ in range(given.candidates.n)]


def _prompt_reports(
    given: ModelInput[CompletionRequest], prompt_logprobs: ScoredPrompts | None
) -> list[CompletionPromptReport]:
    asked = given.asked
    with_logprobs = given.report.num_logprobs is not None and prompt_logprobs is not None
    reports = []
    for position, prompt in enumerate(given.prompts):
        logprobs = () if prompt_logprobs is None else prompt_logprobs[position]
        echo = NO_ECHO
        if asked.body.echo:
            echo = make_echo(
                prompt,
                logprobs if with_logprobs else None,
                asked.model.tokenizer,
                asked.dialect.text_length,
                skip_special_tokens=asked.skips_special_tokens,
            )
        reports.append(CompletionPromptReport(echo, prompt.token_ids, logprobs))
    return reports


def _prompt_cost(given: ModelInput[CompletionRequest]) -> int:
    """Returns the number of prompt details to format: tokens and log probabilities."""
    num_scored, is_echoed = given.report.num_scored, given.asked.body.echo
    if not is_echoed and num_scored is None:
        return 0
    num_tokens = sum(len(prompt.token_ids) for prompt in given.prompts)
    if num_scored is None:
        needs_decoding = any(prompt.text is None for prompt in given.prompts)
        return num_tokens if needs_decoding else 0
    return num_tokens * num_values(num_scored, given.asked.model.info)
