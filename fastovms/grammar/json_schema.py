"""Makes JSON schemas fit for llguidance, by themselves and in rules of Lark."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Final

from fastovms.grammar.lark.lark_writer import OPAQUE
from fastovms.grammar.schemas.closed_schema import closed_schema
from fastovms.grammar.schemas.enforceable import Enforceable, enforceable
from fastovms.grammar.schemas.finite_schema import (
    Schema,
    parts_of,
    rewritten,
    without_endless_parts,
)
from fastovms.grammar.schemas.schema_numbers import (
    integer_of,
    with_integer_counts,
    within_bounds,
)
from fastovms.grammar.schemas.string_formats import FORMATS
from fastovms.json_types import resolve

_MAY_DECLARE_PROPERTIES: Final = re.compile(r'"(?:unevaluatedP|p)roperties"|\\u')
_NEEDS_A_SEARCH: Final = re.compile(r'"(?:\$ref|format|exclusiveM\w+)"|\\u')
"""Finds schemas in which parts that no value satisfies may be, and cannot be seen at once. A name
may be written with escapes."""

_MAX_REFERENCES: Final = 50
_MAX_SHOWN: Final = 100
_TOO_DEEP: Final = "it is nested too deeply"
_NUDGE: Final = 1e-6
_EMBEDDED: Final = re.compile(rf"{OPAQUE}|(?P<json>%json\s*)(?=\{{)")


def usable_schema(source: str, *, name: str = "it") -> str:
    """Returns the schema with its objects closed (`closed_schema`), without what llguidance cannot
    bear and need not know: parts that no finite value satisfies, and formats that it has not, which
    are annotations (JSON Schema 2020-12, 7.2.3); and with bounds that it keeps.

    Args:
        name: what messages call it where nothing satisfies it.

    Raises:
        ValueError: it is no JSON, a number in it cannot be where it is, nothing satisfies it, or it
            is too large to tell.
    """
    try:
        schema = json.loads(source, parse_int=integer_of)
        usable = _usable(schema, source)
    except json.JSONDecodeError:  # llguidance says what is wrong with it
        return source
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if usable is False:
        raise ValueError(f"nothing satisfies {name}")
    return source if usable is schema else json.dumps(usable)


def usable_rules(lark: str) -> str:
    """Returns rules of Lark in which each schema is fit in the same way."""
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


def enforceable_schema(schema: object) -> Enforceable:
    """Returns the schema in keywords that grammars enforce, and the keywords that none does.

    Raises:
        ValueError: the schema contradicts itself, is malformed, or is nested too deeply.
    """
    try:
        return enforceable(schema)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def normal_schema(schema: object) -> object:
    """Returns the schema as every compiler is to take it: closed, with nothing beside `anyOf`,
    `oneOf` and `$ref`, and otherwise as `usable_schema` has it. It raises as that does."""
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
    """Returns the schema in keywords that grammars enforce. Raises ValueError if one is missing."""
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
    """Checks chains of references, which llguidance follows by recursion."""
    for part in parts_of(root):
        num_followed = 0
        target: object = part
        while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
            num_followed += 1
            if num_followed > _MAX_REFERENCES:
                raise ValueError(f"a $ref leads to another over more than {_MAX_REFERENCES} others")
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
        if (corrected := _as_llguidance_takes_it(part)) is not part
    }
    if not changed:
        return schema
    return rewritten(schema, lambda part: changed.get(id(part), part))


def _as_llguidance_takes_it(part: Schema) -> Schema:
    part = with_integer_counts(_without_unknown_format(part))
    return _with_open_bounds(within_bounds(part))


def _without_unknown_format(schema: Schema) -> Schema:
    if not isinstance(schema.get("format"), str) or schema["format"] in FORMATS:
        return schema
    return {key: value for key, value in schema.items() if key != "format"}


def _with_open_bounds(schema: Schema) -> Schema:
    """Returns the schema with exclusive bounds moved a little further in. llguidance lets a whole
    number be reached that is an exclusive bound less than 1 away from the other bound; a bound that
    is no whole number it keeps. What is left out is a millionth of what is allowed."""
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
