"""Tools and choices are repeated as OpenAI has them."""

from __future__ import annotations

import pytest

from fastovms.api.responses.output.echoed_tools import echoed_choice, echoed_tools

FUNCTION = {"type": "function", "name": "f"}
TOLD = {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
CUSTOM = {"type": "custom", "name": "c", "format": {"type": "text"}}
NAMESPACE = {"type": "namespace", "name": "n", "description": "N", "tools": [FUNCTION, CUSTOM]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (FUNCTION, [TOLD]),
        ({"type": "function", "function": {"name": "f"}}, [TOLD]),
        (CUSTOM, [CUSTOM]),
        ({"type": "custom", "custom": {"name": "c"}}, [{"type": "custom", "name": "c"}]),
        (NAMESPACE, [{**NAMESPACE, "tools": [TOLD, CUSTOM]}]),
        ({**NAMESPACE, "tools": [NAMESPACE]}, [{**NAMESPACE, "tools": []}]),
        ({"type": "web_search"}, []),
    ],
)
def test_tools(given, told):
    assert echoed_tools([given]) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "auto"),
        ("required", "required"),
        (FUNCTION, FUNCTION),
        ({"type": "function", "function": {"name": "f"}}, FUNCTION),
        ({"type": "custom", "name": "c"}, {"type": "custom", "name": "c"}),
        (
            {"type": "allowed_tools", "tools": [FUNCTION, {"type": "web_search"}, CUSTOM]},
            {"type": "allowed_tools", "mode": "auto",
             "tools": [FUNCTION, {"type": "custom", "name": "c"}]},
        ),
    ],
)  # fmt: skip
def test_choices(given, told):
    assert echoed_choice(given) == told
