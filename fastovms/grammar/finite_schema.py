"""Checks and rewrites numbers in JSON schemas, and removes subschemas that no finite value
satisfies."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeGuard

from fastovms.json_types import json_type, resolve

_MAX_EXACT: Final = 2**53 - 1
"""The largest interoperable integer (RFC 8259, 6). llguidance reads constants as f64: it would
write another number for most larger integers, and its stack overflows for those near -2**63."""

MAX_BOUND: Final = 10**18
"""The largest bound that llguidance supports."""

_MIN_BOUND: Final = 1e-50
"""The smallest supported bound except 0, because digits are written out."""

_MIN_MULTIPLE: Final = 1e-10
"""The smallest divisor whose decimal digits llguidance can read."""

_MAX_DIGITS: Final = 1000
"""The maximum number of digits of an integer: far beyond usual schemas, and cheap to read for
Python."""

_MAX_COUNT: Final = 2**32 - 1
"""The maximum number of repetitions in llguidance's regular expressions."""

_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def check_numbers(part: Schema) -> None:
    """Raises ValueError for a number that is not allowed for its keyword. Subschemas are not
    checked. Values that are not numbers are refused by llguidance."""
    for keyword in _COUNTS:
        _check_count(part, keyword)
    for keyword in (*_LOWER, *_UPPER):
        _check_bound(part, keyword)
    _check_multiple(part)
    _check_values(part)


def within_bounds(schema: Schema) -> Schema:
    """Returns the schema with each bound beyond `MAX_BOUND`, the largest that llguidance supports,
    replaced by `MAX_BOUND`. Larger numbers cannot be generated."""
    lower = {key: -MAX_BOUND for key in _LOWER if (_number(schema, key) or 0) < -MAX_BOUND}
    upper = {key: MAX_BOUND for key in _UPPER if (_number(schema, key) or 0) > MAX_BOUND}
    return {**schema, **lower, **upper} if lower or upper else schema


def with_integer_counts(schema: Schema) -> Schema:
    """Returns the schema with integers such as 3 instead of 3.0 in counting keywords such as
    minItems. A number with a zero fractional part is an integer in JSON Schema (2020-12 Core,
    4.2.2), but not for llguidance."""
    counts = {
        key: int(value)
        for key in _COUNTS
        if isinstance(value := schema.get(key), float) and value.is_integer()
    }
    return {**schema, **counts} if counts else schema


def integer_of(digits: str) -> int:
    """Parses an integer of a schema. Raises ValueError if it has too many digits."""
    num_digits = len(digits.removeprefix("-"))
    if num_digits > _MAX_DIGITS:
        raise ValueError(f"numbers must have at most {_MAX_DIGITS} digits, not {num_digits}")
    return int(digits)


def _check_count(part: Schema, keyword: str) -> None:
    value = _number(part, keyword)
    if value is None:
        return
    if not 0 <= value <= _MAX_COUNT or value != int(value):
        raise ValueError(
            f"{keyword} must be a whole number from 0 to {_MAX_COUNT}, not {part[keyword]}"
        )


def _check_bound(part: Schema, keyword: str) -> None:
    value = _number(part, keyword)
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{keyword} must be a finite number, not {value}")
    if value and abs(value) < _MIN_BOUND:
        raise ValueError(
            f"{keyword} must be 0 or at least {_MIN_BOUND:g} away from it, not {value}"
        )
    if keyword in _LOWER and value >= MAX_BOUND:
        raise ValueError(f"{keyword} must be less than {MAX_BOUND}, not {value}")
    if keyword in _UPPER and value <= -MAX_BOUND:
        raise ValueError(f"{keyword} must be more than {-MAX_BOUND}, not {value}")


def _check_multiple(part: Schema) -> None:
    value = _number(part, "multipleOf")
    if value is None:
        return
    if not 0 < value < math.inf:
        raise ValueError(f"multipleOf must be a finite number greater than 0, not {value}")
    if value < _MIN_MULTIPLE:
        raise ValueError(f"multipleOf must be at least {_MIN_MULTIPLE:g}, not {value}")


