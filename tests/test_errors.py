"""Errors, and what clients are told of them."""

from __future__ import annotations

import pytest

from fastovms.errors import (
    BackendError,
    BrokenLogits,
    FieldFault,
    InvalidField,
    Overloaded,
    RequestError,
    description_of,
)

HALF = "a\ud800"
"""Text with half a character, which no answer can have."""


def test_lone_surrogates_in_errors_are_escaped() -> None:
    error = RequestError(HALF, param=HALF)
    for text in (error.message, str(error), error.param, str(BackendError(HALF))):
        assert text is not None
        assert text.encode().startswith(b"a")


def test_a_fault_of_a_field_that_the_client_knows_by_another_name() -> None:
    fault = FieldFault("num_beams", " is too large", before="so ")
    assert (fault.message, fault.param) == ("so num_beams is too large", "num_beams")
    named = fault.named("best_of", "best_of of the search")
    assert type(named) is InvalidField
    assert (named.message, named.param) == ("so best_of of the search is too large", "best_of")


@pytest.mark.parametrize(
    ("error", "description"),
    [
        (Overloaded("busy"), "busy"),
        (BrokenLogits(), "the model gave logits that are not numbers (NaN or infinite)"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_description_of_an_error_is_its_message_or_type_and_text(
    error: Exception, description: str
) -> None:
    assert description_of(error) == description
