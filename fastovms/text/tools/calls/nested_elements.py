"""Reads and writes arguments as elements that are named for them, with elements within elements for
objects and lists: `<a>1</a><o><b>x</b></o><l><item>1</item></l>`, each tag behind a mark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastovms.grammar_tree import (
    ANY_TEXT,
    Json,
    Node,
    OtherTag,
    Regex,
    Repeat,
    Tag,
    TextBefore,
    in_order,
    one_of,
    optional,
)
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import copy_json, escape
from fastovms.text.scanning.parameters import (
    ANY_TYPE,
    Parameter,
    Parameters,
    find_parameters,
    value_of,
)
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner
from fastovms.text.scanning.text_values import constants, name_patterns, text_body
from fastovms.text.scanning.tool import Tool

_ITEM = "item"
_JSON_BEGINS = ("{", "[", '"')
_MAX_DEPTH = 32
"""How deep elements may be nested. What a model nests deeper is no call."""

_NAME = re.compile(r"[^\s<>/]+")
_OTHER_NAME = r"[^\s<>/\"']+"


def read_elements(
    scan: Scanner, out: PieceCollector, mark: str, tool: Tool | None, end: str
) -> Incremental[bool]:
    """Reads a call's arguments and the tag behind them, and says whether they were whole. Strings
    are passed on as they are generated, other values as soon as they are whole.

    Args:
        mark: what stands before every tag.
        tool: the function, if it is known.
        end: the tag, without the mark.
    """
    parameters = tool.known_parameters if tool is not None else Parameters()
    begin = "{"
    while True:
        yield from scan.space()
        if not (yield from scan.take(mark)):
            return False
        if (yield from scan.take(end)):
            out.arguments(begin if begin == "{" else "")
            out.arguments("}")
            return True
        name = yield from _read_name(scan)
        if not name:
            return False
        out.arguments(f'{begin}"{escape(name)}":')
        begin = ","
        parameter = parameters.find(name)
        if parameter is not None and parameter.is_text:
            out.arguments('"')
            if not (yield from _copy_text(scan, out.arguments, f"{mark}</{name}>")):
                return False
            out.arguments('"')
            continue
        found = yield from _read_value(scan, mark, name, parameter, 0)
        if found is None:
            return False
        out.arguments(found)


def _read_name(scan: Scanner) -> Incremental[str]:
    """Reads a tag that begins an element and returns its name; empty where none comes."""
    if not (yield from scan.take("<")):
        return ""
    pieces: list[str] = []
    yield from scan.run(_NAME, pieces.append)
    return "".join(pieces) if (yield from scan.take(">")) else ""


def _copy_text(scan: Scanner, emit: Emit, end: str) -> Incremental[bool]:
    return (yield from scan.until((end,), lambda text: emit(escape(text)))) is not None


def _read_value(
    scan: Scanner, mark: str, name: str, parameter: Parameter | None, depth: int
) -> Incremental[str | None]:
    """Reads an element behind its name and returns its value as JSON; None if it is not whole. JSON
    ends where it ends, since a string in it may hold the mark."""
    pieces: list[str] = []
    types = parameter.types if parameter is not None else ANY_TYPE
    scan.record()
    yield from scan.space()
    if (yield from scan.peek()) in _JSON_BEGINS:
        is_json = yield from copy_json(scan, pieces.append)
        yield from scan.space()
        if is_json and (yield from scan.take(f"{mark}</{name}>")):
            scan.recorded()
            return value_of("".join(pieces), types)
    scan.put_back(scan.recorded())
    pieces = []
    if (yield from scan.until((mark,), pieces.append)) is None or depth == _MAX_DEPTH:
        return None
    text = "".join(pieces)
    if (yield from scan.take(f"</{name}>")):
        return value_of(text, types)
    if text.strip():
        return None
    return (yield from _read_children(scan, mark, name, parameter, depth))


def _read_children(
    scan: Scanner, mark: str, name: str, parameter: Parameter | None, depth: int
) -> Incremental[str | None]:
    """Reads the elements within one, from behind the mark of the first, to its end."""
    schema: Mapping[str, Any] = parameter.whole_schema if parameter is not None else {}
    is_list = (
        parameter is not None and "array" in parameter.types and "object" not in parameter.types
    )
    items = find_parameters({**schema, "properties": {_ITEM: schema.get("items", {})}})
    children = items if is_list else find_parameters(schema)
    found: dict[str, list[str]] = {}
    while True:
        child = yield from _read_name(scan)
        if not child:
            return None
        value = yield from _read_value(scan, mark, child, children.find(child), depth + 1)
        if value is None:
            return None
        found.setdefault(child, []).append(value)
        yield from scan.space()
        if not (yield from scan.take(mark)):
            return None
        if (yield from scan.take(f"</{name}>")):
            break
    may_be_list = parameter is None or "array" in parameter.types
    if is_list or (may_be_list and found.keys() == {_ITEM} and _ITEM not in children):
        return f"[{','.join(value for values in found.values() for value in values)}]"
    members = [f'"{escape(key)}":{_joined(values)}' for key, values in found.items()]
    return f"{{{','.join(members)}}}"


def _joined(values: Sequence[str]) -> str:
    """Returns the value of an element, and a list of those of several with one name."""
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"


def nested_elements(tool: Tool, mark: str) -> Node:
    """Returns the grammar of a call's arguments. Those that are no strings are JSON.

    Raises:
        InvalidField: a schema cannot be kept to in this form.
    """
    arguments = []
    found = tool.enforced_parameters()
    for parameter in found.values():
        begin, end = f"{mark}<{parameter.name}>", f"{mark}</{parameter.name}>"
        argument = in_order(Tag(begin), _value(parameter, end))
        arguments.append(argument if parameter.is_required else optional(argument))
    for pattern, parameter in found.others:
        begun = OtherTag("<", name_patterns(_OTHER_NAME, pattern), ">", tuple(found))
        ended = Regex(rf"</{_OTHER_NAME}>")
        value: Node = Json.of(parameter.whole_schema)
        if parameter.is_text or parameter.is_free:
            value = TextBefore(mark, text_body(parameter, mark))
            arguments.append(Repeat(in_order(Tag(mark), begun, value, ended)))
        else:
            arguments.append(Repeat(in_order(Tag(mark), begun, value, Tag(mark), ended)))
    return in_order(*arguments)


def _value(parameter: Parameter, end: str) -> Node:
    if not parameter.is_text and not parameter.is_free:
        return in_order(Json.of(parameter.whole_schema), Tag(end))
    values = constants(parameter)
    if values is not None:
        return in_order(one_of(*values), Tag(end))
    body = text_body(parameter, end)
    return TextBefore(end, ANY_TEXT if body == ANY_TEXT else body)
