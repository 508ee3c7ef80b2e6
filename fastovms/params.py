"""The types that layers exchange about a generation: parameters, outputs and model properties."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fastovms.grammar_tree import Node
from fastovms.request_fields import INT64, UINT32_MAX, Field, GenaiUse, Range, rows_of

GREEDY_TEMPERATURE: Final = 1e-5
"""The temperature at and below which sampling is greedy: dividing by less would overflow."""

LOWEST_PRIORITY: Final = 2**62
"""The priority with which a request runs after all other waiting requests."""

MAX_DRAFT_TOKENS: Final = 32
"""The maximum number of tokens of one draft, from any source. Larger values in requests are reduced
to it."""


class FinishReason(Enum):
    """Why a sample ended, by the names of OpenAI and vLLM."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class GrammarKind(Enum):
    """The format of a grammar's source. The values are its names in messages."""

    JSON_SCHEMA = "JSON schema"
    JSON_OBJECT = "JSON object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural tag"
    CALLS = "schema of the tools"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the text of a sample.

    Attributes:
        source: a schema, list of choices or structural tag format as JSON; a regular expression;
            Lark, GBNF or EBNF rules; "" for JSON_OBJECT and CALLS.
        param: the request's field, for messages.
        tree: the grammar of the whole text, for example with reasoning, in which `Answer` stands
            for the part constrained by `source` (absent for CALLS); None = `source` constrains the
            whole text.
        compiled: the backend's compiled form; None = not compiled yet.
    """

    kind: GrammarKind
    source: str
    param: str = field(default="response_format", compare=False)
    tree: Node | None = None
    compiled: object = field(default=None, compare=False, repr=False)


class EarlyStopping(Enum):
    """When a beam search ends: with `num_beams` finished candidates (EARLY), once no running
    beam is likely to beat them (HEURISTIC), or once none can (NEVER). As in transformers'
    `early_stopping` True, False and "never"."""

    EARLY = True
    HEURISTIC = False
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Deterministic search for the most likely continuations, instead of sampling.

    The request's samples are the `n` best beams. They are returned when the search has ended, one
    output each, best first.

    Attributes:
        num_beams: beams in all groups together, a multiple of `num_beam_groups`, at least 2.
        num_beam_groups: groups between which `diversity_penalty` enforces differences.
        length_penalty: candidates are ranked by sum of log probabilities / length**penalty.
        param: the field of the request with the number of beams, for errors.
    """

    num_beams: int
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC
    param: str = "best_of"


