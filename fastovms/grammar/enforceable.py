"""Rewrites JSON schemas with the keywords that grammars can enforce, and lists the keywords that
cannot be enforced.

A keyword without effect (`propertyNames: {"type": "string"}`) is dropped. A keyword that other
keywords can express is replaced by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import Any, Final, NamedTuple

from fastovms.grammar.finite_schema import (
    LISTS,
    MAPS,
    ONE,
    Schema,
    check_numbers,
    is_number,
    parts_of,
)
from fastovms.grammar.patterns import FORMATS, usable_patterns
from fastovms.json_types import json_type, resolve

_ANNOTATIONS: Final = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$comment", "contentEncoding", "contentMediaType", "contentSchema", "format",
}  # fmt: skip
_APPLICATORS: Final = {"$ref", "allOf", "anyOf", "oneOf"}
_DYNAMIC: Final = {"$dynamicRef": "$ref", "$recursiveRef": "$ref", "$dynamicAnchor": "$anchor"}
_TRIVIAL: Final[tuple[object, ...]] = (True, {})

_MAX_EXPANSION: Final = 100_000
"""The maximum number of characters added by repeating a schema for several names."""

_MAX_PATTERN_WORK: Final = 32
"""The maximum number of regular expressions with look-ahead that are rewritten in one schema."""

_MAX_NAMES: Final = 10_000
"""The maximum number of schemas that are checked for the names listed by `propertyNames`."""

_MAX_DEPTH: Final = 8
_MAX_LISTED: Final = 20
_MAX_SHOWN: Final = 100

_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
JSON_KINDS: Final = ("null", "boolean", "number", "string", "array", "object")

_Path = tuple[Any, ...]
"""The path of a subschema: `(outer path, key)`, or () for the root."""


class UnenforcedKeyword(NamedTuple):
    """A keyword that no grammar enforces. `path` is its path from the root, such as
    `properties.tags.uniqueItems`."""

    path: str
    keyword: str

    def __str__(self) -> str:
        reason = _REASONS.get(self.keyword, "")
        return f"{self.path} cannot be enforced{f' ({reason})' if reason else ''}"


_REASONS: Final = dict.fromkeys(
    ("pattern", "patternProperties"),
    "look-around, backreferences and word boundaries are not supported",
)


class EnforceableSchema(NamedTuple):
    """A schema in keywords that grammars enforce.

    Attributes:
        schema: the schema; the given object itself if nothing had to change.
        unenforced: the given schema's keywords that `schema` lacks; only the first ones if there
            are very many.
    """

    schema: Any
    unenforced: tuple[UnenforcedKeyword, ...]


def enforceable(schema: object) -> EnforceableSchema:
    """Returns the schema in keywords that grammars enforce, in time proportional to its size.

    Raises:
        ValueError: the schema contradicts itself or is malformed; the message has the path.
        RecursionError: the schema is nested too deeply.
    """
    rewriter = _Rewriter(schema)
    found = rewriter.part(schema, ())
    return EnforceableSchema(found, tuple(rewriter.unenforced))


def fault_of(schema: object) -> str:
    """Returns the path of the first keyword with an invalid value, and what the value must be; "" =
    all are valid. Grammar compilers report neither, and ignore some invalid values."""
    try:
        _Rewriter(schema, checks_forms=True).part(schema, ())
    except ValueError as fault:
        return str(fault)
    return ""


def patterns_of(schema: object, path: _Path = ()) -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each regular expression in a schema."""
    if not isinstance(schema, Mapping):
        return
    if isinstance(schema.get("pattern"), str):
        yield _shown((path, "pattern")), schema["pattern"]
    for key, value in schema.items():
        if key in MAPS and isinstance(value, Mapping):
            if key == "patternProperties":
                yield from ((_shown((path, key)), name) for name in value)
            for name, one in value.items():
                yield from patterns_of(one, ((path, key), name))
        elif key in LISTS and isinstance(value, list):
            for index, one in enumerate(value):
                yield from patterns_of(one, ((path, key), index))
        elif key in ONE:
            yield from patterns_of(value, (path, key))


