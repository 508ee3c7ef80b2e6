"""Calls that are written as in Python: `add(a=1, b="x")`."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.scanning.json_text import escape
from fastovms.text.scanning.literals import read_word
from fastovms.text.scanning.parameters import Parameter, parameters_of
from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.python_text import copy_python
from fastovms.text.scanning.rules import Rules, json_value, literal, one_of
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice


def read_call(scan: Scanner, out: Output, opening: str) -> Steps[bool]:
    """Reads a call and says whether it was a whole one.

    Arguments have names; they are passed on as they are generated. What breaks before the first,
    `opening` included, becomes content; what breaks later ends the call, and the rest is next to
    be read.

    Args:
        opening: the markup that has been read before it.
    """
    scan.record()
    name = yield from read_word(scan)
    is_call = bool(name) and (yield from scan.take("("))
    yield from scan.space()
    if is_call and (yield from scan.take(")")):
        scan.recorded()
        out.begin(name)
        out.arguments("{}")
        out.end(complete=True)
        return True
    argument = (yield from _read_argument_name(scan)) if is_call else ""
    if not argument:
        out.content(opening + scan.recorded())
        return False
    scan.recorded()
    out.begin(name)
    is_whole = yield from _read_arguments(scan, out, argument)
    out.end(complete=is_whole)
    return is_whole


def _read_argument_name(scan: Scanner) -> Steps[str]:
    """Empty where none comes."""
    name = yield from read_word(scan)
    yield from scan.space()
    return name if name and (yield from scan.take("=")) else ""


def _read_arguments(scan: Scanner, out: Output, name: str) -> Steps[bool]:
    before = "{"
    while True:
        out.arguments(f'{before}"{escape(name)}":')
        before = ","
        if not (yield from copy_python(scan, out.arguments)):
            return False
        yield from scan.space()
        is_end = yield from scan.take(")")
        if not is_end:
            if not (yield from scan.take(",")):
                return False
            yield from scan.space()
            is_end = yield from scan.take(")")
        if is_end:
            out.arguments("}")
            return True
        name = yield from _read_argument_name(scan)
        if not name:
            return False


def pythonic_calls(rules: Rules, choice: CallChoice) -> str:
    """The expression of a list of calls. Values are JSON, which `copy_python` reads too.

    Raises:
        InvalidField: a schema cannot be kept to in this form.
    """
    rests = []
    for tool in choice.tools:
        arguments = [
            (_argument(rules, parameter), parameter.is_required)
            for parameter in parameters_of(tool.parameters, tool.name)
        ]
        rests.append(rules.rule(f"{separated(rules, arguments, ', ')} {literal(')')}"))

    # What a name begins with is one literal, so that it is told from text that begins like it.
    def calls(begin: str) -> str:
        names = [literal(f"{begin}{tool.name}(") for tool in choice.tools]
        return one_of([f"{name} {rest}" for name, rest in zip(names, rests, strict=True)])

    more = f" {calls(', ')}*" if choice.parallel else ""
    return f"{calls('[')}{more} {literal(']')}"


def _argument(rules: Rules, parameter: Parameter) -> str:
    return rules.rule(f"{literal(f'{parameter.name}=')} {json_value(parameter.whole_schema)}")


def separated(rules: Rules, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """The expression of items in their order.

    Args:
        items: expressions, and whether each has to be there.
    """
    between = literal(separator)
    # `first`: the items from here on, none being there yet; `rest`: behind another.
    first, rest = '""', '""'
    for expression, is_required in reversed(items):
        absent = "" if is_required else f" | {first}"
        first = rules.rule(f"{expression} {rest}{absent}")
        absent = "" if is_required else f" | {rest}"
        rest = rules.rule(f"{between} {expression} {rest}{absent}")
    return first
