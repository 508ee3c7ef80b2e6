"""Reads `n`, `best_of` and the fields of beam search: how many texts are made for a prompt, how,
and how many of them the client gets."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.api.wire.dialect import Dialect
from fastovms.config.api_config import ApiConfig
from fastovms.config.model_config import ModelLimits
from fastovms.errors import InvalidField
from fastovms.params import BeamSearch, EarlyStopping, SamplingDefaults


@dataclass(frozen=True, slots=True)
class Candidates:
    """The texts that are made for a prompt.

    Attributes:
        n: how many are returned for each prompt.
        num_samples: how many are generated; of more than `n` the likeliest are returned.
        is_greedy: whether a single beam is left of the search that was asked for.
    """

    n: int
    num_samples: int
    beam_search: BeamSearch | None = None
    is_greedy: bool = False

    @property
    def are_ranked(self) -> bool:
        """Whether the candidates must be compared. The beams of a search come in order."""
        return self.num_samples > self.n


def candidates(
    body: GenerationFields, dialect: Dialect, defaults: SamplingDefaults, limits: ModelLimits
) -> Candidates:
    """Reads the fields that say how many texts are made.

    Raises:
        InvalidField: numbers contradict each other or cannot be streamed.
    """
    n = body.n or 1
    best_of = body.best_of
    beams = body.use_beam_search is True
    if best_of is not None:
        if dialect.best_of_is_beam_search:
            beams = beams or best_of > 1
            if best_of >= limits.best_of_limit:
                raise InvalidField(
                    f"best_of must be less than {limits.best_of_limit}, not {show(best_of)}",
                    param="best_of",
                )
        if body.stream is True and (dialect.best_of_is_beam_search or (best_of > 1 and not beams)):
            raise InvalidField("best_of cannot be used when stream is true", param="best_of")
        if n > best_of:
            raise InvalidField(f"n must be at most best_of ({best_of}), not {n}", param="n")
    early_stopping = _early_stopping(body)
    if not beams:
        return Candidates(n, best_of or n)
    search = _beam_search(body, best_of or n, early_stopping, defaults)
    return Candidates(n, n, search, is_greedy=search is None)


def _early_stopping(body: GenerationFields) -> EarlyStopping:
    value = False if body.early_stopping is None else body.early_stopping
    try:
        return EarlyStopping(value)
    except ValueError:
        raise InvalidField(
            f'early_stopping must be true, false or "never", not {show(value)}',
            param="early_stopping",
        ) from None


def _beam_search(
    body: GenerationFields,
    num_beams: int,
    early_stopping: EarlyStopping,
    defaults: SamplingDefaults,
) -> BeamSearch | None:
    """Returns the search that is asked for; None = a single beam, which is greedy decoding."""
    num_groups = body.num_beam_groups or 1
    diversity_penalty = body.diversity_penalty or 0.0
    if num_beams % num_groups:
        raise InvalidField(
            f"num_beam_groups must divide the number of beams ({num_beams}), not {num_groups}",
            param="num_beam_groups",
        )
    if diversity_penalty and num_groups == 1:
        raise InvalidField(
            "diversity_penalty needs num_beam_groups of at least 2", param="diversity_penalty"
        )
    if num_beams == 1:
        return None
    length_penalty = body.length_penalty
    if length_penalty is None:
        length_penalty = 1.0 if defaults.length_penalty is None else defaults.length_penalty
    return BeamSearch(
        num_beams=num_beams,
        num_beam_groups=num_groups,
        diversity_penalty=diversity_penalty,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        param="n" if body.best_of is None else "best_of",
    )


def check_num_choices(chosen: Candidates, config: ApiConfig, num_prompts: int = 1) -> None:
    """Raises InvalidField: more samples than one request may ask for."""
    most = config.max_choices
    if num_prompts * chosen.num_samples <= most:
        return
    name = "n" if chosen.num_samples == chosen.n else "best_of"
    prompts = f" with {num_prompts} prompts" if num_prompts > 1 else ""
    raise InvalidField(
        f"{name} must be at most {most // num_prompts}{prompts}, not {chosen.num_samples}",
        param=name,
    )
