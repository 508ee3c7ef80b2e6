"""Decides what the genai backend does with each field of a request: hands it on, refuses it, or
ignores it for a reason.

A field that is missing here fails a test, so that none goes unheard by oversight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from fastovms.errors import FieldFault
from fastovms.params import SamplingParams

NOT_SUPPORTED: Final = "is not supported by the genai backend, which runs this model"


class Handling(Enum):
    """CONFIG: `generation_config` says it to the pipeline. ENGINE: `PipelineEngine`, or what
    surrounds it, does what the field asks. REFUSED: whoever sets it gets an error. IGNORED: it
    goes unheard, and no answer is wrong for it."""

    CONFIG = "config"
    ENGINE = "engine"
    REFUSED = "refused"
    IGNORED = "ignored"


class Limit(NamedTuple):
    """What is refused of a field.

    Attributes:
        words: what the error says behind the field's name, such as " above 1".
        is_wanted: whether a request asks for it.
    """

    words: str
    is_wanted: Callable[[SamplingParams], bool]


class FieldDecision(NamedTuple):
    """What becomes of a field.

    Attributes:
        why: the reason, where the field is ignored; otherwise how it is handled, where that is not
            plain.
        limits: what of it is refused.
        param: the client's name of the field, where it is another.
    """

    handling: Handling
    why: str = ""
    limits: tuple[Limit, ...] = ()
    param: str | None = None


def _refused(
    is_wanted: Callable[[SamplingParams], bool], param: str | None = None
) -> FieldDecision:
    return FieldDecision(Handling.REFUSED, limits=(Limit("", is_wanted),), param=param)


def _not_with_beams(is_set: Callable[[SamplingParams], bool]) -> FieldDecision:
    def is_wanted(params: SamplingParams) -> bool:
        return params.beam_search is not None and is_set(params)

    return FieldDecision(Handling.CONFIG, limits=(Limit(" with beam search", is_wanted),))


_CONFIG: Final = FieldDecision(Handling.CONFIG)
_ASSISTED: Final = FieldDecision(
    Handling.CONFIG, "only where the pipeline is loaded with assistance; it changes no text"
)

SAMPLING_FIELDS: Final[Mapping[str, FieldDecision]] = {
    "logprobs": FieldDecision(
        Handling.CONFIG,
        limits=(Limit(" above 1", lambda p: p.logprobs not in (None, 0, 1)),),
    ),
    "prompt_logprobs": _refused(lambda p: p.prompt_logprobs is not None),
    "logit_bias": _refused(lambda p: bool(p.logit_bias)),
    "allowed_token_ids": _refused(lambda p: p.allowed_token_ids is not None),
    "bad_words_token_ids": _refused(lambda p: bool(p.bad_words_token_ids), "bad_words"),
    "ignore_eos": FieldDecision(
        Handling.CONFIG,
        limits=(
            Limit(
                # With a stop token of its own a search heeds that one alone.
                " with beam search and no stop_token_ids",
                lambda p: p.beam_search is not None and p.ignore_eos and not p.stop_token_ids,
            ),
        ),
    ),
    "frequency_penalty": _not_with_beams(lambda p: p.frequency_penalty != 0),
    "presence_penalty": _not_with_beams(lambda p: p.presence_penalty != 0),
    "repetition_penalty": _not_with_beams(lambda p: p.repetition_penalty != 1),
    "max_tokens": FieldDecision(Handling.ENGINE, "with what the context leaves"),
    "temperature": _CONFIG,
    "top_p": _CONFIG,
    "top_k": _CONFIG,
    "min_p": _CONFIG,
    "seed": FieldDecision(Handling.ENGINE, "each sample gets a seed of its own"),
    "n": FieldDecision(Handling.ENGINE, "each sample is a request of the pipeline's"),
    "eos_token_ids": _CONFIG,
    "stop_token_ids": _CONFIG,
    "min_tokens": _CONFIG,
    "grammar": FieldDecision(Handling.CONFIG, "`check_supported` refuses what has no form there"),
    "beam_search": FieldDecision(Handling.CONFIG, "`check_supported` refuses too wide a search"),
    "num_assistant_tokens": _ASSISTED,
    "max_ngram_size": _ASSISTED,
    "assistant_confidence_threshold": _ASSISTED,
    "stop_strings": _CONFIG,
}
"""Every field of `SamplingParams`; the first ones are those of which something is refused."""

REQUEST_FIELDS: Final[Mapping[str, FieldDecision]] = {
    "request_id": FieldDecision(Handling.ENGINE, "the pipeline knows requests by numbers"),
    "prompt_token_ids": FieldDecision(Handling.ENGINE),
    "params": FieldDecision(Handling.ENGINE, "see `SAMPLING_FIELDS`"),
    "priority": FieldDecision(Handling.ENGINE, "requests wait in the engine, not in the pipeline"),
    "cache_salt": FieldDecision(
        Handling.REFUSED, "with the prefix cache on, by `check_salt`; without it nothing is shared"
    ),
    "tenant": FieldDecision(
        Handling.IGNORED, "nothing outlives the process, and drafts are guessed from no other text"
    ),
    "owner": FieldDecision(Handling.IGNORED, "the pipeline does not preempt by owner"),
    "prompt": FieldDecision(Handling.ENGINE),
    "ends_text": FieldDecision(
        Handling.IGNORED,
        "functions cannot be sent to the process; the stop strings end the texts of a search",
    ),
    "generated_token_ids": FieldDecision(
        Handling.REFUSED, "when the request is submitted; the pipeline takes prompts only"
    ),
}
"""Every field of `GenerationRequest`."""


def check_fields(params: SamplingParams) -> None:
    """Raises FieldFault for what the pipeline cannot do of a single field."""
    for name, decision in SAMPLING_FIELDS.items():
        for limit in decision.limits:
            if limit.is_wanted(params):
                raise FieldFault(decision.param or name, f"{limit.words} {NOT_SUPPORTED}")
