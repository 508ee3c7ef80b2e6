"""Builds schemas, regular expressions and grammars that are hard to compile. The seed and the index
determine each one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from fastovms.grammar_tree import Answer, Json, Literal, Node, Tag, Until, in_order, optional
from fastovms.params import Grammar, GrammarKind

_EDGES: Final = (
    *(0, 1, -1, 2, 7, 10, 99, 100, 127, 128, 255, 256, 1000, 65535, 65536, 99991, 10**6),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 10**15, 10**17, 10**18 - 1, 10**18),
    *(2**63 - 512, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**19, 10**30, 10**308),
)
_FRACTIONS: Final = (
    *("0.1", "0.5", "1.5", "1e-3", "1e-10", "1e-17", "5e-324", "1e-300", "0.30000000000000004"),
    *("1e5", "1e15", "1e16", "1e21", "1e300", "1.7976931348623157e308", "1e400", "-0.0", "-0"),
    *("123456789.123456789", "9.223372036854775e18", "9007199254740993.0", "1E+2", "3.14"),
)
_TYPES: Final = ("integer", "number", "string", "boolean", "null", "array", "object")
_NAMES: Final = (
    *("a", "b", "c", "name", "", " ", '"', "\\", "\n", "é", "😀", "\x00", "$ref", "type"),
    *("a" * 300, "</tool_call>", "<|im_end|>", "%json", "@answer", "const"),
)  # fmt: skip
_FORMATS: Final = ("date-time", "date", "time", "email", "ipv4", "ipv6", "uri", "uuid", "nope", 5)
_CHARACTERS: Final = (
    "a",
    "b",
    "0",
    " ",
    "é",
    "😀",
    ".",
    "-",
    "\\.",
    "\\\\",
    "\\n",
    "\\x41",
    "\\u{1F600}",
)
_CLASSES: Final = (
    *(".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\p{L}", "\\P{L}", "\\p{Greek}", "[a-z]"),
    *("[^a]", "[^\\n]", "[a-zA-Z0-9_-]", "[é-ﬀ]", "[\\x00-\\x1f]", "[^\\d\\w]", "[]", "[z-a]"),
    *("\\b", "^", "$", "\\A", "\\z"),
    *("(?i)", "(?s)", "(?-u)", "\\1", "(?=a)", "(?!a)", "(?<=a)", "\\Q"),
)  # fmt: skip
_COUNTS: Final = ("*", "+", "?", "*?", "+?", "{0}", "{1}", "{0,5}", "{2,}", "{40}", "{3,1}", "{,5}")
_LARGE_COUNTS: Final = ("{500}", "{0,1000}", "{2000,}", "{65536}", "{4294967295}", "{4294967296}")


class HostileGrammars:
    """Builds the grammar for an index.

    Args:
        seed: determines every random choice.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def make(self, index: int) -> Grammar:
        rng = Random(f"{self._seed}/{index}")
        [(kind, source)] = rng.choices(_KINDS, weights=_WEIGHTS)
        text = source(rng)
        if rng.random() < 0.15:
            text = _corrupt(text, rng)
        if kind is GrammarKind.CALLS:
            return Grammar(kind, "", tree=_call(rng, text))
        return Grammar(kind, text, tree=_tree(rng) if rng.random() < 0.1 else None)


def _number(rng: Random) -> str:
    """Returns a number as JSON writes it."""
    if rng.random() < 0.3:
        return rng.choice(("", "", "-")) + rng.choice(_FRACTIONS).lstrip("-")
    value = rng.choice(_EDGES) + rng.choice((0, 0, 0, 1, -1, rng.randrange(-600, 600)))
    return str(value * rng.choice((1, 1, -1)))


