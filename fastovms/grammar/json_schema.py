"""Prepares JSON schemas for grammar compilers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from fastovms.grammar.enforceable import EnforceableSchema, enforceable
from fastovms.grammar.finite_schema import (
    Schema,
    integer_of,
    is_number,
    parts_of,
    rewritten,
    with_integer_counts,
    within_bounds,
    without_endless_parts,
)
from fastovms.grammar.lark import OPAQUE
from fastovms.grammar.patterns import FORMATS
from fastovms.json_types import resolve

_Tree = dict[str, "_Tree"]
_END = ""
_ANYTHING = r"(.|\n|\r)*"


def other_names(names: Iterable[str]) -> str:
    """Returns a regular expression that matches every string except these."""
    root: _Tree = {}
    for name in names:
        node = root
        for letter in name:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return f"^{_others(root)}$"


def _others(node: _Tree) -> str:
    """Returns a regular expression of the continuations that lead to a string outside the tree."""
    letters = [letter for letter in node if letter != _END]
    choices = [f"{re.escape(letter)}{_others(node[letter])}" for letter in letters]
    barred = "".join(map(re.escape, letters))
    choices.append(f"[^{barred}]{_ANYTHING}" if letters else f"(.|\\n|\\r){_ANYTHING}")
    return f"({'|'.join(choices)}){'' if _END in node else '?'}"


Both = Callable[[Any, Any], Any]
"""A function that returns the conjunction of two subschemas."""

_BOUNDS: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
_APART: Final = {"pattern", "format", "multipleOf", "items", "prefixItems", "additionalItems"}
"""Keywords that cannot be merged: if both schemas have one, the second stays in an `allOf`."""

_VALUE_KEYWORDS: Final = ("const", "enum")
_NUMBERS: Final = {"number", "integer"}


def merged(first: Schema, second: Schema, both: Both) -> dict[str, Any] | None:
    """Returns the conjunction of two schemas without `$ref`, `anyOf` and `oneOf`; None if their
    types or choices are disjoint. Keywords that cannot be merged stay in an `allOf`. Annotations
    are those of the first schema. Merging is needed because compilers treat keywords next to
    `anyOf`, `allOf` or `$ref` differently; XGrammar ignores them."""
    if not _can_merge_objects(first, second):
        return {**first, "allOf": [*first.get("allOf", ()), second]}
    result = {**first, **_merged_objects(first, second, both)}
    apart: dict[str, Any] = {}
    for key, value in second.items():
        mine: Any = first.get(key)
        if key in _OBJECT or key in _VALUE_KEYWORDS:
            continue
        if key not in first:
            result[key] = value
        elif key == "allOf":
            result[key] = [*mine, *value]
        elif key == "type":
            result[key] = _common_types(mine, value)
        elif key == "items" and isinstance(mine, Mapping) and isinstance(value, Mapping):
            result[key] = both(mine, value)
        elif key in _APART and mine != value:
            apart[key] = value
        elif key in _BOUNDS and is_number(mine) and is_number(value):
            result[key] = _BOUNDS[key](mine, value)
    _merge_choices(result, second)
    if [] in (result.get("type"), result.get("enum")):
        return None
    return {**result, "allOf": [*result.get("allOf", ()), apart]} if apart else result


_OBJECT: Final = ("properties", "required", "additionalProperties", "patternProperties")


def _can_merge_objects(first: Schema, second: Schema) -> bool:
    """Returns whether the names that each of two object schemas restricts are known; they are not
    if there are patterns."""
    for mine, other in ((first, second), (second, first)):
        if "patternProperties" in mine and other.keys() & {
            "properties", "patternProperties", "additionalProperties",
        }:  # fmt: skip
            return False
    return all(
        isinstance(schema.get(key, kind()), kind)
        for schema in (first, second)
        for key, kind in (("properties", dict), ("required", list), ("allOf", list))
    )


def _merged_objects(first: Schema, second: Schema, both: Both) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if "properties" in first or "properties" in second:
        names = dict.fromkeys((*first.get("properties", ()), *second.get("properties", ())))
        result["properties"] = {
            name: _holding(_of_property(first, name), _of_property(second, name), both)
            for name in names
        }
    if "required" in first or "required" in second:
        required = (*first.get("required", ()), *second.get("required", ()))
        result["required"] = [name for i, name in enumerate(required) if name not in required[:i]]
    if "additionalProperties" in first or "additionalProperties" in second:
        mine, other = (schema.get("additionalProperties", True) for schema in (first, second))
        result["additionalProperties"] = _holding(mine, other, both)
    if "patternProperties" in second:
        result["patternProperties"] = second["patternProperties"]
    return result


def _of_property(schema: Schema, name: str) -> Any:
    named = schema.get("properties", {})
    return named[name] if name in named else schema.get("additionalProperties", True)


def _holding(first: Any, second: Any, both: Both) -> Any:
    if first is True or second is False:
        return second
    return first if second is True or first is False else both(first, second)


def _common_types(first: object, second: object) -> object:
    mine, other = (names if isinstance(names, list) else [names] for names in (first, second))
    if not all(isinstance(name, str) for name in (*mine, *other)):
        return first
    found = [name for name in mine if name in other or (name == "integer" and "number" in other)]
    if "number" in mine and not _NUMBERS & {*found}:
        found += [name for name in other if name == "integer"]
    return found[0] if len(found) == 1 else found


def _merge_choices(result: dict[str, Any], second: Schema) -> None:
    choices = _choices(second)
    if choices is None:
        return
    mine = _choices(result)
    if mine is not None:
        texts = {json.dumps(choice, sort_keys=True) for choice in choices}
        choices = [choice for choice in mine if json.dumps(choice, sort_keys=True) in texts]
        result.pop("const", None)
        result["enum"] = choices
    else:
        result |= {key: second[key] for key in _VALUE_KEYWORDS if key in second}


def _choices(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


_OTHERS: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
"""The keywords about undeclared properties."""

_SAYS_OF_ANY: Final = ("additionalProperties", "unevaluatedProperties")

_CHOICES: Final = ("anyOf", "oneOf")
_APPLICATORS: Final[Mapping[str, type]] = {"$ref": str, "allOf": list, "anyOf": list, "oneOf": list}
_DEFINITIONS: Final = ("$defs", "definitions")
_OPTIONS: Final = "x-guidance"
_ANNOTATIONS: Final = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema",
    "$id", "$anchor", "$comment", "discriminator", _OPTIONS, *_DEFINITIONS,
}  # fmt: skip
_NOT_OWN: Final = {*_APPLICATORS, *_ANNOTATIONS, "unevaluatedProperties"}

_MAPS: Final = {"properties", "patternProperties"}
_LISTS: Final = {"prefixItems", "items"}
_SCHEMAS: Final = {"additionalProperties", "items", "additionalItems"}

_NAME: Final = re.compile(r"[\w.-]+", re.ASCII)
_MAX_SHOWN: Final = 100
_MAX_MERGES: Final = 2000
"""The maximum number of schemas to merge: far more than usual alternatives need."""


def closed_schema(root: Schema) -> object:
    """Returns the schema with all its objects closed, without keywords next to `anyOf`, `oneOf` or
    `$ref`; False if nothing satisfies it. A malformed schema is returned unchanged; llguidance
    refuses it. Raises ValueError if the target of a `$ref` does not exist, or the schema is too
    large to merge."""
    return _SchemaCloser(root).closed()


def strict_schema(root: Schema) -> Schema:
    """Returns a schema whose objects have only the declared properties, if any are declared,
    whatever the keywords about other properties."""
    return _each(root, _strict)


def shut_schema(root: Schema) -> Schema:
    """Returns a schema whose objects have only properties that are declared or match a pattern,
    unless they declare none or the schema has a keyword about other properties."""
    return _each(root, _shut)


def open_schema(root: Schema) -> Schema:
    """Returns a schema whose objects may have any properties in addition to the declared ones,
    unless the schema restricts other properties."""
    return _each(root, _open)


def _strict(part: Schema) -> Schema:
    if not _declares(part):
        return part
    return {key: part[key] for key in part if key not in _OTHERS or part[key] is False}


def _shut(part: Schema) -> Schema:
    has_patterns = isinstance(part.get("patternProperties"), Mapping)
    if not has_patterns or not part.keys().isdisjoint(_SAYS_OF_ANY):
        return part
    return {**part, "additionalProperties": False}


def _open(part: Schema) -> Schema:
    if not _declares(part) or not part.keys().isdisjoint(_OTHERS):
        return part
    return {**part, "additionalProperties": True}


def _each(root: Schema, change: Callable[[Schema], Schema]) -> Schema:
    changed = {id(part): change(part) for part in parts_of(root)}
    try:
        found: Schema = rewritten(root, lambda part: changed.get(id(part), part))
    except RecursionError:  # the compiler will report that the schema is too deep
        return root
    return found


def _declares(schema: Schema) -> bool:
    return isinstance(schema.get("properties"), Mapping)


class _SchemaCloser:
    """Closes the objects of a schema.

    JSON Schema allows an object to have undeclared properties, which a model would invent. A closed
    object has none, unless its schema has a keyword about them. Schemas that apply together are
    merged first, because each alone would exclude the properties that the others declare.

    Targets of references and merged schemas become definitions, each created once, even if
    recursive.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._names: dict[object, str] = {}
        self._pending: list[tuple[str, Schema, bool]] = []
        self._pairs: dict[tuple[int, ...], Schema] = {}
        self._parts_of_pairs: dict[int, list[Any]] = {}
        self._num_merges = 0

    def closed(self) -> object:
        found = self._value(self._root)
        if not isinstance(found, Mapping):
            return {} if found is True else found
        definitions: dict[str, object] = {}
        while self._pending:
            name, schema, is_merged = self._pending.pop()
            definitions[name] = self._merged(schema) if is_merged else self._value(schema)
        if _OPTIONS in self._root:
            found = {**found, _OPTIONS: self._root[_OPTIONS]}
        return {**found, "$defs": definitions} if definitions else found

    def _value(self, schema: Any) -> Any:
        """Returns a schema with all its objects closed."""
        if not isinstance(schema, Mapping):
            return schema
        applied = [key for key, kind in _APPLICATORS.items() if isinstance(schema.get(key), kind)]
        if not applied:
            return self._plain(schema)
        key = applied[0]
        if len(applied) > 1 or schema.keys() - {key, *_ANNOTATIONS}:
            return self._defined(id(schema), "merged", schema, is_merged=True)
        if key == "$ref":
            return self._resolve_reference(schema[key])
        if key == "allOf" and len(schema[key]) != 1:
            return self._defined(id(schema), "merged", schema, is_merged=True)
        values = list(map(self._value, schema[key]))
        return values[0] if key == "allOf" else {key: values}

    def _merged(self, schema: Schema) -> object:
        found = [self._plain(part) for part in self._alternatives(schema, ())]
        if not found:
            return False
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _alternatives(self, schema: object, inside: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the alternatives of a schema, of which one must hold, completely merged. `inside`
        are the references that are being resolved. A reference to one of them adds no
        alternatives."""
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            raise ValueError(f"a subschema must be an object or a boolean, not {schema!r:.100}")
        own = {key: value for key, value in schema.items() if key not in _NOT_OWN}
        place = next((key for key in ("properties", "required", *own) if key in own), None)
        alternatives: list[dict[str, Any]] = [{}]
        for key, value in schema.items():
            if key == place:
                alternatives = self._all_merged(alternatives, [own])
            elif key == "$ref" and isinstance(value, str):
                found = [] if value in inside else [self._target(value)]
                alternatives = self._all_merged(alternatives, self._any_of(found, (*inside, value)))
            elif key == "allOf" and isinstance(value, list):
                for part in value:
                    alternatives = self._all_merged(alternatives, self._any_of([part], inside))
            elif key in _CHOICES and isinstance(value, list):
                alternatives = self._all_merged(alternatives, self._any_of(value, inside))
        if "unevaluatedProperties" in schema:
            others = {"additionalProperties": schema["unevaluatedProperties"]}
            alternatives = [{**others, **alternative} for alternative in alternatives]
        return alternatives

    def _any_of(self, schemas: Sequence[object], inside: Sequence[str]) -> list[dict[str, Any]]:
        return [one for schema in schemas for one in self._alternatives(schema, inside)]

    def _all_merged(
        self, first: list[dict[str, Any]], second: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        self._num_merges += len(first) * len(second)
        if self._num_merges > _MAX_MERGES:
            raise ValueError(f"more than {_MAX_MERGES} subschemas would have to be merged")
        found = (merged(one, other, self._both) for one, other in product(first, second))
        return [schema for schema in found if schema is not None]

    def _both(self, first: Any, second: Any) -> Schema:
        """Returns the conjunction of two schemas. Equal pairs give the same definition, so that
        recursion ends."""
        parts: dict[int, Any] = {}
        for schema in (first, second):
            parts |= {id(part): part for part in self._parts_of_pairs.get(id(schema), [schema])}
        pair = self._pairs.setdefault(tuple(parts), {"allOf": [*parts.values()]})
        self._parts_of_pairs[id(pair)] = pair["allOf"]
        return pair

    def _plain(self, schema: Schema) -> Schema:
        """Closes a schema that has nothing to merge."""
        found = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        if "unevaluatedProperties" in found:
            found = {"additionalProperties": found.pop("unevaluatedProperties"), **found}
        if _declares(found):
            found = _closed_object(found)
        return self._with_values(found)

    def _with_values(self, schema: Schema) -> dict[str, Any]:
        """Closes the schemas of properties and items, but not the object itself."""
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _MAPS and isinstance(value, Mapping):
                value = {name: self._value(part) for name, part in value.items()}
            elif key in _LISTS and isinstance(value, list):
                value = [self._value(part) for part in value]
            elif key == "allOf" and isinstance(value, list):  # parts that could not be merged
                value = [
                    self._with_values(part) if isinstance(part, Mapping) else part for part in value
                ]
            elif key in _SCHEMAS:
                value = self._value(value)
            found[key] = value
        return found

    def _resolve_reference(self, reference: str) -> Any:
        if reference == "#":
            return {"$ref": reference}
        target = self._target(reference)
        if not isinstance(target, Mapping):
            return target
        return self._defined(reference, reference.rpartition("/")[2], target)

    def _target(self, reference: str) -> Any:
        try:
            return resolve(reference, self._root)
        except LookupError:
            for part in parts_of(self._root):
                if f"#{part.get('$anchor')}" == reference:
                    return part
        raise ValueError(f"$ref {json.dumps(reference)[:_MAX_SHOWN]} is not defined in the schema")

    def _defined(
        self, key: object, name: str, schema: Schema, *, is_merged: bool = False
    ) -> Schema:
        """Returns a reference to the definition for `key`; adds the definition if it is new."""
        if key not in self._names:
            taken = self._names.values()
            if _NAME.fullmatch(name) is None or name in taken:
                name = "part"
            number = len(self._names)
            self._names[key] = f"{name}.{number}" if is_merged or name == "part" else name
            self._pending.append((self._names[key], schema, is_merged))
        return {"$ref": f"#/$defs/{self._names[key]}"}


def _closed_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Closes a schema with declared properties. Without a type, the type becomes object; without a
    keyword about other properties, none are allowed. Otherwise other properties get a pattern that
    excludes the declared names, because compilers would allow these again, for example with
    escapes."""
    if schema.keys().isdisjoint(("type", "enum", "const")):
        schema = {"type": "object", **schema}
    if not schema.keys().isdisjoint(("enum", "const", "patternProperties")):
        return schema
    others = schema.get("additionalProperties", False)
    if "additionalProperties" in schema and others is False:
        return schema
    properties = dict(schema["properties"])
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str):
            properties.setdefault(name, others or {})
    if others is not False and properties:
        schema = {**schema, "patternProperties": {other_names(properties): others}}
        others = False
    return {**schema, "properties": properties, "additionalProperties": others}