class _Rewriter:
    """Rewrites a schema, inner subschemas first."""

    def __init__(self, root: object, *, checks_forms: bool = False) -> None:
        self._checks_forms = checks_forms
        self.unenforced: list[UnenforcedKeyword] = []
        self._root = root
        self._expansion_left = _MAX_EXPANSION
        self._patterns_left = _MAX_PATTERN_WORK
        self._names_left = _MAX_NAMES

    def part(self, given: Any, path: _Path) -> Any:
        """Returns the rewritten form of a subschema of the root."""
        if not isinstance(given, Mapping):
            return given
        _check_part(given, path, checks_forms=self._checks_forms)
        if self._checks_forms:
            self._check_reference(given, path)
        part = dict(given)
        _rewrite_flags(part)
        for keyword, rewrite in _RULES.items():
            if keyword in part and rewrite(self, part, part.pop(keyword)) is False:
                self._leave_out(path, keyword)
        if part.pop("not", None) is not None:
            return False
        self._rewrite_patterns(part, path)
        for key, value in part.items():
            inner: Any = value
            if key in MAPS and isinstance(value, Mapping):
                inner = _unchanged_or(
                    value, {n: self.part(v, ((path, key), n)) for n, v in value.items()}
                )
            elif key in LISTS and isinstance(value, list):
                inner = [self.part(item, ((path, key), i)) for i, item in enumerate(value)]
                inner = value if all(map(is_, inner, value)) else inner
            elif key in ONE:
                inner = self.part(value, (path, key))
            part[key] = inner
        return _unchanged_or(given, part)

    def _check_reference(self, part: Schema, path: _Path) -> None:
        """Raises ValueError if the target of a `$ref` does not exist in the root schema."""
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return
        try:
            resolve(reference, self._root)
        except LookupError:
            if reference not in self._anchors:
                place = _shown((path, "$ref"))
                raise ValueError(
                    f"{place} {_text(reference)} is not defined in the schema"
                ) from None

    @cached_property
    def _anchors(self) -> frozenset[str]:
        parts = parts_of(self._root) if isinstance(self._root, Mapping) else ()
        keys = ("$anchor", "$dynamicAnchor")
        return frozenset(f"#{part[key]}" for part in parts for key in keys if key in part)

    def _leave_out(self, path: _Path, keyword: str) -> None:
        if len(self.unenforced) < _MAX_LISTED:
            self.unenforced.append(UnenforcedKeyword(_shown((path, keyword)), keyword))

    def _rewrite_patterns(self, part: dict[str, Any], path: _Path) -> None:
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            found = self._patterns(pattern)
            if found:
                *others, part["pattern"] = found
                if others:
                    listed = part.get("allOf")
                    more = [{"pattern": one} for one in others]
                    part["allOf"] = [*(listed if isinstance(listed, list) else []), *more]
            else:
                del part["pattern"]
                # A supported format usually implies the pattern.
                if part.get("format") not in FORMATS:
                    self._leave_out(path, "pattern")
        patterns = part.get("patternProperties")
        if not isinstance(patterns, Mapping):
            return
        read = [(self._patterns(name), value) for name, value in patterns.items()]
        usable = {found[0]: value for found, value in read if len(found) == 1}
        if len(usable) < len(read):
            self._leave_out(path, "patternProperties")
            part["additionalProperties"] = True
        part["patternProperties"] = _unchanged_or(patterns, usable)

    def _patterns(self, pattern: str) -> list[str]:
        """Returns supported regular expressions that together are equivalent to the pattern; empty
        if there are none."""
        if "(?=" in pattern or "(?!" in pattern:
            self._patterns_left -= 1
            if self._patterns_left < 0:
                return []
        return usable_patterns(pattern) or []

    def resolved(self, schema: object) -> object:
        """Returns the schema with references resolved."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            try:
                schema = resolve(schema["$ref"], self._root)
            except LookupError:
                break
        return schema

    # The rules, one per keyword. Each gets the part without the keyword, and the keyword's value,
    # and changes the part. It returns False if the keyword cannot be enforced.

    def nullable(self, part: dict[str, Any], value: Any) -> bool:
        """Rewrites the keyword `nullable` of OpenAPI 3.0."""
        kind = part.get("type")
        if value is True and isinstance(kind, str) and kind != "null":
            part["type"] = [kind, "null"]
            if isinstance(part.get("enum"), list) and None not in part["enum"]:
                part["enum"] = [*part["enum"], None]
        elif value is True and kind is None and part.keys() & {"$ref", "allOf"}:
            inner = {key: part.pop(key) for key in [*part] if key not in _ANNOTATIONS}
            part["anyOf"] = [inner, {"type": "null"}]
        return True

    def property_names(self, part: dict[str, Any], value: Any) -> bool:
        value = self.resolved(value)
        if _excludes_kind(part, "object") or self._allows_any_name(value):
            return True
        if "patternProperties" in part or not isinstance(value, Mapping):
            return False
        properties = part.get("properties")
        declared = dict(properties) if isinstance(properties, Mapping) else {}
        others = part.get("additionalProperties", not declared)
        names = self._listed(value)
        if names is not None:
            self._expansion_left -= len(json.dumps(others)) * max(1, len(names))
            if self._expansion_left < 0:
                return False
            allowed = {name: declared.get(name, others) for name in names}
            part["properties"] = {k: v for k, v in allowed.items() if v is not False}
            part["additionalProperties"] = False
            return True
        pattern = _pattern_of_names(value)
        if declared or pattern is None:
            return others is False
        part["patternProperties"] = {pattern: others}
        part["additionalProperties"] = False
        return True

    def _allows_any_name(self, value: object) -> bool:
        if value is True or not isinstance(value, Mapping):
            return value is True
        kinds = value.get("type", "string")
        allows = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
        return allows and all(_is_neutral(key, value[key]) for key in value)

    def _listed(self, schema: object, depth: int = 0) -> list[str] | None:
        """Returns the names that a schema enumerates; None = no enumeration."""
        schema = self.resolved(schema)
        self._names_left -= 1
        if not isinstance(schema, Mapping) or depth == _MAX_DEPTH or self._names_left < 0:
            return None
        rest = schema.keys() - _ANNOTATIONS - {"type", "$schema"}
        if rest == {"const"}:
            values = [schema["const"]]
        elif rest == {"enum"} and isinstance(schema["enum"], list):
            values = schema["enum"]
        elif rest in ({"anyOf"}, {"oneOf"}):
            [key] = rest
            found: list[str] = []
            for choice in schema[key] if isinstance(schema[key], list) else ():
                names = self._listed(choice, depth + 1)
                if names is None:
                    return None
                found += names
            return found
        else:
            return None
        return [value for value in values if isinstance(value, str)]

    def contains(self, part: dict[str, Any], value: Any) -> bool:
        least, most = part.pop("minContains", 1), part.pop("maxContains", None)
        if _excludes_kind(part, "array") or (least == 0 and most is None):
            return True
        if value not in _TRIVIAL or not isinstance(least, int) or not isinstance(most, int | None):
            return False
        part["minItems"] = max(least, part.get("minItems", 0))
        if most is not None:
            part["maxItems"] = min(most, part.get("maxItems", most))
        return True

    def unique_items(self, part: dict[str, Any], value: Any) -> bool:
        most = part.get("maxItems")
        is_short = isinstance(most, int | float) and most <= 1
        return not value or is_short or _excludes_kind(part, "array")

    def unevaluated_items(self, part: dict[str, Any], value: Any) -> bool:
        if value in _TRIVIAL or isinstance(part.get("items"), Mapping | bool):
            return True
        if _excludes_kind(part, "array"):
            return True
        if part.keys() & (_APPLICATORS | {"contains", "items"}):
            return False
        part["items"] = value
        return True

    def dependencies(self, part: dict[str, Any], value: Any) -> bool:
        if _excludes_kind(part, "object") or not isinstance(value, Mapping):
            return _excludes_kind(part, "object")
        listed = part.get("required")
        required = set(_strings(listed))
        return all(
            one in _TRIVIAL or (isinstance(one, list) and set(_strings(one)) <= required | {name})
            for name, one in value.items()
        )

    def condition(self, part: dict[str, Any], value: Any) -> bool:
        branches = [part.pop(key) for key in ("then", "else") if key in part]
        return all(branch in _TRIVIAL for branch in branches)

    def negation(self, part: dict[str, Any], value: Any) -> bool:
        if value in _TRIVIAL:
            part["not"] = value  # the part becomes unsatisfiable
            return True
        if value is False:
            return True
        if not isinstance(value, Mapping):
            return False
        if value.keys() == {"not"} and value["not"] in _TRIVIAL:
            return True
        if value.keys() != {"type"}:
            return False
        barred = set(_strings(value["type"]) or [value["type"]])
        kinds = part.get("type", [*JSON_KINDS])
        kept = [kind for kind in _strings(kinds) or [kinds] if kind not in barred]
        if "number" in kept and "integer" in barred and "number" not in barred:
            return False
        part["type"] = kept[0] if len(kept) == 1 else kept
        if not kept:
            part["not"] = True
        return True

    def drop(self, part: dict[str, Any], value: Any) -> bool:
        """Drops a keyword that has no effect by itself."""
        return True


def _renamed(name: str) -> Callable[[_Rewriter, dict[str, Any], Any], bool]:
    def rewrite(rewriter: _Rewriter, part: dict[str, Any], value: Any) -> bool:
        part.setdefault(name, value)
        return True

    return rewrite


def _rewrite_flags(part: dict[str, Any]) -> None:
    """Rewrites the bounds of JSON Schema draft 4, in which `exclusive...` are booleans."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(part.get(exclusive), bool) and part.pop(exclusive) and bound in part:
            part[exclusive] = part.pop(bound)