def _small(rng: Random) -> str:
    return str(rng.choice((0, 1, 2, 3, 5, 20, 100))) if rng.random() < 0.8 else _number(rng)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(rng: Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.35:
        return _number(rng)
    if roll < 0.6:
        return _text(rng.choice(_NAMES) * rng.choice((1, 1, 1, 20)))
    if roll < 0.75 or depth > 5:
        return rng.choice(("true", "false", "null", "{}", "[]"))
    if roll < 0.88:
        return f"[{','.join(_value(rng, depth + 1) for _ in range(rng.randrange(4)))}]"
    members = (f"{_text(rng.choice(_NAMES))}:{_value(rng, depth + 1)}" for _ in range(3))
    return f"{{{','.join(members)}}}"


def _nested(rng: Random) -> str:
    """Returns a schema that nests one keyword many times."""
    before, after = rng.choice(
        (
            ('{"items":', "}"),
            ('{"type":"object","properties":{"a":', '},"required":["a"]}'),
            ('{"anyOf":[{"type":"null"},', "]}"),
            ('{"oneOf":[', ',{"type":"integer"}]}'),
            ('{"allOf":[', "]}"),
            ('{"prefixItems":[', "]}"),
            ('{"not":', "}"),
            ('{"additionalProperties":', "}"),
            ('{"const":[', "]}"),
            ('{"enum":[{"a":', "}]}"),
        )
    )
    times = rng.choice((5, 20, 40, 63, 100, 126, 127, 128, 200, 900, 3000))
    inner = _value(rng, 4) if "const" in before or "enum" in before else schema(rng, 4)
    return before * times + inner + after * times


def _large(rng: Random) -> str:
    """Returns a schema with many members of one kind."""
    number = rng.choice((10, 100, 1000, 4000))
    shape = rng.randrange(6)
    if shape == 0:
        step = rng.choice((1, 7, 10**6, 2**40))
        return f'{{"enum":[{",".join(str(i * step) for i in range(number))}]}}'
    if shape == 1:
        return _text({"enum": [rng.choice(_NAMES) + str(rng.random()) for _ in range(number)]})
    if shape == 2:
        names = [f"p{i}" for i in range(number)]
        required = rng.sample(names, rng.randrange(len(names)))
        properties = {name: {"type": rng.choice(_TYPES)} for name in names}
        return _text({"type": "object", "properties": properties, "required": required})
    if shape == 3:
        number = min(number, 100)
        patterns = {_expression(rng, 2): {"type": "integer"} for _ in range(number)}
        return _text({"type": "object", "patternProperties": patterns})
    if shape == 4:
        definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(number)}
        definitions[f"d{number}"] = {"type": "integer"}
        return _text({"$ref": "#/$defs/d0", "$defs": definitions})
    choices = [{"type": "integer", "minimum": i, "maximum": i + 5} for i in range(number)]
    return _text({rng.choice(("anyOf", "oneOf")): choices})


def schema(rng: Random, depth: int = 0) -> str:
    """Returns a JSON Schema as text. Deeply nested schemas are simpler."""
    if depth > 6 or rng.random() < 0.04:
        return rng.choice(("true", "false", "{}", '{"type":"string"}', '{"$ref":"#"}', "5"))
    members = [keyword(rng, depth) for keyword in rng.choices(_KEYWORDS, k=rng.randrange(1, 5))]
    if rng.random() < 0.7:
        members.append(f'"type":{_type(rng)}')
    rng.shuffle(members)
    return f"{{{','.join(members)}}}"


def _type(rng: Random) -> str:
    if rng.random() < 0.85:
        return _text(rng.choice(_TYPES))
    return _text(rng.choice((rng.sample(_TYPES, 3), [], "any", 5, None)))


def _list(rng: Random, depth: int, most: int = 3) -> str:
    return f"[{','.join(schema(rng, depth + 1) for _ in range(rng.randrange(most + 1)))}]"


def _map(rng: Random, depth: int, names: Callable[[Random], str]) -> str:
    members = (f"{_text(names(rng))}:{schema(rng, depth + 1)}" for _ in range(rng.randrange(4)))
    return f"{{{','.join(members)}}}"


def _any_name(rng: Random) -> str:
    return rng.choice(_NAMES)


def _pattern(rng: Random) -> str:
    return _expression(rng, 3)