_MAY_DECLARE_PROPERTIES: Final = re.compile(r'"(?:unevaluatedP|p)roperties"|\\u')
_NEEDS_A_SEARCH: Final = re.compile(r'"(?:\$ref|format|exclusiveM\w+)"|\\u')
"""Matches JSON schemas that may have subschemas that no value satisfies, or names with escapes."""

_MAX_REFERENCES: Final = 50
_TOO_DEEP: Final = "it is nested too deeply"
_NUDGE: Final = 1e-6
_EMBEDDED: Final = re.compile(rf"{OPAQUE}|(?P<json>%json\s*)(?=\{{)")


def usable_schema(source: str, *, name: str = "it") -> str:
    """Returns the schema with its objects closed (`closed_schema`), without subschemas that no
    finite value satisfies, without unsupported formats (annotations by JSON Schema 2020-12, 7.2.3),
    and with bounds that llguidance supports. Raises ValueError if the schema is not JSON, has an
    invalid number, is unsatisfiable, or is too large to decide. `name` is the schema's name in the
    error about unsatisfiable schemas."""
    try:
        schema = json.loads(source, parse_int=integer_of)
        usable = _usable(schema, source)
    except json.JSONDecodeError:  # llguidance says what is wrong with it
        return source
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if usable is False:
        is_endless = isinstance(schema, Mapping) and _NEEDS_A_SEARCH.search(source)
        reason = ": a $ref leads back to it without end" if is_endless and "$ref" in source else ""
        raise ValueError(f"nothing satisfies {name}{reason}")
    return source if usable is schema else json.dumps(usable)


