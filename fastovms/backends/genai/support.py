"""Says what the pipeline cannot do, by the names that clients know."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastovms.backends.genai.tag_translation import (
    CannotTranslate,
    needs_structural_tag,
    structural_tag,
)
from fastovms.config import EngineConfig
from fastovms.engine.drafting.draft_policy import DEFAULT_NUM_ASSISTANT_TOKENS, MAX_DRAFT_TOKENS
from fastovms.errors import FieldFault, InvalidField, RequestError
from fastovms.params import Grammar, SamplingParams

logger = logging.getLogger(__name__)

_REASON: Final = "is not supported by the genai backend, which runs this model"


@dataclass(frozen=True, slots=True)
class Assistance:
    """What guesses tokens ahead: nothing, earlier text, or a smaller model. The pipeline is loaded
    for one of them, and then applies it to every request."""

    prompt_lookup: bool = False
    draft_model: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> Assistance:
        return cls(
            prompt_lookup=config.enable_prompt_lookup is True,
            draft_model=config.draft_model is not None,
        )

    def __bool__(self) -> bool:
        return self.prompt_lookup or self.draft_model


def num_assistant_tokens(params: SamplingParams) -> int:
    """Returns how many tokens are guessed at a time."""
    return params.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS


def token_budget(config: EngineConfig) -> int:
    """Returns the token budget of a step: at least what one sequence with its drafts takes."""
    if Assistance.of(config).prompt_lookup:
        return max(config.token_budget, MAX_DRAFT_TOKENS + 1)
    return config.token_budget


def has_prefix_cache(config: EngineConfig) -> bool:
    """Returns whether the pipeline has a prefix cache. With a draft model it has none: a sampled
    sequence that found something in it would end the pipeline."""
    return config.enable_prefix_caching and not Assistance.of(config).draft_model


_Check = Callable[[SamplingParams], bool]

_UNSUPPORTED: Final[tuple[tuple[str, str, _Check], ...]] = (
    ("logprobs", "logprobs above 1", lambda p: p.logprobs not in (None, 0, 1)),
    ("prompt_logprobs", "prompt_logprobs", lambda p: p.prompt_logprobs is not None),
    ("logit_bias", "logit_bias", lambda p: bool(p.logit_bias)),
    ("allowed_token_ids", "allowed_token_ids", lambda p: p.allowed_token_ids is not None),
    ("bad_words", "bad_words", lambda p: bool(p.bad_words_token_ids)),
    (
        "ignore_eos",
        # With a stop token of its own a search heeds that one alone.
        "ignore_eos with beam search and no stop_token_ids",
        lambda p: p.beam_search is not None and p.ignore_eos and not p.stop_token_ids,
    ),
    (
        "frequency_penalty",
        "frequency_penalty with beam search",
        lambda p: p.beam_search is not None and p.frequency_penalty != 0,
    ),
    (
        "presence_penalty",
        "presence_penalty with beam search",
        lambda p: p.beam_search is not None and p.presence_penalty != 0,
    ),
    (
        "repetition_penalty",
        "repetition_penalty with beam search",
        lambda p: p.beam_search is not None and p.repetition_penalty != 1,
    ),
)
"""The field, what of it is not supported, and whether a request wants it."""


def check_supported(params: SamplingParams, assistance: Assistance, max_num_seqs: int) -> None:
    """Raises RequestError for what the pipeline cannot do, or would silently not do."""
    for param, what, is_wanted in _UNSUPPORTED:
        if is_wanted(params):
            raise FieldFault(param, f"{what.removeprefix(param)} {_REASON}")
    if params.grammar is not None:
        check_grammar(params.grammar)
        if params.beam_search is not None:
            raise InvalidField(
                f"{params.grammar.param} with beam search {_REASON}", param=params.grammar.param
            )
    if params.beam_search is None:
        return
    if assistance:
        raise InvalidField(f"beam search with drafts {_REASON}", param=params.beam_search.param)
    width = params.beam_search.num_beams
    if width > max_num_seqs:
        raise RequestError(
            f"a search with {width} beams cannot run: at most {max_num_seqs} sequences do at once",
            param=params.beam_search.param,
        )


def check_grammar(grammar: Grammar) -> None:
    """Raises InvalidField for grammars that the pipeline has no form for. What is wrong with one is
    found out by compiling it."""
    if not needs_structural_tag(grammar):
        return
    try:
        structural_tag(grammar)
    except CannotTranslate as error:
        raise InvalidField(
            f"{grammar.param} {_REASON}: it needs {error}", param=grammar.param
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.debug("%s is malformed", grammar.param)


def check_salt(cache_salt: str | None, *, enable_prefix_caching: bool) -> None:
    """Raises InvalidField where requests would share cached prompts that the salt is to keep
    apart."""
    if cache_salt is not None and enable_prefix_caching:
        raise InvalidField(f"cache_salt {_REASON}, with its prefix cache on", param="cache_salt")
