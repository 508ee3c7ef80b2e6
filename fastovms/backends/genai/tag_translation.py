"""Renders trees of grammars as XGrammar's structural tags, the only form in which OpenVINO GenAI
takes them.

Its formats know no empty text, no repetition, and no text that is unlike an expression. So
repetitions are written out and end after `MAX_REPEATS`. Text that must not be taken for markup is
any text up to the tag behind it, and other such text is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastovms import grammar_tree as tree
from fastovms.backends.xgrammar.json_rules import json_rules
from fastovms.grammar.json_schema import normal_schema
from fastovms.grammar_tree import Node
from fastovms.params import Grammar, GrammarKind

Format = dict[str, Any]
"""A format of XGrammar's."""

MAX_REPEATS: Final = 8
MAX_OPTIONAL: Final = 100
"""The most arguments that may be left out before one that may not. Each of them may be the first,
and what can follow it is written out again."""

_NOTHING: Final[Format] = {"type": "regex", "pattern": "()"}
_ANY: Final[Format] = {"type": "any_text"}


class CannotTranslate(ValueError):
    """The grammar has a part that structural tags do not."""


WriteJson = Callable[[Any, bool], Format]
"""Makes the format of a value of a JSON schema, in which there may be a blank after a colon and a
comma or not."""


def rules_of_json(schema: Any, has_blanks: bool) -> Format:
    """Returns the format of a value of a schema, as llguidance would write it; it raises as
    `json_rules` does. XGrammar's own `json_schema` allows other texts."""
    return {"type": "grammar", "grammar": json_rules(schema, has_blanks=has_blanks)}


def structural_tag(grammar: Grammar, *, write_json: WriteJson = rules_of_json) -> str:
    """Returns the structural tag, as JSON.

    Raises:
        CannotTranslate: the grammar has a part that structural tags do not.
        AttributeError, KeyError, TypeError, ValueError: it is malformed.
    """
    found = _format(grammar.tree or tree.Answer(), grammar, write_json)
    return json.dumps({"type": "structural_tag", "format": found})


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text} if text else _NOTHING


def _regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def _until(tag: str) -> Format:
    return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": tag}


def _text_without(texts: Sequence[str]) -> Format:
    return {"type": "any_text", "excludes": list(texts)}


def _answer(grammar: Grammar, write_json: WriteJson) -> Format:
    source = grammar.source
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return write_json(json.loads(source), False)
        case GrammarKind.JSON_OBJECT:
            return write_json({"type": "object"}, False)
        case GrammarKind.REGEX:
            return _regex(source)
        case GrammarKind.GRAMMAR:
            return {"type": "grammar", "grammar": source}
        case GrammarKind.CHOICE:
            return _either([_const(text) for text in json.loads(source)])
        case GrammarKind.STRUCTURAL_TAG:
            format_: Format = _with_rules(json.loads(source), write_json)
            return format_
        case GrammarKind.CALLS:
            raise ValueError("calls have no answer")


_PARTS: Final = ("elements", "tags", "content")
"""The members of formats that hold others."""


def _with_rules(value: Any, write_json: WriteJson) -> Any:
    """Returns a client's format with the rules of its schemas in place of them. Arguments in
    elements have their schemas closed."""
    if isinstance(value, list):
        return [_with_rules(item, write_json) for item in value]
    if not isinstance(value, dict):
        return value
    is_json = value.get("type") == "json_schema"
    if is_json and value.get("style", "json") == "json":
        return write_json(value["json_schema"], False)
    if is_json or value.get("type") == "qwen_xml_parameter":
        return {**value, "json_schema": normal_schema(value["json_schema"])}
    parts = {key: _with_rules(value[key], write_json) for key in _PARTS if key in value}
    return {**value, **parts}