def usable_rules(lark: str) -> str:
    """Returns Lark rules in which each JSON schema is converted by `usable_schema`."""
    if "%json" not in lark:
        return lark
    pieces: list[str] = []
    position = 0
    for match in _EMBEDDED.finditer(lark):
        if match["json"] is None or match.start() < position:
            continue
        try:
            _, end = json.JSONDecoder(parse_int=integer_of).raw_decode(lark, match.end())
        except json.JSONDecodeError:  # llguidance says what is wrong with it
            continue
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        schema = usable_schema(lark[match.end() : end], name="a schema in it")
        pieces += [lark[position : match.end()], schema]
        position = end
    return "".join([*pieces, lark[position:]])


def enforceable_schema(schema: object) -> EnforceableSchema:
    """Returns the schema in keywords that grammars enforce, and the keywords that cannot be
    enforced. Raises ValueError if the schema contradicts itself, is malformed, or is nested too
    deeply."""
    try:
        return enforceable(schema)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def normal_schema(schema: object) -> object:
    """Returns the schema in a form for every compiler: closed, without keywords next to `anyOf`,
    `oneOf` and `$ref`, otherwise like `usable_schema`, also in the errors that it raises."""
    try:
        schema = _enforced(schema)
        return _finite(closed_schema(schema) if isinstance(schema, dict) else schema, '"$ref"')
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _usable(schema: object, source: str) -> object:
    schema = _enforced(schema)
    if isinstance(schema, dict) and _MAY_DECLARE_PROPERTIES.search(source) is not None:
        schema = closed_schema(schema)
    return _finite(schema, source)


