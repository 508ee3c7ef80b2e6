"""Llama 3: which text is a call, and has to follow its schema."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.tools import CallChoice
from fastovms.text.tools.json_formats.llama3 import LLAMA3
from tests.text.tools.checks import SHOP
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("plain", True),
        ('{"name": "Ann"}', True),
        ('so {"name": "now"}', True),
        ('{"name": "now", "parameters": {}}', True),
        (' {"name": "now"}', False),
        ('{"name": "now", "arguments": {}}', False),
        ('so <|python_tag|>{"name": "now", "parameters": {}}', True),
        ('so <|python_tag|>{"name": "Ann", "parameters": {}}', False),
    ],
)
def test_what_begins_as_a_call_is_constrained(text: str, is_accepted: bool) -> None:
    for specials in ((), LLAMA3.tags):
        grammar = call_grammar(LLAMA3, None, CallChoice(SHOP), prompt="")
        assert vocabulary(*specials).accepts(grammar, text) is is_accepted
