"""Faults name a field as the client has sent it."""

from __future__ import annotations

import pytest

from fastovms.api.request.prompting.preparation import FieldName, FieldNames
from fastovms.errors import FieldFault

NAMES = FieldNames(
    "input", "max_output_tokens", "top_logprobs", FieldName("echo", "echo with logprobs")
)


@pytest.mark.parametrize(
    ("fault", "param", "message"),
    [
        (FieldFault("logprobs", " above 1: no"), "top_logprobs", "top_logprobs above 1: no"),
        (FieldFault("prompt_logprobs", ": no"), "echo", "echo with logprobs: no"),
        (FieldFault("logit_bias", ": no logprobs"), "logit_bias", "logit_bias: no logprobs"),
        (
            FieldFault("messages", ": no messages", before="cannot render the "),
            "input",
            "cannot render the input: no messages",
        ),
    ],
)
def test_faults_of_lower_layers(fault, param, message):
    told = NAMES.named(fault)
    assert (told.param, told.message) == (param, message)


def test_names_of_prompts():
    assert NAMES.prompt_at(0, 1) == "input"
    assert NAMES.prompt_at(1, 2) == "input[1]"