_NUMERIC: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTED: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_KEYWORDS: Final[Sequence[Callable[[Random, int], str]]] = (
    *[lambda rng, _: f'"{rng.choice(_NUMERIC)}":{_number(rng)}'] * 5,
    *[lambda rng, _: f'"{rng.choice(_COUNTED)}":{_small(rng)}'] * 3,
    lambda rng, depth: f'"const":{_value(rng, depth)}',
    lambda rng, depth: f'"enum":[{",".join(_value(rng, depth) for _ in range(rng.randrange(4)))}]',
    lambda rng, _: f'"pattern":{_text(_pattern(rng))}',
    lambda rng, _: f'"format":{_text(rng.choice(_FORMATS))}',
    *[lambda rng, depth: f'"properties":{_map(rng, depth, _any_name)}'] * 3,
    lambda rng, depth: f'"patternProperties":{_map(rng, depth, _pattern)}',
    lambda rng, _: f'"required":{_text(rng.sample(_NAMES, rng.randrange(4)))}',
    lambda rng, depth: f'"additionalProperties":{schema(rng, depth + 1)}',
    lambda rng, depth: f'"items":{schema(rng, depth + 1)}',
    lambda rng, depth: f'"prefixItems":{_list(rng, depth)}',
    lambda rng, depth: f'"{rng.choice(("anyOf", "oneOf", "allOf"))}":{_list(rng, depth)}',
    lambda rng, depth: (
        f'"{rng.choice(("not", "if", "then", "contains"))}":{schema(rng, depth + 1)}'
    ),
    lambda rng, depth: f'"$defs":{_map(rng, depth, lambda r: r.choice("abc"))}',
    lambda rng, _: f'"$ref":"{rng.choice(("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "x"))}"',
)


def _expression(rng: Random, depth: int = 0) -> str:
    """Returns a regular expression."""
    pieces = []
    for _ in range(rng.randrange(1, 5)):
        roll = rng.random()
        if roll < 0.45 or depth > 5:
            piece = rng.choice(_CHARACTERS)
        elif roll < 0.75:
            piece = rng.choice(_CLASSES)
        else:
            choices = "|".join(_expression(rng, depth + 1) for _ in range(rng.randrange(1, 4)))
            piece = f"{rng.choice(('(', '(?:', '(?P<n>'))}{choices})"
        if rng.random() < 0.4:
            piece += rng.choice(_COUNTS if rng.random() < 0.95 else _LARGE_COUNTS)
        pieces.append(piece)
    return "".join(pieces)


def _repeated_expression(rng: Random) -> str:
    times = rng.choice((10, 50, 100, 249, 250, 300, 1000, 5000))
    piece = _expression(rng, 4)
    shape = rng.randrange(4)
    if shape == 0:
        return piece * times
    if shape == 1:
        return f"{'(' * times}{piece}{')' * times}"
    if shape == 2:
        return "|".join(f"{piece}{i}" for i in range(times))
    return f"{'(?:a|' * times}{piece}{')' * times}"


def _terminal(rng: Random) -> str:
    return rng.choice(
        (
            lambda: f"/{_expression(rng, 3).replace('/', '')}/",
            lambda: _text(rng.choice(_NAMES)),
            lambda: '"a".."z"',
            lambda: f"<[{rng.choice(('0', '5', '0-300', '^5', '100000', '5-1', '*'))}]>",
            lambda: rng.choice(("<|im_end|>", "<tool_call>", "<nope>", '"x"i')),
            lambda: f"%json {schema(rng, 4)}",
            lambda: f'%regex {{"substring_chunks": {_text(rng.sample(_NAMES, 3))}}}',
        )
    )()


def _part(rng: Random, names: Sequence[str]) -> str:
    part = rng.choice(names) if rng.random() < 0.4 else _terminal(rng)
    if rng.random() < 0.15:
        part = f"({part} | {rng.choice(names)})"
    if rng.random() < 0.3:
        counts = ("*", "+", "?", "{2}", "{0,5}", "{3,1}", "~2..5", "{1000}", "{0,100000}")
        part += rng.choice(counts)
    return part


