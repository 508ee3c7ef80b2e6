"""Refuses requests that OpenVINO GenAI's pipeline cannot serve, by the names that clients know."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fastovms.backends.genai.field_decisions import NOT_SUPPORTED, check_fields
from fastovms.backends.genai.tag_translation import (
    CannotTranslate,
    structural_tag,
)
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.drafting.draft_policy import DEFAULT_NUM_ASSISTANT_TOKENS
from fastovms.errors import InvalidField, RequestError
from fastovms.params import MAX_DRAFT_TOKENS, Grammar, SamplingParams

logger = logging.getLogger(__name__)


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


def check_supported(params: SamplingParams, assistance: Assistance, max_num_seqs: int) -> None:
    """Raises RequestError for what the pipeline cannot do, or would silently not do."""
    check_fields(params)
    if params.grammar is not None:
        check_grammar(params.grammar)
        if params.beam_search is not None:
            raise InvalidField(
                f"{params.grammar.param} with beam search {NOT_SUPPORTED}",
                param=params.grammar.param,
            )
    if params.beam_search is None:
        return
    if assistance:
        raise InvalidField(
            f"beam search with drafts {NOT_SUPPORTED}", param=params.beam_search.param
        )
    width = params.beam_search.num_beams
    if width > max_num_seqs:
        raise RequestError(
            f"a search with {width} beams cannot run: at most {max_num_seqs} sequences do at once",
            param=params.beam_search.param,
        )


def check_grammar(grammar: Grammar) -> None:
    """Raises InvalidField for grammars that the pipeline has no form for. What is wrong with one is
    found out by compiling it."""
    if grammar.tree is None:
        return
    try:
        # What of a schema cannot be kept to is found out by its trial, too.
        structural_tag(grammar, write_json=lambda *_: {"type": "json_schema"})
    except CannotTranslate as error:
        raise InvalidField(
            f"{grammar.param} {NOT_SUPPORTED}: it needs {error}", param=grammar.param
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.debug("%s is malformed", grammar.param)


def check_salt(cache_salt: str | None, *, enable_prefix_caching: bool) -> None:
    """Raises InvalidField where requests would share cached prompts that the salt is to keep
    apart."""
    if cache_salt is not None and enable_prefix_caching:
        raise InvalidField(
            f"cache_salt {NOT_SUPPORTED}, with its prefix cache on", param="cache_salt"
        )
