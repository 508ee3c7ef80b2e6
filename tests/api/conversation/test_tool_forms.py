"""Tools of each form become functions for the model."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.tool_forms import read_custom, read_function
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.errors import InvalidField
from tests.api.chat_models import grammar_format

NESTED = 'start: e\ne: "(" e ")" | "x"'


def test_a_function_of_a_namespace():
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    read = read_function(function, "tools[0]", "sums")
    assert read.target == ToolTarget("add", "sums")
    assert read.tool.name == read.function["name"] == "sums__add"
    assert read.function["description"] == "Adds."
    assert not read.is_strict


@pytest.mark.parametrize(
    ("form", "words", "pattern", "is_enforced"),
    [
        (None, "free text", None, True),
        ({"type": "text"}, "free text", None, True),
        (grammar_format("a+", "regex"), "expression:\na+", "^(?:a+)$", True),
        (grammar_format("^(a|b)[|]$", "regex"), "^(a|b)[|]$", "^(?:(a|b)[|])$", True),
        (grammar_format(r"^a\|\$", "regex"), r"^a\|\$", r"^(?:a\|\$)$", True),
        (grammar_format("^a|b$", "regex"), "^a|b$", "^(?:^a|b$)$", True),
        (grammar_format("^a+$", "regex"), "expression:\n^a+$", "^(?:a+)$", True),
        ({"type": "grammar", "syntax": "regex", "definition": "a|b"}, "a|b", "^(?:a|b)$", True),
        (grammar_format('start: "a"'), 'grammar:\nstart: "a"', "^(?:(?:(?:a)))$", True),
        (grammar_format(NESTED), NESTED, None, False),
    ],
)
def test_a_custom_tool(form, words, pattern, is_enforced):
    custom = {"name": "write", "description": "Writes.", **({"format": form} if form else {})}
    read = read_custom(custom, "tools[0].custom")
    assert read.target == ToolTarget("write", None, is_custom=True)
    assert read.function["description"].startswith("Writes.\n\n")
    assert read.function["description"].endswith(words) or words == "free text"
    assert words in read.function["description"]
    assert read.function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert read.tool.parameters["properties"]["input"].get("pattern") == pattern
    assert read.is_strict == (pattern is not None)
    assert ("tools[0].custom.format" in read.warning) == (not is_enforced)


@pytest.mark.parametrize("expression", ["a)|(b", "a)", "[(])", r"(\))|(a))"])
def test_an_expression_that_closes_what_it_has_not_opened(expression):
    form = grammar_format(expression, "regex")
    with pytest.raises(InvalidField, match=r"definition cannot be used: unopened group$") as error:
        read_custom({"name": "write", "format": form}, "tools[0].custom")
    assert error.value.param == "tools[0].custom.format.grammar.definition"


@pytest.mark.parametrize("expression", ["(a)|(b)", r"a\)", "[)]", "[])]"])
def test_an_expression_in_which_a_parenthesis_closes_nothing(expression):
    form = grammar_format(expression, "regex")
    read = read_custom({"name": "write", "format": form}, "tools[0].custom")
    assert read.input_grammar is not None
    assert read.input_grammar.source == expression
