"""Reads the fields that constrain an answer: `response_format`, `structured_outputs`, `guided_*`,
structural tags."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from fastovms.api.body import optional, typed, wrong
from fastovms.api.client_request import ClientRequest, FieldNames
from fastovms.api.constraint import check_length
from fastovms.api.request_schemas import GenerationFields
from fastovms.errors import InvalidField
from fastovms.grammar.finite_schema import Schema, integer_of
from fastovms.grammar.json_schema import enforceable_schema, open_schema, shut_schema, strict_schema
from fastovms.grammar.structural_tag import FORMAT_TYPES
from fastovms.params import Grammar, GrammarKind


def tag_format(value: object, name: str) -> Mapping[str, Any]:
    """Returns the format of a structural tag without checking its fields. Raises InvalidField if
    the value has neither form.

    Args:
        value: `{"format": ...}`, or XGrammar's older `{"structures": [{"begin", "schema", "end"}],
            "triggers": [...]}`, or either as a JSON string.
        name: the field's name, for error messages.
    """
    body = _parsed(value, name) if isinstance(value, str) else value
    if not isinstance(body, Mapping):
        raise wrong(name, "an object or its JSON text", body)
    if "format" in body:
        return _object(body["format"], f"{name}.format")
    for member in ("structures", "triggers"):
        if not isinstance(body.get(member), list):
            place = f"{name}.{member}"
            raise wrong(place, f"a list where there is no {name}.format", body.get(member))
    tags = [
        _structural_tag(structure, f"{name}.structures[{position}]")
        for position, structure in enumerate(body["structures"])
    ]
    return {"type": "triggered_tags", "triggers": body["triggers"], "tags": tags}


def _parsed(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField.about(name, f"is not valid JSON: {error}") from None


def _structural_tag(structure: object, name: str) -> Mapping[str, Any]:
    """Converts one structure of the older form to a tag of the new form."""
    given = _object(structure, name)
    for member in ("begin", "end"):
        typed(given.get(member), str, f"{name}.{member}")
    content = {"type": "json_schema", "json_schema": given.get("schema")}
    return {"begin": given["begin"], "content": content, "end": given["end"]}


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(name, "an object", value)
    return value


_LEFT_TO_CLIENTS: Final = ("uniqueItems",)
"""Keywords that a strict format may have, with a warning: pydantic writes `uniqueItems` for a set,
and makes a set of whatever comes."""

Reader = Callable[[Any, str], str | None]
"""Returns the grammar's source from a field's value and name; None if the value has no effect."""


def grammar_of(request: ClientRequest[GenerationFields], warnings: list[str]) -> Grammar | None:
    """Returns the requested constraint, not yet compiled; None = none. Raises InvalidField if there
    are several constraints, one is too long or malformed, or a strict one has a keyword that cannot
    be enforced.

    Args:
        warnings: collects the keywords of a schema that are not enforced.
    """
    body = request.body
    if body.guided_whitespace_pattern is not None:
        raise _unsupported("guided_whitespace_pattern")
    found = [
        *_response_format(request.response_format, request.names),
        *_structured_outputs(body.structured_outputs),
        *_named_fields(body),
    ]
    if not found:
        return None
    grammar = found[0]
    other = next((other for other in found[1:] if _meaning(other) != _meaning(grammar)), None)
    if other is not None:
        raise InvalidField(
            f"{grammar.param} and {other.param} cannot be used together: a text can have only one "
            "constraint",
            param=other.param,
        )
    check_length(grammar, request.config)
    form = request.response_format or {}
    is_strict = (form.get("json_schema") or form).get("strict") is True
    return _enforceable(grammar, warnings, is_strict=is_strict)


def _enforceable(grammar: Grammar, warnings: list[str], *, is_strict: bool) -> Grammar:
    """Returns the grammar with only the schema keywords that can be enforced. A malformed schema is
    returned unchanged; the compiler refuses it."""
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return grammar
    try:
        given = json.loads(grammar.source, parse_int=integer_of)
        schema, unenforced = enforceable_schema(given)
    except ValueError:
        return grammar
    refused = [one for one in unenforced if one.keyword not in _LEFT_TO_CLIENTS]
    if refused and is_strict:
        raise InvalidField(f"{grammar.param}: {refused[0]}", param=grammar.param)
    warnings += [f"{grammar.param}: {one}" for one in unenforced]
    return grammar if schema is given else replace(grammar, source=_json(schema, grammar.param))


def _meaning(grammar: Grammar) -> tuple[GrammarKind, object]:
    """Returns a comparison key, equal for fields that request the same constraint."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        with contextlib.suppress(ValueError, RecursionError):
            return grammar.kind, json.loads(grammar.source)
    return grammar.kind, grammar.source


def _json(value: object, name: str) -> str:
    """Returns a schema as JSON, given as an object or as a JSON string."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            # Not orjson, which has no integers beyond 64 bits.
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise InvalidField.about(name, "is nested too deeply") from None
    raise wrong(name, "an object or a string", value)


def _tag(value: object, name: str) -> str:
    return _json(dict(tag_format(value, name)), name)


def _text(value: object, name: str) -> str:
    if not (text := typed(value, str, name)):
        raise InvalidField.about(name, "must not be an empty string")
    return text


def _choice(value: object, name: str) -> str:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise wrong(name, "a list of strings", value)
    if not value:
        raise InvalidField.about(name, "must have at least one string to choose")
    if not any(value):
        raise InvalidField.about(
            f"{name}[0]", "must not be an empty string if it is the only choice"
        )
    return orjson.dumps(value).decode()


def _flag(value: object, name: str) -> str | None:
    return "" if typed(value, bool, name) else None


_CONSTRAINTS: Final[Mapping[str, tuple[GrammarKind, Reader]]] = {
    "json": (GrammarKind.JSON_SCHEMA, _json),
    "json_object": (GrammarKind.JSON_OBJECT, _flag),
    "regex": (GrammarKind.REGEX, _text),
    "choice": (GrammarKind.CHOICE, _choice),
    "grammar": (GrammarKind.GRAMMAR, _text),
    "structural_tag": (GrammarKind.STRUCTURAL_TAG, _tag),
}
"""Readers by vLLM's names: the members of `structured_outputs`, and with `guided_` before them its
older fields."""

FIELDS: Final[Mapping[str, str]] = {
    **{f"guided_{constraint}": constraint for constraint in _CONSTRAINTS},
    "json_schema": "json",
    "grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}
"""The reader of each field. llama.cpp's server takes `json_schema` and `grammar`, SGLang's
`json_schema`, `regex` and `ebnf`."""


def _read(constraint: str, value: object, name: str) -> Iterator[Grammar]:
    if value is not None:
        kind, read = _CONSTRAINTS[constraint]
        source = read(value, name)
        if source is not None:
            yield Grammar(kind, source, name)


def _named_fields(body: GenerationFields) -> Iterator[Grammar]:
    for field, constraint in FIELDS.items():
        value = getattr(body, field, None)
        if field != "grammar" or value:  # llama.cpp's clients send an empty grammar by default
            yield from _read(constraint, value, field)


def _structured_outputs(value: Mapping[str, Any] | None) -> Iterator[Grammar]:
    if value is None:
        return
    field = "structured_outputs"
    # Free white space is never allowed, so that asking for none changes nothing.
    for option in ("disable_additional_properties", "disable_any_whitespace"):
        if value.get(option) is not None:
            _flag(value[option], f"{field}.{option}")
    if value.get("whitespace_pattern") is not None:
        raise _unsupported(f"{field}.whitespace_pattern")
    if all(value.get(constraint) is None for constraint in _CONSTRAINTS):
        raise InvalidField.about(field, f"must have one of {', '.join(_CONSTRAINTS)}")
    closing = _CLOSINGS.get(value.get("disable_additional_properties"))
    for constraint in _CONSTRAINTS:
        for grammar in _read(constraint, value.get(constraint), f"{field}.{constraint}"):
            yield grammar if closing is None else _changed(grammar, closing)


_CLOSINGS: Final[Mapping[object, Callable[[Schema], Schema]]] = {
    False: open_schema,
    True: shut_schema,
}
"""The changes of a schema by `disable_additional_properties`. Without it, only objects that declare
properties are closed."""


def _changed(grammar: Grammar, change: Callable[[Schema], Schema]) -> Grammar:
    """Applies `change` to the schema of a JSON schema grammar. Returns other grammars, and schemas
    that are not objects, unchanged; the compiler refuses the latter."""
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return grammar
    try:
        schema = json.loads(grammar.source, parse_int=integer_of)
        if isinstance(schema, dict):
            return replace(grammar, source=_json(change(schema), grammar.param))
    except (ValueError, RecursionError):
        pass
    return grammar


def _response_format(value: Mapping[str, Any] | None, names: FieldNames) -> Iterator[Grammar]:
    if value is None:
        return
    field = names.response_format
    kind = value.get("type")
    if kind == "text":
        return
    read = _FORMATS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise wrong(f"{field}.type", f"one of text, {', '.join(_FORMATS)}", kind)
    name = names.json_schema if kind == "json_schema" else field
    if kind == "json_schema" and "json_schema" not in value and "schema" in value:
        # llama.cpp's server has the schema next to the type.
        value, name = {"json_schema": value}, field
    yield read(value, name)


def _format_json_object(value: Mapping[str, Any], field: str) -> Grammar:
    """Reads `json_object`: any object or, as in llama.cpp's server, one with a schema."""
    schema = value.get("schema")
    if schema is None:
        return Grammar(GrammarKind.JSON_OBJECT, "", field)
    name = f"{field}.schema"
    return Grammar(GrammarKind.JSON_SCHEMA, _json(typed(schema, dict, name), name), name)


def _format_json_schema(value: Mapping[str, Any], name: str) -> Grammar:
    schema = typed(value.get("json_schema"), dict, name)
    optional(schema.get("name"), str, f"{name}.name")
    is_strict = optional(schema.get("strict"), bool, f"{name}.strict")
    name = f"{name}.schema"
    given = typed(schema.get("schema"), dict, name)
    grammar = Grammar(GrammarKind.JSON_SCHEMA, _json(given, name), name)
    return _changed(grammar, strict_schema) if is_strict else grammar


def _format_structural_tag(value: Mapping[str, Any], field: str) -> Grammar:
    return Grammar(GrammarKind.STRUCTURAL_TAG, _tag(value, field), field)


def _bare_format(value: Mapping[str, Any], field: str) -> Grammar:
    """Reads the format of a structural tag without the tag around it, as OVMS accepts it."""
    return Grammar(GrammarKind.STRUCTURAL_TAG, _json(dict(value), field), field)


def _member_format(kind: GrammarKind, member: str) -> Callable[[Mapping[str, Any], str], Grammar]:
    """Returns a reader for a response format that is defined by a single field."""

    def read(value: Mapping[str, Any], field: str) -> Grammar:
        name = f"{field}.{member}"
        source = _text(value.get(member), name)
        if kind is GrammarKind.CHOICE:
            source = orjson.dumps([source]).decode()
        return Grammar(kind, source, name)

    return read


_FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any], str], Grammar]]] = {
    **dict.fromkeys(FORMAT_TYPES, _bare_format),
    "json_object": _format_json_object,
    "json_schema": _format_json_schema,
    "structural_tag": _format_structural_tag,
    "regex": _member_format(GrammarKind.REGEX, "pattern"),
    "grammar": _member_format(GrammarKind.GRAMMAR, "grammar"),
    "const_string": _member_format(GrammarKind.CHOICE, "value"),
}


def _unsupported(name: str) -> InvalidField:
    return InvalidField.about(name, "is not supported by this server version")