_RULES: Final[Mapping[str, Callable[[_Rewriter, dict[str, Any], Any], bool]]] = {
    **{keyword: _renamed(name) for keyword, name in _DYNAMIC.items()},
    "$recursiveAnchor": _Rewriter.drop,
    "nullable": _Rewriter.nullable,
    "not": _Rewriter.negation,
    "if": _Rewriter.condition,
    "then": _Rewriter.drop,
    "else": _Rewriter.drop,
    "contains": _Rewriter.contains,
    "minContains": _Rewriter.drop,
    "maxContains": _Rewriter.drop,
    "uniqueItems": _Rewriter.unique_items,
    "unevaluatedItems": _Rewriter.unevaluated_items,
    "dependentRequired": _Rewriter.dependencies,
    "dependentSchemas": _Rewriter.dependencies,
    "dependencies": _Rewriter.dependencies,
    "propertyNames": _Rewriter.property_names,
}
"""The rule for each keyword that llguidance does not support, in this order."""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "minLength": (0,),
    "pattern": ("", "^", ".*", "^.*$"),
}


def _is_neutral(key: str, value: object) -> bool:
    return key in _ANNOTATIONS - {"format"} or key == "type" or value in _NEUTRAL.get(key, ())


def _pattern_of_names(schema: Schema) -> str | None:
    """Returns a regular expression of the names that a schema allows; None = there is none."""
    asked = {
        key: value
        for key, value in schema.items()
        if not _is_neutral(key, value) and (key != "format" or value in FORMATS)
    }
    if isinstance(asked.get("pattern"), str):
        asked.pop("format", None)  # schema generators write both for one constraint
    least, most = asked.pop("minLength", 0), asked.pop("maxLength", "")
    if not asked and isinstance(least, int) and isinstance(most, int | str):
        return rf"^[\s\S]{{{least},{most}}}$"
    if (least, most) != (0, "") or len(asked) != 1:
        return None
    [(key, value)] = asked.items()
    if key == "format":
        return f"^(?:{FORMATS[value]})$"
    return value if key == "pattern" and isinstance(value, str) else None


