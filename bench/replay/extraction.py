"""Extraction: the functions of a source text as JSON records with a schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from bench.replay.packages import Package
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import END_TOKEN_ID, Vocabulary
from fastovms.params import Grammar, GrammarKind

NUM_FUNCTIONS = 5
"""The number of functions in one prompt."""

_STRING = {"type": "string"}
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": _STRING,
            "parameters": {"type": "array", "items": _STRING},
            "returns": _STRING,
            "summary": _STRING,
        },
        "required": ["name", "parameters", "returns", "summary"],
        "additionalProperties": False,
    },
}


def extraction(
    package: Package, vocabulary: Vocabulary, *, with_grammar: bool = False
) -> Iterator[Session]:
    """Yields a session for each group of successive documented functions."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)) if with_grammar else None
    for text in package.new.values():
        functions = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
        ]
        lines = text.splitlines(keepends=True)
        for start in range(0, len(functions) - NUM_FUNCTIONS + 1, NUM_FUNCTIONS):
            some = functions[start : start + NUM_FUNCTIONS]
            source = "\n".join(_head(lines, function) for function in some)
            prompt = (
                "user\nList the functions of this text with their parameters, what they return "
                f"and the first sentence about them, as JSON.\n{source}\nassistant\n"
            )
            records = [_record(function) for function in some]
            answer = json.dumps(records, ensure_ascii=False, separators=(",", ":"))
            answer_ids = (*vocabulary.encode(answer), END_TOKEN_ID)
            yield Session((Turn(vocabulary.encode(prompt), answer_ids, grammar),))


def _head(lines: list[str], function: ast.FunctionDef) -> str:
    """Returns the text of a function up to the end of its docstring."""
    return "".join(lines[function.lineno - 1 : function.body[0].end_lineno])


def _record(function: ast.FunctionDef) -> dict[str, object]:
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    summary = " ".join((ast.get_docstring(function) or "").split("\n\n")[0].split())
    return {
        "name": function.name,
        "parameters": [ast.unparse(argument) for argument in names],
        "returns": ast.unparse(function.returns) if function.returns else "",
        "summary": summary.split(". ")[0],
    }