def _enforced(schema: object) -> object:
    """Returns the schema in keywords that grammars enforce. Raises ValueError if a keyword cannot
    be enforced."""
    found, unenforced = enforceable(schema)
    for one in unenforced:
        raise ValueError(str(one))
    return found


def _finite(schema: object, source: str) -> object:
    corrected = _corrected(schema)
    has_definitions = isinstance(corrected, Mapping) and "$defs" in corrected
    if not has_definitions and _NEEDS_A_SEARCH.search(source) is None:
        return corrected
    usable = without_endless_parts(corrected)
    if isinstance(usable, Mapping):
        _check_references(usable)
    return usable


def _check_references(root: Schema) -> None:
    """Raises ValueError for a long chain of references, which llguidance follows recursively."""
    for part in parts_of(root):
        num_followed = 0
        target: object = part
        while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
            num_followed += 1
            if num_followed > _MAX_REFERENCES:
                raise ValueError(f"a chain of $refs is longer than {_MAX_REFERENCES}")
            try:
                target = resolve(target["$ref"], root)
            except LookupError:
                break


def _corrected(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    changed = {
        id(part): corrected
        for part in parts_of(schema)
        if (corrected := _for_llguidance(part)) is not part
    }
    if not changed:
        return schema
    return rewritten(schema, lambda part: changed.get(id(part), part))


def _for_llguidance(part: Schema) -> Schema:
    part = with_integer_counts(_without_unknown_format(part))
    return _with_open_bounds(within_bounds(part))


def _without_unknown_format(schema: Schema) -> Schema:
    if not isinstance(schema.get("format"), str) or schema["format"] in FORMATS:
        return schema
    return {key: value for key, value in schema.items() if key != "format"}


def _with_open_bounds(schema: Schema) -> Schema:
    """Returns the schema with exclusive bounds moved slightly inwards. llguidance wrongly allows an
    exclusive integer bound that is less than 1 away from the other bound, but respects fractional
    bounds. One millionth of the allowed range is lost."""
    low, high = (_number(schema, key) for key in ("exclusiveMinimum", "exclusiveMaximum"))
    highest = min(
        _number(schema, "maximum", math.inf), _number(schema, "exclusiveMaximum", math.inf)
    )
    lowest = max(
        _number(schema, "minimum", -math.inf), _number(schema, "exclusiveMinimum", -math.inf)
    )
    bounds: dict[str, float] = {}
    if low.is_integer() and low < highest < low + 1:
        bounds["exclusiveMinimum"] = low + _NUDGE * (highest - low)
    if high.is_integer() and high - 1 < lowest < high:
        bounds["exclusiveMaximum"] = high - _NUDGE * (high - lowest)
    return {**schema, **bounds} if bounds else schema


def _number(schema: Schema, key: str, default: float = math.nan) -> float:
    value = schema.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        return float(value)
    except OverflowError:
        return default
