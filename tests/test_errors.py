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


@pytest.mark.parametrize("make", [RequestError, Overloaded, BackendError])
def test_lone_surrogates_in_errors_are_escaped(make: type[Exception]) -> None:
    assert str(make("bad \ud800")) == r"bad \ud800"
    error = RequestError("bad \ud800", param="\ud800")
    assert (error.message, error.param) == (r"bad \ud800", r"\ud800")


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
