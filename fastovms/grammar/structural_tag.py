"""Converts structural tags and GBNF to grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llguidance.gbnf_to_lark import gbnf_to_lark

from fastovms.grammar.enforceable import are_strings
from fastovms.grammar.lark import FreeText, LarkPart, LarkWriter, quoted
from fastovms.params import GrammarKind

Value = Mapping[str, Any]


def member(value: Value, path: str, name: str, kind: type | tuple[type, ...]) -> Any:
    """Returns a required member of an object. Raises ValueError with the member's path if it is
    missing or not of the type `kind`."""
    found = value.get(name) if isinstance(value, Mapping) else None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise ValueError(f"{path}.{name}".removeprefix(".") + f" must be {words}")
    return found


_WORDS: Final = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def text_of(value: Value, path: str, name: str) -> str:
    """Returns a required non-empty string. Raises ValueError like `member`."""
    text: str = member(value, path, name, str)
    if not text:
        raise ValueError(f"{path}.{name} must not be empty")
    return text


def list_of(value: Value, path: str, name: str) -> list[Any]:
    """Returns a required non-empty list. Raises ValueError like `member`."""
    found: list[Any] = member(value, path, name, list)
    if not found:
        raise ValueError(f"{path}.{name} must not be empty")
    return found


def texts_of(value: Value, path: str, name: str, default: Sequence[str] | None = None) -> list[str]:
    """Returns a list of non-empty strings, without duplicates; `default` if the member is missing.
    Raises ValueError like `member`."""
    if default is not None and value.get(name) is None:
        return list(default)
    found = member(value, path, name, list)
    if not all(isinstance(text, str) and text for text in found) or (default is None and not found):
        raise ValueError(f"{path}.{name} must be a list of strings that are not empty")
    return list(dict.fromkeys(found))


def flag_of(value: Value, path: str, name: str) -> bool:
    """Returns a boolean; False if the member is missing. Raises ValueError like `member`."""
    flag: bool = member({name: False, **value}, path, name, bool)
    return flag


_END: Final = "</parameter>"
_SPACE: Final = LarkPart(r"/[ \n\t]*/", True)
_ANNOTATIONS: Final = {"type", "title", "description", "default", "examples", "deprecated"}
_OBJECT: Final = {
    *_ANNOTATIONS, "properties", "required", "additionalProperties", "$defs", "definitions",
    "$schema", "$id",
}  # fmt: skip
_DEFINITIONS: Final = ("$defs", "definitions")

Schema = Mapping[str, Any]


def xml_arguments(
    writer: LarkWriter, schema: Schema, json_value: Callable[[Schema], LarkPart]
) -> list[LarkPart]:
    """Returns the parts of a Lark grammar: an element `<parameter=NAME>` for each property, in
    order. Strings are written literally, other values as JSON. Undeclared properties are not
    allowed. Raises ValueError if the schema has unsupported keywords or is malformed. `json_value`
    returns the part for a value of a schema."""
    more = schema.keys() - _OBJECT
    if more:
        raise ValueError(f"has {min(more)!r}, which is not supported in elements")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type", "object") != "object":
        raise ValueError("must have the type object")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise ValueError("must have properties as an object and required as a list")
    missing = [name for name in required if name not in properties]
    if missing:
        raise ValueError(f"requires {missing[0]!r}, which is not one of its properties")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    parts: list[LarkPart] = []
    for name, its_schema in properties.items():
        argument = [
            *writer.literal(f"<parameter={name}>"),
            *_value(writer, its_schema, definitions, json_value),
            _SPACE,
        ]
        parts += argument if name in required else [writer.repeat(argument, "?")]
    return [_SPACE, *parts]


def _value(
    writer: LarkWriter,
    schema: object,
    definitions: Schema,
    json_value: Callable[[Schema], LarkPart],
) -> list[LarkPart]:
    """Returns the parts for a value, including the end of the element."""
    if not isinstance(schema, Mapping):
        raise ValueError("must have an object as the schema of each property")
    if schema.get("type") != "string":
        return [_SPACE, json_value({**schema, **definitions}), _SPACE, *writer.literal(_END)]
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        texts = [choice for choice in choices if isinstance(choice, str)]
        if not texts:
            raise ValueError("must have at least one string in enum or const")
        return [LarkPart(f"({' | '.join(map(quoted, texts))})", True), *writer.literal(_END)]
    more = schema.keys() - _ANNOTATIONS
    if more:
        raise ValueError(
            f"cannot have {min(more)!r} for a string, because strings are written without quotes"
        )
    return [LarkPart(FreeText(writer, [_END]).until(_END), False)]


MAX_DEPTH: Final = 32
MAX_FORMATS: Final = 1000
MAX_REPEATS: Final = 1000

Ends = Sequence[str]
CompilePart = Callable[[GrammarKind, str], str]
"""Compiles a grammar that is part of another one, to llguidance's JSON. Raises ValueError or
InvalidField if it is malformed or unsatisfiable."""


def structural_tag(
    source: str, special_tokens: Mapping[str, int], compile_part: CompilePart
) -> str:
    """Returns the grammar of a structural tag's format, in llguidance's JSON.

    The formats are those of https://xgrammar.mlc.ai/docs/structural_tag/structural_tag.html, except
    those that count or name tokens. Text without an end of its own (`any_text`, `triggered_tags`)
    continues to the end of the enclosing tag, to the next element of a sequence, or to the end of
    the whole text.

    Args:
        source: the format, as JSON.
        special_tokens: ids by text.

    Raises:
        ValueError: the format is malformed; the message has the path.
        InvalidField: a grammar in the format is malformed.
    """
    return _TagWriter(special_tokens, compile_part).source(json.loads(source), "format")


class _TagWriter:
    """Builds the grammar of a structural tag. The method named after a format returns the parts of
    that format, followed by one of `ends`, if any."""

    def __init__(self, special_tokens: Mapping[str, int], compile_part: CompilePart) -> None:
        self._lark = LarkWriter(special_tokens)
        self._compile_part = compile_part
        self._grammars: list[dict[str, Any]] = []
        self._num_formats = 0

    def source(self, value: object, path: str) -> str:
        start = self._lark.join(self._write(value, path, ()))
        grammars = [{"lark_grammar": self._lark.source(start)}, *self._grammars]
        return json.dumps({"grammars": grammars})

    def _write(self, value: object, path: str, ends: Ends) -> list[LarkPart]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be an object")
        found = value.get("type")
        write = _FORMATS.get(found) if isinstance(found, str) else None
        if write is None:
            raise ValueError(f"{path}.type must be one of {', '.join(_FORMATS)}")
        self._count(path)
        return write(self, value, path, ends)

    def _count(self, path: str) -> None:
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS:
            raise ValueError(f"there must be at most {MAX_FORMATS} formats")
        if path.count(".") > MAX_DEPTH:
            raise ValueError(f"formats must be nested at most {MAX_DEPTH} deep")

    def const_string(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        return self._closed(self._lark.literal(text_of(value, path, "value")), ends)

    def regex(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        source = self._compile_part(GrammarKind.REGEX, text_of(value, path, "pattern"))
        [grammar] = json.loads(source)["grammars"]
        expression = grammar["lark_grammar"].removeprefix("start:").strip()
        return self._closed([LarkPart(expression, True)], ends)

    def grammar(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        source = self._compile_part(GrammarKind.GRAMMAR, text_of(value, path, "grammar"))
        return self._closed([self._grammar({"lark_grammar": source})], ends)

    def json_schema(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        style = value.get("style", "json")
        if style == "qwen_xml":
            return self.qwen_xml_parameter(value, path, ends)
        if style != "json":
            raise ValueError(f"{path}.style must be json or qwen_xml")
        if value.get("any_order", False) is not False:
            raise ValueError(f"{path}.any_order can only be false")
        schema = member(value, path, "json_schema", (dict, bool))
        if schema is False:
            raise ValueError(f"{path}.json_schema: nothing satisfies it")
        source = self._compile_part(
            GrammarKind.JSON_SCHEMA, json.dumps({} if schema is True else schema)
        )
        return self._closed([self._grammar(json.loads(source)["grammars"][0])], ends)

    def qwen_xml_parameter(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        schema = member(value, path, "json_schema", dict)

        def json_value(schema: Value) -> LarkPart:
            source = self._compile_part(GrammarKind.JSON_SCHEMA, json.dumps(schema))
            return self._grammar(json.loads(source)["grammars"][0])

        try:
            parts = xml_arguments(self._lark, schema, json_value)
        except ValueError as error:
            raise ValueError(f"{path}.json_schema {error}") from None
        return self._closed(parts, ends)

    def any_text(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        for limit in ("max_tokens", "max_chars"):
            if value.get(limit) is not None:
                raise ValueError(f"{path}.{limit} is not supported")
        free = FreeText(self._lark, ends, texts_of(value, path, "excludes", ()))
        return [self._either_end(free, ends)]

    def sequence(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        elements = list_of(value, path, "elements")
        parts: list[LarkPart] = []
        is_begun = False
        for i, element in enumerate(elements):
            its_path = f"{path}.elements[{i}]"
            its_ends: Ends = ends if i == len(elements) - 1 else ()
            following = elements[i + 1] if i + 1 < len(elements) else None
            begin = _begin_of(following)
            if following is not None and _is_free(element):
                if not begin:
                    raise ValueError(
                        f"{its_path} has no end: it must be the last element, in a tag, or before "
                        "a const_string or a tag"
                    )
                its_ends = (begin,)
            if is_begun:
                is_text = element["type"] == "const_string"
                element = None if is_text else {**element, "begin": ""}
            is_begun = following is not None and _is_free(element)
            if element is not None:
                parts += self._write(element, its_path, its_ends)
            elif i == len(elements) - 1:
                parts = self._closed(parts, ends)
        return parts

    def or_(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        elements = list_of(value, path, "elements")
        is_free = any(map(_is_free, elements))
        choices = [
            self._write(element, f"{path}.elements[{i}]", ends if is_free else ())
            for i, element in enumerate(elements)
        ]
        found = [self._lark.either(choices)]
        return found if is_free else self._closed(found, ends)

    def optional(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        return self._repeated(value, path, "?", ends)

    def star(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        return self._repeated(value, path, "*", ends)

    def plus(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        return self._repeated(value, path, "+", ends)

    def repeat(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        least, most = (member(value, path, name, int) for name in ("min", "max"))
        if not 0 <= least <= MAX_REPEATS:
            raise ValueError(f"{path}.min must be 0 to {MAX_REPEATS}")
        if most != -1 and not least <= most <= MAX_REPEATS:
            raise ValueError(f"{path}.max must be -1 or {least} to {MAX_REPEATS}")
        times = f"{{{least},{'' if most == -1 else most}}}"
        return self._repeated(value, path, times, ends)

    def tag(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        begin = member(value, path, "begin", str)
        return [*self._lark.literal(begin), *self._rest_of_tag(value, path, ends)]

    def triggered_tags(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        triggers = texts_of(value, path, "triggers")
        tags = list_of(value, path, "tags")
        at_least_one, stop_after_first = (
            flag_of(value, path, name) for name in ("at_least_one", "stop_after_first")
        )
        wholes: list[list[LarkPart]] = []
        unused = set(triggers)
        rests: dict[str, list[list[LarkPart]]] = {}
        for i, tag in enumerate(tags):
            begin, rest = self._cut_tag(tag, f"{path}.tags[{i}]")
            found = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(found) != 1:
                raise ValueError(
                    f"{path}.tags[{i}].begin must begin with exactly one trigger, not {len(found)}"
                )
            unused.discard(found[0])
            # A special token cannot be divided: it is the trigger even if only a part is given.
            token = self._lark.special_token_at_start(begin)
            trigger = token if token.startswith(found[0]) else found[0]
            after = self._lark.literal(begin.removeprefix(trigger))
            rests.setdefault(trigger, []).append([*after, rest])
            wholes.append([*self._lark.literal(begin), rest])
        if unused:
            raise ValueError(f"{path}.triggers: no tag begins with {min(unused)!r}")
        first = [self._lark.either(wholes)] if at_least_one else []
        if at_least_one and stop_after_first:
            return self._closed(first, ends)
        free = FreeText(self._lark, [*rests, *ends], texts_of(value, path, "excludes", ()))
        end = self._either_end(free, ends)
        called = self._lark.either(
            [
                [LarkPart(free.until(trigger), False), self._lark.either(found)]
                for trigger, found in rests.items()
            ]
        )
        if stop_after_first:
            return [self._lark.either([self._closed([called], ends), [end]])]
        return [*first, LarkPart(f"{called.expression}*", False), end]

    def tags_with_separator(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        tags = list_of(value, path, "tags")
        separator = member(value, path, "separator", str)
        cut = [self._cut_tag(tag, f"{path}.tags[{i}]") for i, tag in enumerate(tags)]
        choices = [[*self._lark.literal(begin), rest] for begin, rest in cut]
        tag = self._as_rule([self._lark.either(choices)])
        parts = [tag]
        if not flag_of(value, path, "stop_after_first"):
            parts.append(self._lark.repeat([*self._lark.literal(separator), tag], "*"))
        if not flag_of(value, path, "at_least_one"):
            parts = [self._lark.repeat(parts, "?")]
        return self._closed(parts, ends)

    def _cut_tag(self, value: object, path: str) -> tuple[str, LarkPart]:
        """Returns a tag's `begin`, and a rule for the rest. `type` is optional if only tags are
        allowed."""
        if not isinstance(value, Mapping) or value.get("type", "tag") != "tag":
            raise ValueError(f"{path} must be a tag")
        self._count(path)
        begin = member(value, path, "begin", str)
        return begin, self._as_rule(self._rest_of_tag(value, path, ()))

    def _as_rule(self, parts: list[LarkPart]) -> LarkPart:
        return LarkPart(self._lark.rule(self._lark.join(parts)), False)

    def _rest_of_tag(self, value: Value, path: str, ends: Ends) -> list[LarkPart]:
        own = value.get("end")
        own_ends = [own] if isinstance(own, str) else own
        if not own_ends or not are_strings(own_ends):
            raise ValueError(f"{path}.end must be a string or a list of strings")
        content = value.get("content")
        if _is_free(content) and "" in own_ends:
            raise ValueError(f"{path}.end must not be empty where the content has no end")
        return self._closed(self._write(content, f"{path}.content", own_ends), ends)

    def _repeated(self, value: Value, path: str, times: str, ends: Ends) -> list[LarkPart]:
        content = value.get("content")
        if _is_free(content):
            raise ValueError(f"{path}.content must have an end")
        parts = self._write(content, f"{path}.content", ())
        return self._closed([self._lark.repeat(parts, times)], ends)

    def _closed(self, parts: list[LarkPart], ends: Ends) -> list[LarkPart]:
        if not ends:
            return parts
        choices = [self._lark.literal(end) for end in ends]
        return [*parts, *(choices[0] if len(choices) == 1 else [self._lark.either(choices)])]

    def _either_end(self, free: FreeText, ends: Ends) -> LarkPart:
        if not ends:
            return LarkPart(free.to_end(), False)
        return self._lark.either([[LarkPart(free.until(end), False)] for end in ends])

    def _grammar(self, grammar: dict[str, Any]) -> LarkPart:
        name = f"grammar{len(self._grammars)}"
        self._grammars.append({**grammar, "name": name})
        return LarkPart(f"@{name}", False)


_FORMATS: Final[Mapping[str, Callable[[_TagWriter, Value, str, Ends], list[LarkPart]]]] = {
    "const_string": _TagWriter.const_string,
    "json_schema": _TagWriter.json_schema,
    "qwen_xml_parameter": _TagWriter.qwen_xml_parameter,
    "grammar": _TagWriter.grammar,
    "regex": _TagWriter.regex,
    "any_text": _TagWriter.any_text,
    "sequence": _TagWriter.sequence,
    "or": _TagWriter.or_,
    "optional": _TagWriter.optional,
    "plus": _TagWriter.plus,
    "star": _TagWriter.star,
    "repeat": _TagWriter.repeat,
    "tag": _TagWriter.tag,
    "triggered_tags": _TagWriter.triggered_tags,
    "tags_with_separator": _TagWriter.tags_with_separator,
}
FORMAT_TYPES: Final = tuple(_FORMATS)


def _is_free(value: Any) -> bool:
    """Returns whether a format has no end of its own."""
    match value:
        case {"type": "any_text"}:
            return True
        case {"type": "triggered_tags"}:
            return not (value.get("at_least_one") and value.get("stop_after_first"))
        case {"type": "sequence", "elements": [*_, last]}:
            return _is_free(last)
        case {"type": "or", "elements": [*elements]}:
            return any(map(_is_free, elements))
        case _:
            return False


def _begin_of(value: object) -> str:
    match value:
        case {"type": "const_string", "value": str(text)} | {"type": "tag", "begin": str(text)}:
            return text
        case _:
            return ""


_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_ASCII: Final = 0x80


def lark_rules(source: str) -> str:
    """Converts GBNF or EBNF rules (with `::=`) to Lark. Other rules are returned unchanged.

    Raises:
        ValueError: an escape is not a character.
        Exception: the rules are malformed; raised by llguidance's parser.
    """
    if "::=" not in source:
        return source
    return gbnf_to_lark(_ESCAPE.sub(_character, source))


def _character(match: re.Match[str]) -> str:
    """Returns the character of a Unicode escape: llguidance's converter writes escapes that Lark
    does not support."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    try:
        chr(code).encode()
    except (ValueError, OverflowError):
        raise ValueError(f"{match[0]} is not a character") from None
    return chr(code) if code >= _ASCII else f"\\x{code:02x}"
