"""Numbers that a schema cannot have where they are, each by its keyword's name."""

from __future__ import annotations

import json
import math

import pytest

from fastovms.grammar.json_schema import usable_rules, usable_schema

MOST = 2**53 - 1


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"const": -(2**63)}, f"numbers of const must be from -{MOST} to {MOST}, not -9223"),
        ({"const": [1, {"a": 2**53}]}, "numbers of const"),
        ({"enum": [1, -9.223372036854775808e18]}, "numbers of enum"),
        ({"items": {"enum": [math.inf]}}, "numbers of enum must be .*, not inf"),
        ({"type": "integer", "minimum": 10**18}, "minimum must be less than 10{18}, not 10{18}"),
        ({"type": "integer", "exclusiveMinimum": 1e300}, "exclusiveMinimum must be less than"),
        ({"type": "number", "maximum": -(2**63)}, "maximum must be more than -10{18}, not -9223"),
        ({"type": "number", "maximum": math.inf}, "maximum must be a finite number, not inf"),
        ({"type": "number", "minimum": 5e-324}, "minimum must be 0 or at least 1e-50 away"),
        ({"multipleOf": 0}, "multipleOf must be a finite number greater than 0, not 0"),
        ({"multipleOf": -0.5}, "multipleOf must be a finite number greater than 0, not -0.5"),
        ({"multipleOf": math.nan}, "multipleOf must be"),
        ({"multipleOf": 5e-324}, "multipleOf must be at least 1e-10, not 5e-324"),
        ({"minimum": 10**4000}, "numbers must have at most 1000 digits, not 4001"),
        ({"type": ["null", -9]}, r"type must be a string or a list of strings, not \[.null., -9\]"),
        ({"type": {}}, "type must be a string or a list of strings, not {}"),
        ({"minLength": 1e300}, r"minLength must be a whole number from 0 to \d+, not 1e\+300"),
        ({"maxLength": 2**32}, "maxLength must be a whole number"),
        ({"minItems": -1}, "minItems must be a whole number from 0 to 4294967295, not -1"),
        ({"maxItems": 1.5}, "maxItems must be a whole number"),
        ({"minProperties": math.inf}, "minProperties must be a whole number .*, not inf"),
    ],
)  # fmt: skip
def test_what_is_refused(schema: object, fault: str) -> None:
    source = json.dumps({"type": "object", "properties": {"a": schema}})
    with pytest.raises(ValueError, match=fault):
        usable_schema(source)
    with pytest.raises(ValueError, match=fault):
        usable_rules(f'start: "x" %json {source}')


@pytest.mark.parametrize(
    "schema",
    [
        {"const": MOST},
        {"enum": [-MOST, 0.1, True, None, "1e400"]},
        {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        {"type": "number", "minimum": -1e-9, "exclusiveMaximum": 1e-9, "multipleOf": 0.01},
        {"minLength": 0, "maxLength": 2**32 - 1, "minItems": "5"},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"minimum": {"type": "string"}, "const": {"type": "null"}},
        },
    ],
)
def test_what_is_left_alone(schema: object) -> None:
    assert json.loads(usable_schema(json.dumps(schema))) == schema


def test_counts_that_are_integers_are_written_as_such() -> None:
    source = json.dumps({"type": "array", "minItems": 2.0, "items": {"maxLength": 3.0}})
    usable = usable_schema(source)
    assert usable == json.dumps({"type": "array", "minItems": 2, "items": {"maxLength": 3}})


def test_a_number_with_more_digits_than_python_reads() -> None:
    with pytest.raises(ValueError, match="at most 1000 digits, not 5000"):
        usable_schema(f'{{"minimum": -{"9" * 5000}}}')


def test_a_bound_beyond_what_can_be_written_as_an_expression_is_the_last_that_can() -> None:
    bounds = {"minimum": -(2**63), "exclusiveMaximum": 1e300, "maximum": 10**400}
    source = json.dumps({"type": "integer", **bounds})
    assert json.loads(usable_schema(source)) == {
        "type": "integer",
        "minimum": -(10**18),
        "exclusiveMaximum": 10**18,
        "maximum": 10**18,
    }