def _format(node: Node, grammar: Grammar, write_json: WriteJson) -> Format:
    match node:
        case tree.Literal(text) | tree.Tag(text):
            return _const(text)
        case tree.Until(tag):
            return _until(tag)
        case tree.FirstTag(cases, must_come):
            rests = [_format(rest, grammar, write_json) for _, rest in cases]
            last: Format = rests[0].get("elements", rests)[-1]
            if not must_come and last["type"] == "triggered_tags":
                # No choice may have both this and other text in it: what is free before it, too,
                # stands for both.
                return last
            found = [
                _joined([_until(tag), rest]) for (tag, _), rest in zip(cases, rests, strict=True)
            ]
            without = [] if must_come else [_text_without([tag for tag, _ in cases])]
            return _either([*found, *without])
        case tree.TriggeredTag(tag, rest, once):
            return _triggered(tag, _format(rest, grammar, write_json), stop_after_first=once)
        case tree.Regex(pattern, (), ()):
            return _regex(pattern)
        case tree.Regex():
            raise CannotTranslate("text that is not to match an expression")
        case tree.OtherText(begins, tags):
            return _text_without([*begins, *tags])
        case tree.TextBefore(tag, tree.Regex(pattern, (), _), gap):
            is_any = pattern == tree.ANY_TEXT.pattern
            body = [_until(gap + tag)] if is_any else [_regex(pattern), _const(gap + tag)]
            return _joined(body)
        case tree.TextBefore():
            raise CannotTranslate("text that is to match several expressions")
        case tree.Json(schema):
            return write_json(json.loads(schema), True)
        case tree.Answer():
            return _answer(grammar, write_json)
        case tree.InOrder(items):
            return _joined([_format(item, grammar, write_json) for item in items])
        case tree.OneOf(items):
            return _either([_format(item, grammar, write_json) for item in items])
        case tree.Repeat(item):
            return _repeated(_format(item, grammar, write_json))
        case tree.Several(item, separator):
            first = _format(item, grammar, write_json)
            return _joined(
                [first, _repeated(_joined([_format(separator, grammar, write_json), first]))]
            )
        case tree.OtherTag(before, patterns, after, _):
            name = patterns[-1]
            return _regex(f"{re.escape(before)}({name}){re.escape(after)}")
        case tree.Separated(items, separator, more):
            if more is not None:
                items = (*items, *[(more, False)] * MAX_REPEATS)
            formats = [_format(item, grammar, write_json) for item, _ in items]
            return _separated(formats, [is_required for _, is_required in items], separator)


def _separated(items: Sequence[Format], is_required: Sequence[bool], separator: str) -> Format:
    num_optional = (*is_required, True).index(True)
    if num_optional > MAX_OPTIONAL:
        raise CannotTranslate(f"more than {MAX_OPTIONAL} arguments that may be left out")
    rests = [_joined([_const(separator), item]) for item in items]
    rests = [
        rest if is_needed else _either([rest, _NOTHING])
        for rest, is_needed in zip(rests, is_required, strict=True)
    ]
    firsts = items[: num_optional + 1]
    choices = [_joined([item, *rests[i + 1 :]]) for i, item in enumerate(firsts)]
    return _either(choices if num_optional < len(items) else [*choices, _NOTHING])


def _either(formats: Sequence[Format]) -> Format:
    """Returns a choice. Where one may end in any text, all have to: so text may follow the others,
    too."""
    elements = list(formats)
    if any(map(_is_open, elements)):
        elements = [item if _is_open(item) else _joined([item, _ANY]) for item in elements]
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _is_open(format_: Format) -> bool:
    """Whether XGrammar knows no end of a format."""
    if "elements" in format_:
        return _is_open(format_["elements"][-1])
    return bool(format_["type"] == "triggered_tags") or format_ == _ANY


def _joined(formats: Sequence[Format]) -> Format:
    elements: list[Format] = []
    for item in formats:
        elements += item["elements"] if item["type"] == "sequence" else [item]
    elements = [item for item in elements if item != _NOTHING] or [_NOTHING]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _repeated(item: Format) -> Format:
    """Returns a format of nothing, or of the item up to `MAX_REPEATS` times."""
    found = _NOTHING
    for _ in range(MAX_REPEATS):
        found = _either([_joined([item, found]), _NOTHING])
    return found


def _triggered(tag: str, content: Format, *, stop_after_first: bool) -> Format:
    elements = content["elements"] if content["type"] == "sequence" else [content]
    end = ""
    if elements[-1]["type"] == "const_string" and len(elements) > 1:
        end, elements = elements[-1]["value"], elements[:-1]
    return {
        "type": "triggered_tags",
        "triggers": [tag],
        "tags": [{"begin": tag, "content": _joined(elements), "end": end}],
        "at_least_one": False,
        "stop_after_first": stop_after_first,
    }
