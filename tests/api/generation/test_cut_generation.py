"""What a client is told whose generation is cut."""

from __future__ import annotations

import pytest

from fastovms.api.generation.cut_generation import failure
from fastovms.errors import BackendUnavailable, EngineFailed, RequestError
from fastovms.params import FinishReason, GenerationOutput, Refusal

REFUSAL = Refusal("too long", "prompt", "context_length_exceeded")


def ended(reason: FinishReason, error: str | None = None, refusal: Refusal | None = None):
    return GenerationOutput(0, (), reason, 0, error=error, refusal=refusal)


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        (ended(FinishReason.ABORT), BackendUnavailable, "shutting down"),
        (ended(FinishReason.ERROR), EngineFailed, "generation failed"),
        (ended(FinishReason.ERROR, error="gone"), EngineFailed, "gone"),
        (ended(FinishReason.ERROR, refusal=REFUSAL), RequestError, "long"),
    ],
)
def test_the_error_says_what_has_cut_it(
    output: GenerationOutput, kind: type[Exception], message: str
) -> None:
    error = failure(output)
    assert type(error) is kind
    assert message in str(error)


def test_a_refusal_names_the_field() -> None:
    error = failure(ended(FinishReason.ERROR, refusal=REFUSAL))
    assert isinstance(error, RequestError)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