def _check_part(part: Schema, path: _Path, *, checks_forms: bool) -> None:
    """Raises ValueError for an invalid keyword; the message begins with the path."""
    try:
        if checks_forms:
            _check_forms(part)
        check_numbers(part)
        _check_types(part)
    except ValueError as fault:
        place, keyword = _shown(path), str(fault).partition(" ")[0].partition(".")[0]
        gap = "." if keyword in part else ": "
        raise ValueError(f"{place}{gap}{fault}" if place else str(fault)) from None


def _check_forms(part: Schema) -> None:
    """Raises ValueError if the value of a keyword has the wrong form. Keywords without effect for
    the schema's type are not checked."""
    kinds = part.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            raise ValueError(f"type must be one of {', '.join(_TYPES)}, not {_text(kind)}")
    for kinds, words, has_form, keywords in _FORMS:
        if kinds and all(_excludes_kind(part, kind) for kind in kinds):
            continue
        for keyword in keywords:
            if keyword in part and not has_form(part[keyword]):
                raise ValueError(f"{keyword} must be {words}, not {_text(part[keyword])}")
            if keyword in ("properties", "patternProperties"):
                for name, value in part.get(keyword, {}).items():
                    if not _is_schema(value):
                        raise ValueError(f"{keyword}.{name} must be a schema, not {_text(value)}")


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping | bool)


