"""Calls as in Python: which text is a call, and has to follow its schema."""

from __future__ import annotations

import pytest

from fastovms.text.output_grammar import call_grammar
from fastovms.text.tools import CallChoice
from fastovms.text.tools.literal_formats.pythonic import PYTHONIC
from tests.text.tools.checks import SHOP
from tests.vocabularies import vocabulary


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("plain", True),
        ("[1](a)", True),
        ("[note(a)]", True),
        ("so [now(1)]", True),
        ("[now()]", True),
        ('[search(query="a"), now()]', True),
        ("[now(1)]", False),
        (" [now()] text", False),
    ],
)
def test_what_begins_as_a_call_is_constrained(text: str, is_accepted: bool) -> None:
    grammar = call_grammar(PYTHONIC, None, CallChoice(SHOP), prompt="")
    assert vocabulary().accepts(grammar, text) is is_accepted
