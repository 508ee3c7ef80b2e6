"""Converts JSON schemas to rules for XGrammar."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from fastovms.grammar.enforceable import JSON_KINDS
from fastovms.grammar.finite_schema import Schema
from fastovms.grammar.json_schema import normal_schema
from fastovms.grammar.patterns import FORMATS
from fastovms.parts.genai.xgrammar.text_rules import (
    CHARACTER,
    CHARACTERS,
    NAME_CHARACTERS,
    UnsupportedSchema,
    matching,
    quoted,
    rest_of_string,
)

_FRACTION = '("." [0-9]+)?'


def integers(low: float | None, high: float | None) -> str | None:
    """Returns a regular expression for the integers from `low` to `high` (None = no bound); None =
    there are no such integers."""
    least = None if low is None else math.ceil(low)
    most = None if high is None else math.floor(high)
    if least is None and most is None:
        return '"-"? ("0" | [1-9] [0-9]*)'
    if least is not None and most is not None and least > most:
        return None
    parts = []
    if least is None or least < 0:
        nearest = 1 if most is None or most >= 0 else -most
        if least is not None and most is not None and most >= 0:
            nearest = 0
        parts.append(f'"-" ({_whole(nearest, None if least is None else -least)})')
    if most is None or most >= 0:
        parts.append(_whole(max(0, least or 0), most))
    return _either(parts)


def numbers(
    low: float | None, high: float | None, *, has_low: bool = True, has_high: bool = True
) -> str | None:
    """Returns a regular expression for the numbers from `low` to `high` (None = no bound); None =
    there are no such numbers. `has_low` and `has_high` are whether the bounds are included. As in
    llguidance, numbers have no exponent, and no trailing zeros in a fraction that equals a
    bound."""
    if low is None and high is None:
        return '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?'
    if low is not None and high is not None:
        if low > high or (low == high and not (has_low and has_high)):
            return None
        if low == high:
            return f'"{_text(low)}"'
    parts = []
    if low is None or low < 0:
        nearest, has_nearest = (-high, has_high) if high is not None and high < 0 else (0.0, False)
        furthest = None if low is None else -low
        parts.append(f'"-" ({_positive(nearest, furthest, has_nearest, has_low)})')
    if high is None or high > 0:
        least, has_least = (low, has_low) if low is not None and low > 0 else (0.0, True)
        if low == 0:
            has_least = has_low
        parts.append(_positive(least, high, has_least, has_high))
    elif high == 0 and has_high:
        parts.append('"0"')
    return _either(parts)


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _text(number: float) -> str:
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _whole(low: int, high: int | None) -> str:
    """Returns a regular expression for the integers from `low`, which is not negative, to
    `high`."""
    if high is None:
        length = len(str(low))
        more = f"[1-9] [0-9]{{{length},}}"
        return f"{_whole(low, 10**length - 1)} | {more}"
    parts = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        parts.append(_digits(str(low), str(top)))
        low = top + 1
    return " | ".join(parts)


def _digits(low: str, high: str) -> str:
    """Returns a regular expression for the digit strings from `low` to `high`, which have equal
    lengths."""
    if low == high:
        return f'"{low}"' if low else '""'
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:].strip("0"):
        parts.append(f'"{first}" ({_digits(low[1:], "9" * rest)})')
        first += 1
    if high[1:].strip("9"):
        parts.append(f'"{last}" ({_digits("0" * rest, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return " | ".join(parts)


def _positive(low: float, high: float | None, has_low: bool, has_high: bool) -> str:
    """Returns a regular expression for the numbers between two bounds that are not negative."""
    whole, _, fraction = _text(low).partition(".")
    if high is None:
        more = _whole(int(whole) + 1, None)
        return f'"{whole}" {_from(fraction, has_low)} | ({more}) {_FRACTION}'
    last, _, last_fraction = _text(high).partition(".")
    if whole == last:
        width = max(len(fraction), len(last_fraction))
        low_digits, high_digits = fraction.ljust(width, "0"), last_fraction.ljust(width, "0")
        between = f'"." ({_between(low_digits, high_digits, has_low, has_high)})'
        return f'"{whole}" ({between})?' if not fraction else f'"{whole}" {between}'
    parts = [f'"{whole}" {_from(fraction, has_low)}']
    if int(whole) + 1 < int(last):
        parts.append(f"({_whole(int(whole) + 1, int(last) - 1)}) {_FRACTION}")
    if last_fraction:
        parts.append(f'"{last}" ("." ({_up_to(last_fraction, has_high)}))?')
    elif has_high:
        parts.append(f'"{last}" ("." "0"+)?')
    return " | ".join(parts)


def _from(fraction: str, has_it: bool) -> str:
    """Returns a regular expression for an optional fraction (a decimal point and digits) of at
    least, or without `has_it` more than, the value of `fraction`."""
    if fraction:
        return f'"." ({_at_least(fraction, has_it)})'
    return _FRACTION if has_it else f'"." ({_at_least("", False)})'


def _at_least(digits: str, has_it: bool) -> str:
    if not digits:
        return "[0-9]*" if has_it else "[0-9]* [1-9]"
    first = int(digits[0])
    if has_it and len(digits) == 1:
        return f"[{first}-9] [0-9]*"
    parts = [f'"{first}" ({_at_least(digits[1:], has_it)})']
    if first < 9:
        parts.append(f"[{first + 1}-9] [0-9]*")
    return " | ".join(parts)


def _up_to(digits: str, has_it: bool) -> str:
    if not digits:
        return '""'
    first = int(digits[0])
    below = [f"[0-{first - 1}] [0-9]*"] if first else []
    if not has_it and len(digits) == 1:
        return " | ".join(below)
    return " | ".join([f'"{first}" ({_up_to(digits[1:], has_it)})', *below])


def _between(low: str, high: str, has_low: bool, has_high: bool) -> str:
    if low[0] == high[0]:
        return f'"{low[0]}" ({_between(low[1:], high[1:], has_low, has_high)})'
    first, last = int(low[0]), int(high[0])
    parts = [f'"{first}" ({_at_least(low[1:].rstrip("0"), has_low)})']
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}] [0-9]*")
    rest = high[1:].rstrip("0")
    if rest or has_high:
        parts.append(f'"{last}" ({_up_to(rest, has_high)})')
    return " | ".join(parts)


AddRule = Callable[[str, Callable[[], str]], str]
"""Adds a rule, if its name is new, with the regular expression that the function returns. Returns
the name."""

_NUM_KNOWN: Final = 16
"""The number of characters near a string's end that have rules of their own. More rules take longer
to compile; fewer leave more tokens to be checked in each step."""

_QUOTE: Final = r'"\""'


def text_of_length(add_rule: AddRule, least: int, most: int | None, endless: str) -> str:
    """Returns a regular expression for the characters and the closing quote of a string with a
    limited length.

    XGrammar (0.1.31, `cpp/grammar_compiler.cc`) computes a token mask for each position within a
    rule, and in each step examines all tokens that extend beyond the rule's end. For a repeated
    one-character rule that is nearly the whole vocabulary. So each of the last possible characters
    of a string is a rule of its own, with its own mask, that leads to the string's end. The many
    characters before are one rule that declares what follows. XGrammar relies on this declaration
    if the rule is used in one place only, within a sequence, and not as its last element.

    Args:
        least: the minimum number of characters.
        most: the maximum number, at least `least`; None = unlimited.
        endless: a regular expression for any number of characters and the closing quote.
    """
    return _Lengths(add_rule).between(least, most, endless)


class _Lengths:
    """Adds the rules that `text_of_length` needs."""

    def __init__(self, add_rule: AddRule) -> None:
        self._add_rule = add_rule

    def between(self, least: int, most: int | None, endless: str) -> str:
        if most is None:
            return f"{self._exactly(least)} {endless}"
        num_far = max(0, most - _NUM_KNOWN)
        num_needed = min(least, num_far)
        end = self._last(least - num_needed, most - num_far)
        return f"{self._exactly(num_needed)} {self._at_most(num_far - num_needed, end)}"

    def _last(self, least: int, most: int) -> str:
        """Returns a rule for `least` to `most` characters, at the string's end, and the closing
        quote."""

        def expression() -> str:
            if most == 0:
                return _QUOTE
            after = self._last(max(0, least - 1), most - 1)
            return _joined("" if least else _QUOTE, *(f"{one} {after}" for one in CHARACTERS))

        return self._add_rule(f"last_{least}_{most}", expression)

    def _following(self, number: int) -> str:
        """Returns a rule for exactly `number` characters, or fewer characters and the closing
        quote."""

        def expression() -> str:
            rest = f" {self._following(number - 1)}" if number > 1 else ""
            one = self._add_rule("one", lambda: _joined(*CHARACTERS))
            return f"{_QUOTE} | {self._nothing()} {one}{rest}"

        return self._add_rule(f"following_{number}", expression)

    def _nothing(self) -> str:
        """Returns a rule for the empty text. XGrammar may inline a rule at the beginning of a
        sequence and then lose its precomputed tokens; a preceding empty rule prevents that."""
        return self._add_rule("nothing", lambda: '""')

    def _power(self, exponent: int) -> str:
        """Returns a rule for 2**exponent characters after which _NUM_KNOWN more may follow."""

        def expression() -> str:
            if exponent:
                half = self._power(exponent - 1)
                return f"{half} {half}"
            far = self._add_rule(
                "far", lambda: f"{_joined(*CHARACTERS)} (= {self._following(_NUM_KNOWN)})"
            )
            return f"{self._nothing()} {far} {self._nothing()}"

        return self._add_rule(f"power_{exponent}", expression)

    def _below_power(self, exponent: int) -> str:
        """Returns a rule for fewer than 2**exponent characters and the closing quote."""

        def expression() -> str:
            if not exponent:
                return _QUOTE
            fewer = self._below_power(exponent - 1)
            return f"{fewer} | {self._power(exponent - 1)} {fewer}"

        return self._add_rule(f"below_power_{exponent}", expression)

    def _exactly(self, number: int) -> str:
        return " ".join(map(self._power, _exponents(number))) or '""'

    def _at_most(self, number: int, end: str) -> str:
        """Returns a rule for `number` characters followed by `end`, or for fewer characters and the
        closing quote."""
        if not number:
            return end
        exponent, *_ = _exponents(number)
        rest = self._at_most(number - 2**exponent, end)
        return self._add_rule(
            f"at_most_{number}_{end}",
            lambda: f"{self._below_power(exponent)} | {self._power(exponent)} {rest}",
        )


def _exponents(number: int) -> list[int]:
    """Returns the exponents of the powers of two that sum to a number, in descending order."""
    return [bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


def _joined(*alternatives: str) -> str:
    return " | ".join(filter(None, alternatives))


_CONSTRAINTS: Final = {
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "items", "prefixItems", "minItems", "maxItems", "properties",
    "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
}  # fmt: skip


class _Unsatisfiable(Exception):
    """Raised if no value satisfies a schema."""


def json_rules(schema: object, *, has_blanks: bool = False) -> str:
    """Returns the EBNF rules of a schema, the first of which is `root`.

    XGrammar's own schema conversion is not used: it allows unbounded white space, integers up to
    129 for a maximum of 120, a quote within the text of a pattern and repeated property names, and
    ignores several keywords.

    Args:
        schema: the client's schema.
        has_blanks: whether a space is allowed after colons and commas.

    Raises:
        UnsupportedSchema: the schema has an unsupported keyword; the message describes it.
        ValueError: the schema is malformed.
    """
    return _SchemaRuleBuilder(normal_schema(schema), has_blanks=has_blanks).source()


class _SchemaRuleBuilder:
    """Builds the rules of one schema."""

    def __init__(self, root: object, *, has_blanks: bool) -> None:
        self._root = root
        blank = ' " "?' if has_blanks else ""
        self._colon, self._comma = f'":"{blank}', f'","{blank}'
        self._rules: dict[str, str] = {}
        self._pending: list[tuple[str, object]] = []
        self._definitions: dict[str, str] = {}

    def source(self) -> str:
        """Returns the text of all rules."""
        try:
            lines = [f"root ::= {self._value(self._root)}"]
        except _Unsatisfiable:
            raise ValueError("nothing satisfies it") from None
        while self._pending:
            name, schema = self._pending.pop()
            try:
                self._rules[name] = self._value(schema)
            except _Unsatisfiable:
                raise UnsupportedSchema(
                    "a $ref to a schema that no value satisfies is not supported"
                ) from None
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
        """Returns a regular expression for the values of a schema. Raises _Unsatisfiable if no
        value satisfies the schema."""
        if schema is False:
            raise _Unsatisfiable
        if not isinstance(schema, Mapping):
            return self._any()
        if isinstance(schema.get("$ref"), str):
            return self._resolve_reference(schema["$ref"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return self._either(schema[key])
        if "allOf" in schema:
            raise UnsupportedSchema(
                "patterns, formats or divisors that apply together are not supported"
            )
        if "const" in schema or isinstance(schema.get("enum"), list):
            return self._choice(schema)
        kinds = self._kinds(schema)
        if len(kinds) == len(JSON_KINDS) and schema.keys().isdisjoint(_CONSTRAINTS):
            return self._any()
        return self._either([{**schema, "type": kind} for kind in kinds], self._of_kind)

    def _either(self, schemas: Sequence[Any], write: Any = None) -> str:
        found: dict[str, None] = {}
        for schema in schemas:
            try:
                found[(write or self._value)(schema)] = None
            except _Unsatisfiable:
                continue
        if not found:
            raise _Unsatisfiable
        return next(iter(found)) if len(found) == 1 else f"({' | '.join(found)})"

    def _kinds(self, schema: Schema) -> list[str]:
        named = schema.get("type")
        if named is None:
            return list(JSON_KINDS)
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
                raise ValueError(f"{kind} is not a type")

    def _any(self) -> str:
        if "value" not in self._rules:
            self._rule("value", "")  # reserve the name: the rule refers to itself
            kinds = [self._of_kind({"type": kind}) for kind in JSON_KINDS]
            self._rule("value", " | ".join(kinds))
        return "value"

    def _resolve_reference(self, reference: str) -> str:
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
            raise UnsupportedSchema("enum or const with other keywords is not supported")
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
        return quoted(json.dumps(value, ensure_ascii=False))

    def _number(self, schema: Schema, kind: str) -> str:
        if "multipleOf" in schema:
            raise UnsupportedSchema("multipleOf is not supported")
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
            raise _Unsatisfiable
        return self._new_rule(found)

    def _string(self, schema: Schema) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        asked = [key for key in ("pattern", "format") if key in schema]
        if len(asked) + (least > 0 or most is not None) > 1:
            raise UnsupportedSchema(
                "a pattern or format with another one or with a length is not supported"
            )
        if asked == ["pattern"]:
            return self._new_rule(f'"\\"" {matching(schema["pattern"], self._character())} "\\""')
        if asked:
            expression = matching(FORMATS[schema["format"]], "", whole=True)
            return self._new_rule(f'"\\"" {expression} "\\""')
        if most is not None and least > most:
            raise _Unsatisfiable
        endless = self._rule("text", rest_of_string("text", CHARACTERS)) if most is None else ""
        text = text_of_length(self._rule_once, least, most, endless)
        return self._new_rule(f'"\\"" {text}')

    def _character(self) -> str:
        return self._rule("char", CHARACTER)

    def _array(self, schema: Schema) -> str:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # `items` as a list, as before JSON Schema 2020-12
            first, rest = rest, schema.get("additionalItems", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = []
        for item in first if most is None else first[:most]:
            try:
                items.append(self._new_rule(self._value(item)))
            except _Unsatisfiable:
                rest = False
                break
        try:
            more = self._new_rule(self._value(rest))
        except _Unsatisfiable:
            more, most = "", len(items)
        if most is not None and most < least:
            raise _Unsatisfiable
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
                raise UnsupportedSchema("required with patternProperties is not supported")
        items: list[tuple[str, bool]] = []
        for name, its_schema in properties.items():
            try:
                value = self._value(its_schema)
            except _Unsatisfiable:
                if name in required:
                    raise
                continue
            member = f"{quoted(json.dumps(name, ensure_ascii=False))} {self._colon} {value}"
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
        """Returns a regular expression for an object with `least` to `most` members. All declared
        members are required."""
        if not all(is_needed for _, is_needed in items):
            raise UnsupportedSchema(
                "minProperties or maxProperties with optional properties is not supported"
            )
        fewest = max(0, least - len(items))
        highest = None if most is None else most - len(items)
        if (highest is not None and highest < fewest) or (fewest and not others):
            raise _Unsatisfiable
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
        """Returns a rule for an undeclared member; "" = no such member is allowed. Required
        properties must be declared."""
        additional = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        if not patterns and additional is not False and not properties:
            properties |= dict.fromkeys(schema.get("required", ()), additional)
            if properties:
                raise UnsupportedSchema("required without properties is not supported")
        if patterns and (additional is not False or len(patterns) > 1):
            raise UnsupportedSchema("patternProperties with other properties is not supported")
        try:
            if patterns:
                [(pattern, its_schema)] = patterns.items()
                value = self._value(its_schema)
                name = f'{matching(pattern, self._character())} "\\""'
            else:
                value = self._value(additional)
                name = self._rule("name", rest_of_string("name", NAME_CHARACTERS))
        except _Unsatisfiable:
            return ""
        return self._new_rule(f'"\\"" {name} {self._colon} {value}')


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
    """Returns the tighter of two bounds (None = no bound), and whether it is inclusive."""
    own, open_ = schema.get(inclusive), schema.get(exclusive)
    if isinstance(open_, bool):
        return own, not open_
    if own is None or open_ is None:
        return (own, True) if open_ is None else (open_, False)
    return (open_, False) if tighter(own, open_) == open_ else (own, True)