class SamplingFields(Struct, frozen=True, kw_only=True):
    """The sampling parameters in requests and generation_config.json, one field with its table row
    each. None = not given.

    A new sampling parameter is a field here, an attribute of `SamplingParams`, and a processor in
    `engine.processors`.
    """

    temperature: Annotated[
        float | None,
        Field(
            description="Divides the logits. Up to 0.00001 the likeliest token is taken.",
            range=Range(0, 2),
            recommended=Range(0, 10**9),
            is_param=True,
            defaults={"ollama": 0.8, "gguf": 0.8},
            names={"ollama": "temperature", "gguf": "temp", "trace": "gen_ai.request.temperature"},
            genai=GenaiUse.SAMPLING,
            echo="*",
            peers=("0 to 2", "from 0", "0 to 2"),
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Field(
            description="Keeps the likeliest tokens whose probabilities add up to this value.",
            range=Range(0, 1, low_open=True),
            recommended=Range(0, 1, low_open=True),
            is_param=True,
            defaults={"ollama": 0.9, "gguf": 0.95},
            names={"ollama": "top_p", "gguf": "top_p", "trace": "gen_ai.request.top_p"},
            genai=GenaiUse.SAMPLING,
            echo="*",
            peers=("0 to 1", "above 0, to 1", "0 to 1"),
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Field(
            description="Keeps only this number of the likeliest tokens.",
            range=Range(0, also=-1),
            ranges={"ovms": Range(1, also=-1)},
            recommended=Range(0, 10**9),
            is_param=True,
            defaults={"ovms": 40, "ollama": 40, "gguf": 40},
            names={"ollama": "top_k", "gguf": "top_k", "trace": "gen_ai.request.top_k"},
            genai=GenaiUse.OTHER,
            peers=("-", "from 0, or -1", "from 1, or -1; default 40"),
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Field(
            description="Drops tokens less likely than this share of the likeliest one.",
            range=Range(0, 1),
            ranges={"ovms": Range(0, 1, high_open=True)},
            recommended=Range(0, 1),
            is_param=True,
            defaults={"gguf": 0.05},
            names={"ollama": "min_p", "gguf": "min_p"},
            genai=GenaiUse.SAMPLING,
            echo="ovms",
            peers=("-", "0 to 1", "0 to below 1"),
        ),
    ] = None
    seed: Annotated[
        int | None,
        Field(
            description="Makes a request repeatable: equal seeds draw equal tokens.",
            range=Range(*INT64),
            ranges={"ovms": Range(0, UINT32_MAX)},
            is_param=True,
            names={"ollama": "seed", "trace": "gen_ai.request.seed"},
            genai=GenaiUse.OTHER,
            peers=("best effort", "64 bits, signed", "32 bits"),
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Field(
            description="Divides positive logits of tokens in prompt and output.",
            range=Range(1e-37, 1e38),  # the range of float32
            recommended=Range(0, 10**9, low_open=True),
            is_param=True,
            names={"ollama": "repeat_penalty", "gguf": "penalty_repeat"},
            genai=GenaiUse.ALWAYS,
            peers=("-", "above 0", "any number"),
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Field(
            description="Lowers a token's logit for each time it is in the output.",
            range=Range(-2, 2),
            recommended=Range(-2, 2),
            is_param=True,
            names={"ollama": "frequency_penalty", "trace": "gen_ai.request.frequency_penalty"},
            genai=GenaiUse.ALWAYS,
            echo="*",
            peers=("-2 to 2", "-2 to 2", "-2 to 2"),
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Field(
            description="Lowers the logit of each token that is in the output.",
            range=Range(-2, 2),
            recommended=Range(-2, 2),
            is_param=True,
            names={"ollama": "presence_penalty", "trace": "gen_ai.request.presence_penalty"},
            genai=GenaiUse.ALWAYS,
            echo="*",
            peers=("-2 to 2", "-2 to 2", "-2 to 2"),
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        Field(
            description="Beam search ranks texts by log probability / length ** penalty.",
            range=Range(-20, 20),
            recommended=Range(-20, 20),
            genai=GenaiUse.OTHER,
            peers=("-", "any number", "any number"),
        ),
    ] = None


class SamplingDefaults(SamplingFields, frozen=True, kw_only=True):
    """The default sampling parameters in the model's generation_config.json; None = not given."""

    max_new_tokens: Annotated[
        int | None, Field(recommended=Range(1), names={"ollama": "num_predict"})
    ] = None


ALL_LOGPROBS = -1
"""The value of `logprobs` that requests the whole vocabulary."""


class ReasoningTags(NamedTuple):
    """The markup of reasoning in generated text.

    Attributes:
        begin: the text that opens reasoning.
        end: the text with which the model ends reasoning.
        closing_token_ids: the tokens that are forced when the budget is used up.
    """

    begin: bytes
    end: bytes
    closing_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """A limit on reasoning tokens. When it is reached, the closing tokens are forced, and the
    answer follows.

    Attributes:
        num_tokens: the limit, over all reasoning sections. Opening and closing tags do not count.
        tags: the pairs of tags that open and close reasoning. If the text begins within reasoning,
            the first pair applies.
        is_inside: whether the text begins within reasoning.
        is_anywhere: whether reasoning may begin in the middle of the text; otherwise only at the
            beginning.
        other_ends: further texts that end a section, such as those that begin a tool call.
        token_bytes: the text of each token, by id.
    """

    num_tokens: int
    tags: tuple[ReasoningTags, ...]
    is_inside: bool
    is_anywhere: bool
    other_ends: tuple[bytes, ...]
    token_bytes: Sequence[bytes] = field(compare=False, repr=False)


class RepetitionDetection(NamedTuple):
    """Ends a sample that repeats itself.

    Attributes:
        max_size, min_size: the number of tokens of a pattern; `min_size` is at least 1.
        min_count: the number of consecutive repetitions that ends the sample, at least 2.
    """

    max_size: int
    min_size: int
    min_count: int

    def finds(self, token_ids: array[int], first: int) -> bool:
        """Returns whether the tokens from index `first` on end with a repeated pattern."""
        end = len(token_ids)
        longest = min(self.max_size, (end - first) // self.min_count)
        for size in range(self.min_size, longest + 1):
            if token_ids[end - 1] != token_ids[end - 1 - size]:
                continue
            start = end - size * self.min_count
            # A sequence has a period if it equals itself shifted by the period.
            if token_ids[start + size : end] == token_ids[start : end - size]:
                return True
        return False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The validated sampling parameters of a request; the defaults mean "off".

    Attributes:
        max_tokens: new tokens per sample; None = up to the model's context length.
        temperature: `GREEDY_TEMPERATURE` and below = greedy.
        top_p: 0 < top_p <= 1.
        top_k: 0 = off.
        min_p: tokens less likely than `min_p` times the most likely one are dropped; 0 <= min_p <
            1.
        seed: any integer; None = random. A seeded request gets the same tokens regardless of other
            requests; sample `i` of the request draws from its own stream of (seed, i).
        n: number of samples drawn from the prompt.
        ignore_eos: do not stop at `eos_token_ids`.
        eos_token_ids: tokens that end a sample and are not part of its text.
        stop_token_ids: further such tokens, not affected by `ignore_eos`.
        min_tokens: no token of these two kinds is drawn before a sample has this many tokens.
        repetition_penalty: > 0; divides positive logits of tokens in prompt and output.
        frequency_penalty: subtracted from a token's logit for each occurrence in the output.
        presence_penalty: subtracted once from the logit of each token in the output.
        logit_bias: (token id, number added to its logit) pairs.
        allowed_token_ids: if not None, only these are drawn.
        bad_words_token_ids: sequences of ids that never appear in the output.
        logprobs: number of top log probabilities to report with each token (0 = the token's own
            only, `ALL_LOGPROBS` = all), or None for no report.
        logprob_token_ids: the tokens whose log probabilities are reported instead of the top ones;
            empty = the top ones.
        prompt_logprobs: like `logprobs`, for the prompt's tokens. Disables prefix cache hits.
        grammar: the grammar of the text, which ends when the grammar does.
        beam_search: beam search instead of sampling, without `temperature` and filters; None =
            sampling.
        num_assistant_tokens: draft tokens at a time; 0 = only tokens forced by a grammar, None = as
            many as pay off.
        max_ngram_size: the maximum length of the suffix that prompt lookup searches for.
        assistant_confidence_threshold: a draft ends where the draft model's probability is below
            this; 0 <= threshold <= 1. None = drafts have a fixed length.
        stop_strings: only a hint: the decoder of the text detects stop strings and aborts the
            sample. A backend that sees text may end the sample itself.
        reasoning_budget: the limit on reasoning; None = no limit.
        repetition_detection: ends a sample that repeats itself; None = off.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    ignore_eos: bool = False
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    beam_search: BeamSearch | None = None
    num_assistant_tokens: int | None = None
    max_ngram_size: int | None = None
    assistant_confidence_threshold: float | None = None
    stop_strings: tuple[str, ...] = ()
    reasoning_budget: ReasoningBudget | None = None
    repetition_detection: RepetitionDetection | None = None


def sampling_numbers(
    requested: SamplingFields, recommended: SamplingFields, dialect: str
) -> dict[str, Any]:
    """Returns the values, by name, of the attributes of `SamplingParams` that are in
    `SamplingFields`.

    The request's value takes precedence over the model's, then the dialect's. A missing name means
    the default of `SamplingParams`.
    """
    numbers = {}
    for name, row in rows_of(SamplingFields).items():
        if not row.field.is_param:
            continue
        for source in (requested, recommended):
            value = getattr(source, name)
            if value is not None:
                break
        else:
            value = row.field.defaults.get(dialect)
        if value is not None:
            numbers[name] = value
    return numbers


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position, before bias, penalties and temperature.

    Attributes:
        token_id: the token at this position.
        logprob: its log probability.
        rank: its rank by probability; 1 = the most likely.
        top_token_ids: the most likely tokens, in descending order; `token_id` may be among them.
        top_logprobs: their log probabilities.
    """

    token_id: int
    logprob: float
    rank: int
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


Image = NDArray[np.uint8]
"""The pixels of an image, uint8 [height, width, 3], RGB."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt for a vision model, which tokenizes text and images itself.

    Attributes:
        text: has `media.image_tags.image_tag(i)` at the position of image `i`. Includes the special
            tokens at the beginning, such as BOS, if the model needs them.
        name: the request's field with the prompt.
        image_names: the request's fields with the images.
    """

    text: str
    images: Sequence[Image] = ()
    name: str = "prompt"
    image_names: Sequence[str] = ()


ADAPTER_MARK: Final = b"\xff"
"""The first byte of an adapter's salt, which never occurs in UTF-8."""

ADAPTER_DIGEST_SIZE: Final = 32
"""The size of an adapter's digest in bytes."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter (LoRA) of a model, in memory.

    Attributes:
        name: the name that clients use instead of the model's.
        path: its directory.
        digest: SHA-256 of its files.
        number: the adapter's number, from 1; a model never reuses a number.
        created: Unix time in seconds.
    """

    name: str
    path: str
    digest: bytes
    number: int
    created: int


EndsText = Callable[[int, Iterable[int]], bool]
"""Returns whether a sample's text ends with a stop string. The arguments: the number of its tokens,
and an iterable of the tokens from the last one backwards."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to generate samples from one prompt.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: the prompt; with images, only the tokens of its text.
        priority: waiting requests with lower values run first.
        cache_salt: cached prefixes are shared only between requests with the same salt.
        tenant: cached prefixes on disk, and text for drafting, are shared only between requests of
            the same tenant; "" without API keys.
        owner: the API key or address, for sharing the engine fairly; "" = the tenant.
        prompt: the prompt as text with images, for a vision model.
        ends_text: returns whether a text ends with a stop string, for beam searches, whose beams
            cannot be aborted separately. Called on the engine thread.
        generated_token_ids: tokens of its only sample that an earlier process has generated. The
            sample continues after them; they are not output again.
        adapter: the LoRA adapter; None = the base model.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    prompt: TextPrompt | None = None
    ends_text: EndsText | None = None
    generated_token_ids: Sequence[int] = ()
    owner: str = ""
    adapter: Adapter | None = None

    @property
    def prefix_salt(self) -> bytes:
        """The adapter and the `cache_salt`, as bytes. Cached prefixes are shared only between
        requests with equal ones."""
        salt = (self.cache_salt or "").encode("utf-8", "surrogatepass")
        return salt if self.adapter is None else ADAPTER_MARK + self.adapter.digest + salt


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request can never run, detected only while running it. Fields as in `RequestError`."""

    message: str
    param: str | None = None
    code: str | None = None


def unfinishable_grammar(grammar: Grammar, error: str) -> Refusal:
    """Returns the refusal of a grammar with which no sample can be finished, detected while
    generating."""
    return Refusal(
        f"{grammar.param}: the {grammar.kind.value} cannot go on: {error}", param=grammar.param
    )


@dataclass(slots=True)
class GenerationOutput:
    """The tokens and results of one step for one sample of one request.

    Not frozen, because creating a frozen dataclass takes three times as long and each step creates
    one per sample. Must not be modified.

    Attributes:
        index: the index of the sample in the request, from 0.
        token_ids: the new tokens, without the end-of-text token that finished the sample.
        finish_reason: set on the sample's last output only.
        num_generated_tokens: tokens generated so far for this sample, including the end-of-text
            token, as usage counts them.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        stop_token_id: the token that ended the sample, if one of `stop_token_ids` did.
        logprobs: if requested, one entry per token of `token_ids`, then one for `stop_token_id` if
            that is set.
        prompt_logprobs: if requested, on the first output of sample 0: one entry per prompt token,
            the first being None.
        queue_time: seconds that the request waited to run; on its first output only.
        error: the error message if `finish_reason` is `ERROR`.
        refusal: set if the request itself caused the `ERROR`.
        num_prompt_tokens: prompt tokens including image tokens, if `prompt_token_ids` lacks these;
            on the sample's last output only.
        num_accepted_tokens: the number of new tokens that were accepted drafts, if known.
    """

    index: int
    token_ids: Sequence[int]
    finish_reason: FinishReason | None
    num_generated_tokens: int
    num_cached_tokens: int = 0
    stop_token_id: int | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    queue_time: float | None = None
    error: str | None = None
    refusal: Refusal | None = None
    num_prompt_tokens: int | None = None
    num_accepted_tokens: int = 0


class EngineOutput(NamedTuple):
    """An output and the id of its request."""

    request_id: str
    output: GenerationOutput


class WeightCount(NamedTuple):
    """The size and storage type of a model's weights.

    Attributes:
        num_parameters: the number of parameters.
        element_type: the storage type of most parameters, by OpenVINO's name ("u4", "f16").
    """

    num_parameters: int
    element_type: str


class Task(Enum):
    """The task of a model. The values are OVMS's names."""

    TEXT_GENERATION = "text_generation"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SPEECH = "speech2text"
    IMAGES = "image_generation"
    SPEECH_OUT = "text2speech"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model, from its files.

    Attributes:
        name: the name that clients use.
        created: Unix time in seconds, reported by `/models`.
        max_model_len: context length in tokens, prompt and output together.
        context_reason: why it is shorter than the model's own, as a sentence for clients; "" = not
            shorter, or set by the operator.
        vocab_size: token ids are 0 <= id < vocab_size.
        eos_token_ids: all end tokens of generation_config.json, config.json and the tokenizer.
        defaults: the model's default sampling parameters.
        config: config.json as read.
        takes_images: whether prompts may have images, and are `TextPrompt`s.
        fingerprint: a hash of the files; "" = unknown.
        weights: the size and storage type of its weights; None = unknown.
    """

    name: str
    created: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    config: Mapping[str, object] = field(default_factory=dict)
    takes_images: bool = False
    context_reason: str = ""
    fingerprint: str = ""
    weights: WeightCount | None = None
