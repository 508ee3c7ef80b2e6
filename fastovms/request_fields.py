"""The table of request fields: the content of a row, and functions that read rows.

A field of a request is a field of a struct, `params.SamplingFields` or one of
`api.request_schemas`. Its annotation holds its row: `Annotated[float | None, Field(...)]`. The
range checks, the choice of defaults, Ollama's options, generation_config.json, the genai backend,
the echo of the Responses API, traces, OpenAPI and the compatibility page all read these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Struct, UnsetType

UINT32_MAX: Final = 2**32 - 1
INT64: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Range:
    """The allowed values of a numeric field; `str()` gives the text for an error message.

    Attributes:
        low, high: the bounds; None = unbounded.
        low_open, high_open: whether the bound itself is excluded.
        also: one accepted value outside the bounds (such as -1 for `top_k`).
    """

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    also: int | None = None

    def __contains__(self, value: float) -> bool:
        if self.also is not None and value == self.also:
            return True
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        return self.high is None or not (
            value > self.high or (self.high_open and value == self.high)
        )

    def __str__(self) -> str:
        words = []
        if self.low is not None:
            words.append(f"{'greater than' if self.low_open else 'at least'} {self.low}")
        if self.high is not None:
            words.append(f"{'less than' if self.high_open else 'at most'} {self.high}")
        bounds = " and ".join(words)
        return bounds if self.also is None else f"{self.also} or {bounds}"


class GenaiUse(Enum):
    """How the genai backend handles a sampling parameter.

    Attributes:
        REFUSED: a request that sets it gets an error.
        ALWAYS: the attribute of `GenerationConfig` with the same name is set.
        SAMPLING: as ALWAYS, but only if the request samples.
        OTHER: `parts.genai.support` defines it.
    """

    REFUSED = "refused"
    ALWAYS = "always"
    SAMPLING = "sampling"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the table. Attributes that are not given do not apply to the field.

    Attributes:
        description: one sentence, for OpenAPI.
        range: the values allowed in requests.
        ranges: the values allowed in a dialect, by its name, if different.
        recommended: the values allowed in generation_config.json, under the same name.
        is_param: whether the value is copied to the attribute of the same name of `SamplingParams`.
            The request's value takes precedence, then the model's, then `defaults`, then the
            attribute's default.
        defaults: default values by dialect; "gguf" = llama.cpp's defaults for GGUF files.
        names: other names: Ollama's option by "ollama", GGUF's key by "gguf", the attribute of
            traces by "trace".
        genai: the support by the genai backend.
        echo: the dialects whose responses repeat the parameter. "*" = all of them, always; other
            dialects repeat it if the request has it.
        neutral: for an unsupported field: the values, in addition to null, that are accepted
            because they have no effect. None = the field is supported.
        peers: the values that OpenAI, vLLM and OVMS accept, for the compatibility page.
    """

    description: str = ""
    range: Range | None = None
    ranges: Mapping[str, Range] = dataclass_field(default_factory=dict)
    recommended: Range | None = None
    is_param: bool = False
    defaults: Mapping[str, float] = dataclass_field(default_factory=dict)
    names: Mapping[str, str] = dataclass_field(default_factory=dict)
    genai: GenaiUse = GenaiUse.REFUSED
    echo: str = ""
    neutral: tuple[object, ...] | None = None
    peers: tuple[str, str, str] | None = None


class Examples(NamedTuple):
    """Values of a numeric field that a dialect accepts and refuses."""

    taken: list[object]
    refused: list[object]


@dataclass(frozen=True, slots=True)
class Row:
    """A field's row, with its name and types in the struct, without None and `UNSET`."""

    name: str
    types: tuple[Any, ...]
    field: Field

    @property
    def is_integer(self) -> bool:
        """Whether the field takes integers."""
        return int in self.types

    def range_in(self, dialect: str) -> Range | None:
        """Returns the allowed values in a dialect; None = any."""
        return self.field.ranges.get(dialect, self.field.range)

    def examples(self, dialect: str) -> Examples:
        """Returns test values: the smallest and largest common numbers that the dialect accepts,
        the nearest ones that it refuses, and values of other types."""
        allowed = self.range_in(dialect) or Range()
        usual = [-21, -20, -2.1, -2, -1, -0.1, 0, 0.1, 0.5, 1, 1.1, 2, 2.1, 20, 21, 100.1]
        if self.is_integer:
            bounds = [int(bound) for bound in (allowed.low, allowed.high) if bound is not None]
            near = {bound + step for bound in bounds for step in (-1, 0, 1)}
            usual = sorted(near | {int(n) for n in usual if n == int(n)})
        taken = [number for number in usual if number in allowed]
        below = [n for n in usual if n < taken[0]][-1:]
        above = [n for n in usual if n > taken[-1]][:1]
        between = [n for n in usual if taken[0] < n < taken[-1] and n not in allowed]
        wrong_types = ["1", 1.5] if self.is_integer else ["1"]
        outermost = [taken[0], taken[-1]] if len(taken) > 1 else taken
        return Examples([*outermost], [*below, *between, *above, *wrong_types])


@cache
def rows_of(struct: type[Struct]) -> Mapping[str, Row]:
    """Returns the rows of a struct's fields by name, including those of its base classes."""
    hints = get_type_hints(struct, include_extras=True)
    rows = {}
    for name in struct.__struct_fields__:
        hint = hints[name]
        if get_origin(hint) is not Annotated:
            continue
        kind, *extras = get_args(hint)
        for field in extras:
            if isinstance(field, Field):
                types = tuple(t for t in get_args(kind) if t not in (NoneType, UnsetType))
                rows[name] = Row(name, types, field)
    return rows


@cache
def rows_by_name(struct: type[Struct], whose: str) -> Mapping[str, Row]:
    """Returns the rows of a struct's fields by their names for `whose`, such as "ollama" (see
    `Field.names`), without fields that have no such name."""
    rows = rows_of(struct).values()
    return {row.field.names[whose]: row for row in rows if whose in row.field.names}


@cache
def ranges_of(struct: type[Struct], dialect: str) -> Mapping[str, Range]:
    """Returns the ranges of a struct's numeric fields in a dialect."""
    ranges = {name: row.range_in(dialect) for name, row in rows_of(struct).items()}
    return {name: allowed for name, allowed in ranges.items() if allowed is not None}


@cache
def unsupported_of(struct: type[Struct]) -> Mapping[str, tuple[object, ...]]:
    """Returns a struct's unsupported fields, and the values of each that are accepted because they
    have no effect."""
    fields = {name: row.field.neutral for name, row in rows_of(struct).items()}
    return {name: neutral for name, neutral in fields.items() if neutral is not None}