def _check_values(part: Schema) -> None:
    pending = [("const", part["const"])] if "const" in part else []
    if isinstance(part.get("enum"), list):
        pending += [("enum", value) for value in part["enum"]]
    while pending:
        keyword, value = pending.pop()
        if isinstance(value, dict):
            pending += [(keyword, item) for item in value.values()]
        elif isinstance(value, list):
            pending += [(keyword, item) for item in value]
        elif is_number(value) and not abs(value) <= _MAX_EXACT:
            raise ValueError(
                f"numbers of {keyword} must be from {-_MAX_EXACT} to {_MAX_EXACT}, not {value}"
            )


def _number(schema: Schema, key: str) -> float | None:
    value = schema.get(key)
    return value if is_number(value) else None


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


Schema = Mapping[str, Any]
Types = frozenset[str]

_SCALARS: Final[Types] = frozenset(("string", "number", "boolean", "null"))
_ALL: Final[Types] = _SCALARS | {"array", "object"}
_NONE: Final[Types] = frozenset()

_REFERENCE: Final = {"$ref", "title", "description", "default", "examples", "$defs", "definitions"}
_OF_CONTAINERS: Final = {
    "properties", "required", "patternProperties", "additionalProperties", "items", "prefixItems",
    "minItems", "additionalItems",
}  # fmt: skip
ONE: Final = (
    "additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""The keywords whose values are a schema, a list of schemas, or a mapping of schemas."""

_MAX_VISITS: Final = 200_000
"""The maximum number of subschemas that are examined, counted again for each reference: far beyond
usual schemas."""

_MAX_ITEMS: Final = 1000
"""The number of required `prefixItems` that are checked."""


def without_endless_parts(root: object) -> object:
    """Returns the schema with `false` instead of subschemas that no finite value satisfies: those
    that require themselves, as `{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}`.
    llguidance accepts them, and generates until no token is allowed; with `false` it omits such an
    optional property, or refuses the schema. A malformed schema is returned unchanged, and
    llguidance refuses it. Raises ValueError if the schema is too large to decide."""
    if not isinstance(root, Mapping):
        return root
    return _Search(root).pruned()


class _Search:
    """Finds the possible JSON types of each subschema, by iteration from empty sets to a fixed
    point."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._types: dict[int, Types] = {}
        self._is_hopeful = False
        self._users: defaultdict[int, set[int]] = defaultdict(set)
        self._current = 0
        self._num_visits = 0
        self._schemas = {id(schema): schema for schema in parts_of(root)}
        self._queue = deque(reversed(self._schemas))  # inner schemas first
        self._queued = set(self._queue)
        while self._queue:
            key = self._queue.popleft()
            self._queued.discard(key)
            self._current = key
            types = self._evaluate(self._schemas[key])
            if types != self._types.get(key, _NONE):
                self._types[key] = types
                for user in self._users[key]:
                    self._enqueue(user)

    def pruned(self) -> object:
        """Returns the schema without endless subschemas. A subschema that contradicts itself and
        makes the whole schema unsatisfiable is kept, because llguidance's error for it is
        clearer."""
        endless = {key for key in self._schemas if not self._types.get(key)}
        if id(self._root) in endless:
            self._is_hopeful = True
            endless = {key for key in endless if self._evaluate(self._schemas[key])}
        if not endless:
            return self._root
        return rewritten(self._root, lambda part: False if id(part) in endless else part)

    def _types_of(self, schema: object) -> Types:
        """Returns the types of a subschema, as known so far. The subschema that is being evaluated
        is evaluated again when more types are found."""
        if not isinstance(schema, Mapping):
            return _NONE if schema is False else _ALL
        if self._is_hopeful:
            return _ALL
        if id(schema) not in self._schemas:  # a schema that is only reached by a reference
            self._schemas[id(schema)] = schema
            self._enqueue(id(schema))
        self._users[id(schema)].add(self._current)
        return self._types.get(id(schema), _NONE)

    def _evaluate(self, given: Schema) -> Types:
        """Returns the types of the values that satisfy a subschema."""
        if given.keys() <= _REFERENCE and isinstance(given.get("$ref"), str):
            return self._types_of(self._resolve(given["$ref"]))
        conjuncts, references = self._conjuncts(given)
        types = _ALL
        for schema in conjuncts:
            types &= _own_types(schema)
        for reference in references:
            types &= self._types_of(reference)
        if types & {"object"} and not self._has_object(conjuncts):
            types -= {"object"}
        if types & {"array"} and not self._has_array(conjuncts):
            types -= {"array"}
        for schema in conjuncts:
            for keyword in ("anyOf", "oneOf"):
                choices = schema.get(keyword)
                if isinstance(choices, list) and types:
                    types &= frozenset().union(*(self._choice(conjuncts, c) for c in choices))
        return types

    def _choice(self, conjuncts: list[Schema], choice: object) -> Types:
        """Returns the types of values that satisfy the conjuncts and one of the alternatives."""
        self._step()
        types = self._types_of(choice)
        is_apart = not any(schema.keys() & _OF_CONTAINERS for schema in conjuncts)
        if not isinstance(choice, Mapping) or not types or is_apart:
            return types
        inner, _ = self._conjuncts(choice)
        both = [*conjuncts, *inner]
        if types & {"object"} and not self._has_object(both):
            types -= {"object"}
        if types & {"array"} and not self._has_array(both):
            types -= {"array"}
        return types

    def _conjuncts(self, given: Schema) -> tuple[list[Schema], list[object]]:
        """Returns all schemas that must hold together, and the references among them."""
        found: dict[int, Schema] = {}
        parts: list[object] = []
        pending = [given]
        while pending:
            schema = pending.pop()
            if id(schema) in found:
                continue
            self._step()
            found[id(schema)] = schema
            others = schema.get("allOf")
            more = list(others) if isinstance(others, list) else []
            if isinstance(schema.get("$ref"), str):
                more.append(self._resolve(schema["$ref"]))
            parts += more
            pending += [other for other in more if isinstance(other, Mapping)]
        return list(found.values()), parts

    def _has_object(self, conjuncts: list[Schema]) -> bool:
        names: dict[str, None] = {}
        for schema in conjuncts:
            required = schema.get("required")
            if isinstance(required, list):
                names.update(dict.fromkeys(n for n in required if isinstance(n, str)))
        counts = [s["minProperties"] for s in conjuncts if isinstance(s.get("minProperties"), int)]
        if not all(self._may_have(conjuncts, name) for name in names):
            return False
        least = max(counts, default=0) - len(names)
        return least <= 0 or self._has_more_properties(conjuncts, names, least)

    def _may_have(self, conjuncts: list[Schema], name: str) -> bool:
        return all(
            self._types_of(part) for schema in conjuncts for part in self._parts_for(schema, name)
        )

    def _has_more_properties(
        self, conjuncts: list[Schema], names: Collection[str], least: int
    ) -> bool:
        """Returns whether an object may have at least `least` properties in addition to the
        required ones: declared ones, or any number of others."""
        others: list[object] = []
        declared: dict[str, None] = {}
        for schema in conjuncts:
            others.append(schema.get("additionalProperties", True))
            for key in ("properties", "patternProperties"):
                value = schema.get(key)
                if isinstance(value, Mapping) and key == "properties":
                    declared.update(dict.fromkeys(value))
                elif isinstance(value, Mapping) and any(map(self._types_of, value.values())):
                    others.pop()
                elif isinstance(value, Mapping) and any(_fits_all(pattern) for pattern in value):
                    others.append(False)
        if all(map(self._types_of, others)):
            return True
        optional = (name for name in declared if name not in names)
        return (
            sum(self._may_have(conjuncts, name) for name in islice(optional, _MAX_ITEMS)) >= least
        )

    def _parts_for(self, schema: Schema, name: str) -> Iterator[object]:
        """Yields the schemas that a property's value must satisfy."""
        self._step()
        is_named = False
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            is_named = True
            yield properties[name]
        patterns = schema.get("patternProperties")
        fits = {p: _fits(p, name) for p in patterns} if isinstance(patterns, Mapping) else {}
        yield from (patterns[one] for one, does_fit in fits.items() if does_fit and patterns)
        # llguidance decides whether the others match.
        if not is_named and not any(does_fit is not False for does_fit in fits.values()):
            yield schema.get("additionalProperties", True)

    def _has_array(self, conjuncts: list[Schema]) -> bool:
        return all(
            self._types_of(part) for schema in conjuncts for part in self._items(schema, conjuncts)
        )

    def _items(self, schema: Schema, conjuncts: list[Schema]) -> Iterator[object]:
        """Yields the schemas that the required items must satisfy."""
        counts = [s["minItems"] for s in conjuncts if isinstance(s.get("minItems"), int)]
        least = max(counts, default=0)
        items = schema.get("items", True)
        first, rest = schema.get("prefixItems"), items
        if isinstance(items, list):  # `items` as a list, as before JSON Schema 2020-12
            first, rest = items, schema.get("additionalItems", True)
        first = first if isinstance(first, list) else []
        for item in first[: min(least, _MAX_ITEMS)]:
            self._step()
            yield item
        if least > len(first):
            yield rest

    def _resolve(self, reference: str) -> object:
        """Returns the target of a reference within the schema; True = it points elsewhere."""
        try:
            return resolve(reference, self._root)
        except LookupError:
            return True

    def _enqueue(self, key: int) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.append(key)

    def _step(self) -> None:
        self._num_visits += 1
        if self._num_visits > _MAX_VISITS:
            raise ValueError("the schema has too many references between its parts: use fewer $ref")


_SIMPLE: Final = re.compile(r"\^?(?:[\w .-]|\\[dws.]|\[[\w -]*\])*[*+]?\$?", re.ASCII)
"""Matches regular expressions that mean the same in Python as in JSON Schema, and take linear
time."""


def _fits(pattern: str, name: str) -> bool | None:
    """Returns whether a name matches a regular expression; None = not decidable here."""
    if _SIMPLE.fullmatch(pattern) is None:
        return None
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return None


def _fits_all(pattern: str) -> bool:
    return pattern.removeprefix("^").removesuffix("$") in ("", ".*", ".+")


def _own_types(schema: Schema) -> Types:
    types = _ALL
    if "const" in schema:
        types &= {_merged(json_type(schema["const"]))}
    if isinstance(schema.get("enum"), list):
        types &= {_merged(json_type(value)) for value in schema["enum"]}
    named = schema.get("type")
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list) and named:
        types &= {_merged(str(kind)) for kind in named}
    return types


def _merged(kind: str) -> str:
    """Returns the JSON type with "integer" replaced by "number"."""
    return "number" if kind == "integer" else kind


def rewritten(value: Any, change: Callable[[Schema], object]) -> Any:
    """Returns a copy in which each object is replaced by the result of `change`, outer objects
    first. Results that are not objects are not changed further."""
    if isinstance(value, Mapping):
        changed = change(value)
        if not isinstance(changed, Mapping):
            return changed
        return {key: rewritten(item, change) for key, item in changed.items()}
    return [rewritten(item, change) for item in value] if isinstance(value, list) else value


def parts_of(root: Schema) -> Iterator[Schema]:
    """Yields the schema and all its subschemas, outer ones first."""
    pending: list[object] = [root]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, Mapping):
            continue
        yield schema
        pending += [schema[key] for key in ONE if key in schema]
        for key in LISTS:
            pending += schema[key] if isinstance(schema.get(key), list) else []
        for key in MAPS:
            pending += schema[key].values() if isinstance(schema.get(key), Mapping) else []