def _lark(rng: Random) -> str:
    if rng.random() < 0.03:
        number = rng.choice((100, 1000, 4000, 12_000))
        form = rng.choice(("r{0}: r{1}", "R{0}: R{1}", 'r{0}: "a" r{1} "b"', "R{0}: /a/ R{1}"))
        rules = [form.format(i, i + 1) for i in range(number)]
        first, last = form[0] + "0", f"{form[0]}{number}"
        return "\n".join([f"start: {first}", *rules, f'{last}: "a"'])
    rules = ["start", *rng.sample(("a", "b", "item", "A", "B", "TEXT"), rng.randrange(1, 5))]
    lines = []
    for name in rules:
        option = rng.choice(
            ("", "", "", "", "[lazy]", "[capture]", "[max_tokens=5]", "[temperature=0.5]", "[nope]",
             f"[max_tokens={rng.choice(_EDGES)}]", '[stop="x"]', '[suffix="y"]', "%ignore")
        )  # fmt: skip
        choices = (
            " ".join(_part(rng, rules) for _ in range(rng.randrange(1, 4)))
            for _ in range(rng.randrange(1, 4))
        )
        separator = rng.choice((" | ", " | ", " | ", " & "))
        lines.append(f"{name}{option}: {separator.join(choices)}")
    if rng.random() < 0.1:
        lines.append(f"%ignore {_terminal(rng)}")
    return "\n".join(lines)


def _gbnf(rng: Random) -> str:
    return _lark(rng).replace("start", "root").replace(": ", " ::= ")


def _call(rng: Random, text: str) -> Node:
    return in_order(Tag(rng.choice(("<tool_call>", "[CALL]", "x"))), Json(text))


def _tree(rng: Random) -> Node:
    return in_order(rng.choice((Until("</think>"), optional(Literal("a")))), Answer())


def _choices(rng: Random) -> str:
    number = rng.choice((1, 2, 5, 100, 2000))
    return _text([rng.choice(_NAMES) + str(i) * rng.randrange(3) for i in range(number)])


def _format(rng: Random, depth: int = 0) -> dict[str, Any]:
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "const_string", "value": rng.choice(_NAMES)},
        lambda: {"type": "any_text"},
        lambda: {"type": "regex", "pattern": _expression(rng, 2)},
        lambda: {"type": "grammar", "grammar": _gbnf(rng)},
    ]
    if depth < 4:
        kinds += [
            lambda: {"type": "sequence", "elements": [_format(rng, depth + 1) for _ in range(2)]},
            lambda: {"type": "or", "elements": [_format(rng, depth + 1) for _ in range(2)]},
            lambda: {
                "type": "tag",
                "begin": rng.choice(_NAMES),
                "content": _format(rng, depth + 1),
                "end": rng.choice(_NAMES),
            },
        ]
    return rng.choice(kinds)()


def _structural_tag(rng: Random) -> str:
    if rng.random() < 0.5:
        return _text(_format(rng))
    content = f'{{"type":"json_schema","json_schema":{schema(rng)}}}'
    tag = f'{{"begin":"<f>","content":{content},"end":"</f>"}}'
    return f'{{"type":"triggered_tags","triggers":["<f"],"tags":[{tag}]}}'


def _corrupt(text: str, rng: Random) -> str:
    """Returns text with a part removed, duplicated or exchanged."""
    for _ in range(rng.randrange(1, 4)):
        if not text:
            return text
        start = rng.randrange(len(text))
        end = min(len(text), start + rng.choice((1, 1, 2, 5, 30)))
        piece = rng.choice(
            ("", text[start:end] * 2, text[start:end] * 50, _number(rng), rng.choice(_NAMES),
             rng.choice("{}[]()|*+?\\\":,/"))
        )  # fmt: skip
        text = text[:start] + piece + text[end:]
    return text


_KINDS: Final[Sequence[tuple[GrammarKind, Callable[[Random], str]]]] = (
    (GrammarKind.JSON_SCHEMA, schema),
    (GrammarKind.JSON_SCHEMA, _nested),
    (GrammarKind.JSON_SCHEMA, _large),
    (GrammarKind.REGEX, _expression),
    (GrammarKind.REGEX, _repeated_expression),
    (GrammarKind.GRAMMAR, _lark),
    (GrammarKind.GRAMMAR, _gbnf),
    (GrammarKind.CALLS, schema),
    (GrammarKind.CHOICE, _choices),
    (GrammarKind.STRUCTURAL_TAG, _structural_tag),
)
_WEIGHTS: Final = (60, 2, 1, 10, 1, 10, 4, 5, 1, 6)