def _are_schemas(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def are_strings(value: object) -> bool:
    """Returns whether a value is a list of strings."""
    return isinstance(value, list) and len(_strings(value)) == len(value)


_FORMS: Final[Sequence[tuple[Sequence[str], str, Callable[[Any], bool], Sequence[str]]]] = (
    ((), "a string", lambda value: isinstance(value, str), ("$ref",)),
    ((), "a list", lambda value: isinstance(value, list), ("enum",)),
    ((), "a list of schemas", _are_schemas, ("allOf", "anyOf", "oneOf")),
    (("object",), "a list of strings", are_strings, ("required",)),
    (("object",), "an object", lambda value: isinstance(value, Mapping),
     ("properties", "patternProperties")),
    (("object",), "a schema", _is_schema, ("additionalProperties",)),
    (("object",), "a number", is_number, ("minProperties", "maxProperties")),
    (("array",), "a schema or a list of schemas",
     lambda value: _is_schema(value) or _are_schemas(value), ("items",)),
    (("array",), "a list of schemas", _are_schemas, ("prefixItems",)),
    (("array",), "a number", is_number, ("minItems", "maxItems")),
    (("string",), "a string", lambda value: isinstance(value, str), ("pattern", "format")),
    (("string",), "a number", is_number, ("minLength", "maxLength")),
    (("number", "integer"), "a number", is_number, ("minimum", "maximum", "multipleOf")),
    (("number", "integer"), "a number",  # or a flag, in JSON Schema's draft 4
     lambda value: isinstance(value, int | float), ("exclusiveMinimum", "exclusiveMaximum")),
)  # fmt: skip
"""The allowed forms of values: the types for which the keywords apply, the form, and the
keywords."""


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:_MAX_SHOWN]


def _check_types(part: Schema) -> None:
    kinds = part.get("type", [])
    listed = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(kind, str) for kind in listed):
        raise ValueError(f"type must be a string or a list of strings, not {_text(kinds)}")
    if not listed:
        return
    for keyword, values in (("enum", part.get("enum")), ("const", [part.get("const")])):
        if keyword not in part or not isinstance(values, list) or not values:
            continue
        if not any(_is_of(value, listed, part) for value in values):
            shown = json.dumps(part[keyword])[:_MAX_SHOWN]
            raise ValueError(f"type {json.dumps(kinds)} excludes every value of {keyword} {shown}")


def _is_of(value: object, kinds: list[str], part: Schema) -> bool:
    kind = json_type(value)
    is_whole = isinstance(value, float) and value.is_integer()
    return (
        kind in kinds
        or (kind == "integer" and "number" in kinds)
        or (is_whole and "integer" in kinds)
        or (kind == "null" and part.get("nullable") is True)
    )


def _excludes_kind(part: Schema, kind: str) -> bool:
    """Returns whether the type of a schema excludes values of a kind."""
    kinds = part.get("type")
    return kinds is not None and kind not in (kinds if isinstance(kinds, list) else [kinds])


def _strings(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _unchanged_or(given: Any, found: dict[str, Any]) -> Any:
    """Returns `given` if `found` has the same members in the same order, otherwise `found`."""
    is_same = [*given] == [*found] and all(found[key] is value for key, value in given.items())
    return given if is_same else found


def _shown(path: _Path) -> str:
    keys: list[str] = []
    while path:
        path, key = path
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "".join(reversed(keys)).removeprefix(".")
