"""Writes JSON schemas as XGrammar's EBNF, so that the pipeline's compiler allows just the texts
that llguidance allows of the same schema.

XGrammar reads JSON schemas itself, but others than they say: it allows white space without end,
numbers beyond their bounds and declared names again, and takes no notice of several keywords.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from fastovms.backends.xgrammar.number_rules import integers, numbers
from fastovms.backends.xgrammar.text_lengths import text_of_length
from fastovms.backends.xgrammar.text_rules import (
    CHARACTER,
    CHARACTERS,
    NAME_CHARACTERS,
    CannotWrite,
    matching,
    quoted,
    rest_of_string,
)
from fastovms.grammar.json_schema import normal_schema
from fastovms.grammar.schemas.finite_schema import Schema
from fastovms.grammar.schemas.string_formats import FORMATS

_KINDS: Final = ("null", "boolean", "number", "string", "array", "object")
_CONSTRAINTS: Final = {
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "items", "prefixItems", "minItems", "maxItems", "properties",
    "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
}  # fmt: skip


class _Nothing(Exception):
    """No text satisfies a schema."""


def json_rules(schema: object, *, has_blanks: bool = False) -> str:
    """Returns the rules, of which `root` is the first.

    Args:
        schema: as a client has written it.
        has_blanks: whether there may be a blank after a colon and a comma.

    Raises:
        CannotWrite: it says something that there are no rules for; the text is a sentence about it.
        ValueError: it is malformed.
    """
    return _Writer(normal_schema(schema), has_blanks=has_blanks).source()


class _Writer:
    """Rules under construction."""

    def __init__(self, root: object, *, has_blanks: bool) -> None:
        self._root = root
        blank = ' " "?' if has_blanks else ""
        self._colon, self._comma = f'":"{blank}', f'","{blank}'
        self._rules: dict[str, str] = {}
        self._pending: list[tuple[str, object]] = []
        self._definitions: dict[str, str] = {}

    def source(self) -> str:
        """Returns all rules."""
        try:
            lines = [f"root ::= {self._value(self._root)}"]
        except _Nothing:
            raise ValueError("nothing satisfies it") from None
        while self._pending:
            name, schema = self._pending.pop()
            try:
                self._rules[name] = self._value(schema)
            except _Nothing:
                raise CannotWrite("a $ref to what nothing satisfies cannot be kept to") from None
        return "\n".join([*lines, *(f"{name} ::= {rule}" for name, rule in self._rules.items())])

    def _rule(self, name: str, expression: str) -> str:
        self._rules[name] = expression
        return name

    def _rule_once(self, name: str, expression: Callable[[], str]) -> str:
        if name not in self._rules:
            self._rule(name, expression())
        return name

    def _new_rule(self, expression: str) -> str:
        return self._rule(f"r{len(self._rules)}", expression)

    def _value(self, schema: object) -> str:
        """Returns an expression of a value. Raises _Nothing."""
        if schema is False:
            raise _Nothing
        if not isinstance(schema, Mapping):
            return self._any()
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return self._either(schema[key])
        if "allOf" in schema:
            raise CannotWrite("patterns, formats or divisors that hold at once cannot be kept to")
        if "const" in schema or isinstance(schema.get("enum"), list):
            return self._choice(schema)
        kinds = self._kinds(schema)
        if len(kinds) == len(_KINDS) and schema.keys().isdisjoint(_CONSTRAINTS):
            return self._any()
        return self._either([{**schema, "type": kind} for kind in kinds], self._of_kind)

    def _either(self, schemas: Sequence[Any], write: Any = None) -> str:
        found: dict[str, None] = {}
        for schema in schemas:
            try:
                found[(write or self._value)(schema)] = None
            except _Nothing:
                continue
        if not found:
            raise _Nothing
        return next(iter(found)) if len(found) == 1 else f"({' | '.join(found)})"

    def _kinds(self, schema: Schema) -> list[str]:
        named = schema.get("type")
        if named is None:
            return list(_KINDS)
        listed = named if isinstance(named, list) else [named]
        return ["number" if kind == "number" else str(kind) for kind in listed]

    def _of_kind(self, schema: Schema) -> str:
        match schema["type"]:
            case "null":
                return '"null"'
            case "boolean":
                return '("true" | "false")'
            case "integer" | "number" as kind:
                return self._number(schema, kind)
            case "string":
                return self._string(schema)
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case kind:
                raise ValueError(f"{kind} is no type")

    def _any(self) -> str:
        if "value" not in self._rules:
            self._rule("value", "")  # it stands within itself
            kinds = [self._of_kind({"type": kind}) for kind in _KINDS]
            self._rule("value", " | ".join(kinds))
        return "value"

    def _referred(self, reference: str) -> str:
        if reference == "#":
            return "root"
        if reference not in self._definitions:
            name = f"d{len(self._definitions)}"
            self._definitions[reference] = name
            definitions = self._root["$defs"] if isinstance(self._root, Mapping) else {}
            self._rules[name] = ""
            self._pending.append((name, definitions[reference.removeprefix("#/$defs/")]))
        return self._definitions[reference]

    def _choice(self, schema: Schema) -> str:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not schema.keys().isdisjoint(_CONSTRAINTS):
            raise CannotWrite("enum or const beside other keywords cannot be kept to")
        kinds = self._kinds(schema)
        found = [value for value in values if _kind_of(value, kinds) in kinds]
        return self._either(found, self._constant)

    def _constant(self, value: Any) -> str:
        if isinstance(value, dict):
            members = {name: {"const": item} for name, item in value.items()}
            return self._object({"properties": members, "required": [*value],
                                 "additionalProperties": False})  # fmt: skip
        if isinstance(value, list):
            items = [self._constant(item) for item in value]
            return f'"[" {f" {self._comma} ".join(items)} "]"' if items else '"[]"'
        if isinstance(value, float):
            text = format(Decimal(repr(value)), "f")
            return quoted(text.rstrip("0").removesuffix(".") if "." in text else text)
        return quoted(_spelled(value) if isinstance(value, str) else json.dumps(value))

    def _number(self, schema: Schema, kind: str) -> str:
        if "multipleOf" in schema:
            raise CannotWrite("multipleOf cannot be kept to")
        low, has_low = _bound(schema, "minimum", "exclusiveMinimum", max)
        high, has_high = _bound(schema, "maximum", "exclusiveMaximum", min)
        if kind == "integer":
            if low is not None and not has_low and low == int(low):
                low += 1
            if high is not None and not has_high and high == int(high):
                high -= 1
            found = integers(low, high)
        else:
            found = numbers(low, high, has_low=has_low, has_high=has_high)
        if found is None:
            raise _Nothing
        return self._new_rule(found)

    def _string(self, schema: Schema) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        asked = [key for key in ("pattern", "format") if key in schema]
        if len(asked) + (least > 0 or most is not None) > 1:
            raise CannotWrite(
                "a pattern or format beside another one or a length cannot be kept to"
            )
        if asked == ["pattern"]:
            return self._new_rule(f'"\\"" {matching(schema["pattern"], self._character())} "\\""')
        if asked:
            expression = matching(FORMATS[schema["format"]], "", whole=True)
            return self._new_rule(f'"\\"" {expression} "\\""')
        if most is not None and least > most:
            raise _Nothing
        endless = self._rule("text", rest_of_string("text", CHARACTERS)) if most is None else ""
        text = text_of_length(self._rule_once, least, most, endless)
        return self._new_rule(f'"\\"" {text}')

    def _character(self) -> str:
        return self._rule("char", CHARACTER)

    def _array(self, schema: Schema) -> str:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # the form of JSON Schema before 2020-12
            first, rest = rest, schema.get("additionalItems", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = []
        for item in first if most is None else first[:most]:
            try:
                items.append(self._new_rule(self._value(item)))
            except _Nothing:
                rest = False
                break
        try:
            more = self._new_rule(self._value(rest))
        except _Nothing:
            more, most = "", len(items)
        if most is not None and most < least:
            raise _Nothing
        expression = '""'
        if more and (most is None or most > len(items)):
            fewest = max(0, least - len(items))
            times = f"{{{fewest},{'' if most is None else most - len(items)}}}"
            expression = f"({self._comma} {more}){times}"
            if not items:
                times = f"{{{max(0, fewest - 1)},{'' if most is None else most - 1}}}"
                rests = "" if most == 1 else f" ({self._comma} {more}){times}"
                expression = f"({more}{rests})" if least else f"({more}{rests})?"
        for position in range(len(items) - 1, -1, -1):
            comma = f"{self._comma} " if position else ""
            is_needed = position < least
            expression = f"({comma}{items[position]} {expression}){'' if is_needed else '?'}"
        return self._new_rule(f'"[" {expression} "]"')

    def _object(self, schema: Schema) -> str:
        required = set(schema.get("required", ()))
        properties = dict(schema.get("properties", {}))
        others = self._others(schema, properties)
        for name in schema.get("required", ()):
            if name not in properties:
                raise CannotWrite("required beside patternProperties cannot be kept to")
        items: list[tuple[str, bool]] = []
        for name, its_schema in properties.items():
            try:
                value = self._value(its_schema)
            except _Nothing:
                if name in required:
                    raise
                continue
            member = f"{quoted(_spelled(name))} {self._colon} {value}"
            items.append((self._new_rule(member), name in required))
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if least or most is not None:
            return self._counted(items, others, least, most)
        first = f"({others} ({self._comma} {others})*)?" if others else '""'
        rest = f"({self._comma} {others})*" if others else '""'
        for item, is_needed in reversed(items):
            absent_first, absent_rest = ("", "") if is_needed else (f" | {first}", f" | {rest}")
            after = rest
            first = self._new_rule(f"{item} {after}{absent_first}")
            rest = self._new_rule(f"{self._comma} {item} {after}{absent_rest}")
        return self._new_rule(f'"{{" {first} "}}"')

    def _counted(
        self, items: Sequence[tuple[str, bool]], others: str, least: int, most: int | None
    ) -> str:
        """Returns an expression of an object with some number of members. All that it declares must
        be there."""
        if not all(is_needed for _, is_needed in items):
            raise CannotWrite(
                "minProperties or maxProperties beside optional properties cannot be kept to"
            )
        fewest = max(0, least - len(items))
        highest = None if most is None else most - len(items)
        if (highest is not None and highest < fewest) or (fewest and not others):
            raise _Nothing
        members = f" {self._comma} ".join(item for item, _ in items)
        if not others or highest == 0:
            return self._new_rule(f'"{{" {members} "}}"' if items else '"{}"')
        if items:
            times = f"{{{fewest},{'' if highest is None else highest}}}"
            return self._new_rule(f'"{{" {members} ({self._comma} {others}){times} "}}"')
        times = f"{{{max(0, fewest - 1)},{'' if highest is None else highest - 1}}}"
        rests = "" if highest == 1 else f" ({self._comma} {others}){times}"
        return self._new_rule(f'"{{" ({others}{rests}){"" if fewest else "?"} "}}"')

    def _others(self, schema: Schema, properties: dict[str, Any]) -> str:
        """Returns a rule of a member that is not declared; empty if there is none. What has to be
        there of them is declared."""
        additional = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        if not patterns and additional is not False and not properties:
            properties |= dict.fromkeys(schema.get("required", ()), additional)
            if properties:
                raise CannotWrite("required without properties cannot be kept to")
        if patterns and (additional is not False or len(patterns) > 1):
            raise CannotWrite("patternProperties beside others cannot be kept to")
        try:
            if patterns:
                [(pattern, its_schema)] = patterns.items()
                value = self._value(its_schema)
                name = f'{matching(pattern, self._character())} "\\""'
            else:
                value = self._value(additional)
                name = self._rule("name", rest_of_string("name", NAME_CHARACTERS))
        except _Nothing:
            return ""
        return self._new_rule(f'"\\"" {name} {self._colon} {value}')


def _spelled(text: str) -> str:
    """Returns a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _kind_of(value: object, kinds: Sequence[str]) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer" if "integer" in kinds else "number"
        case float():
            return "integer" if value.is_integer() and "integer" in kinds else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _bound(
    schema: Schema, inclusive: str, exclusive: str, tighter: Any
) -> tuple[float | None, bool]:
    """Returns a bound and whether it is itself allowed."""
    own, open_ = schema.get(inclusive), schema.get(exclusive)
    if isinstance(open_, bool):
        return own, not open_
    if own is None or open_ is None:
        return (own, True) if open_ is None else (open_, False)
    return (open_, False) if tighter(own, open_) == open_ else (own, True)
