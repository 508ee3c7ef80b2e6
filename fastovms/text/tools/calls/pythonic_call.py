"""Reads calls that are written as in Python: `add(a=1, b="x")`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fastovms.grammar_tree import EMPTY, Json, Node, OtherTag, Repeat, Separated, in_order, one_of
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.json_text import escape
from fastovms.text.scanning.literals import read_word
from fastovms.text.scanning.parameters import Parameter
from fastovms.text.scanning.python_text import copy_python
from fastovms.text.scanning.scanner import Incremental, Scanner
from fastovms.text.scanning.text_values import name_patterns
from fastovms.text.scanning.tool import CallChoice, Tool

_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def read_call(
    scan: Scanner, out: PieceCollector, opening: str, known: Collection[str] | None = None
) -> Incremental[bool]:
    """Reads a call and says whether it was a whole one.

    Arguments have names; they are passed on as they are generated. What breaks before the first,
    `opening` included, becomes content; what breaks later ends the call, and the rest is next to
    be read.

    Args:
        opening: the markup that has been read before it.
        known: names of functions, where a call to another one is no call; None = any name counts.
    """
    scan.record()
    name = yield from read_word(scan)
    is_call = bool(name) and (known is None or name in known) and (yield from scan.take("("))
    yield from scan.space()
    if is_call and (yield from scan.take(")")):
        scan.recorded()
        out.begin(name)
        out.arguments("{}")
        out.end(complete=True)
        return True
    argument = (yield from _read_argument_name(scan)) if is_call else ""
    if not argument:
        out.broken(opening + scan.recorded())
        return False
    scan.recorded()
    out.begin(name)
    is_whole = yield from _read_arguments(scan, out, argument)
    out.end(complete=is_whole)
    return is_whole


def _read_argument_name(scan: Scanner) -> Incremental[str]:
    """Reads an argument's name; empty where none comes."""
    name = yield from read_word(scan)
    yield from scan.space()
    return name if name and (yield from scan.take("=")) else ""


def _read_arguments(scan: Scanner, out: PieceCollector, name: str) -> Incremental[bool]:
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


def pythonic_calls(choice: CallChoice) -> Node:
    """Returns the grammar of a list of calls. Values are JSON, which `copy_python` reads too.

    Raises:
        InvalidField: a schema cannot be kept to in this form.
    """
    rests = [
        in_order(arguments(tool, _argument, separator=", ", end="=", name=_NAME), ")")
        for tool in choice.tools
    ]

    # What a name begins with is one literal, so that it is told from text that begins like it.
    def call(begin: str) -> Node:
        names = [f"{begin}{tool.name}(" for tool in choice.tools]
        return one_of(*map(in_order, names, rests))

    more = [Repeat(call(", "))] if choice.parallel else []
    return in_order(call("["), *more, "]")


def pythonic_call(choice: CallChoice) -> Node:
    """Returns the grammar of a call. It raises as `pythonic_calls` does."""
    return one_of(
        *[
            in_order(
                f"{tool.name}(",
                arguments(tool, _argument, separator=", ", end="=", name=_NAME),
                ")",
            )
            for tool in choice.tools
        ]
    )


def _argument(parameter: Parameter, begin: Node | None = None) -> Node:
    return in_order(begin or f"{parameter.name}=", Json.of(parameter.whole_schema))


Argument = Callable[[Parameter, Node | None], Node]
"""Makes the grammar of an argument; the second value stands in place of its name if it has none in
the schema."""


def arguments(tool: Tool, argument: Argument, *, separator: str, end: str, name: str) -> Node:
    """Returns the grammar of a call's arguments in the order of their schema, each as `argument`
    has it.

    Args:
        end: what stands behind an argument's name.
        name: an expression of the names that arguments may have which the schema does not name.

    Raises:
        InvalidField: the schema says more than can be said a parameter at a time.
    """
    found = tool.enforced_parameters()
    items = [(argument(parameter, None), parameter.is_required) for parameter in found.values()]
    others = [
        argument(parameter, OtherTag("", name_patterns(name, pattern), end, tuple(found)))
        for pattern, parameter in found.others
    ]
    if not items and not others:
        return EMPTY
    return Separated(tuple(items), separator, one_of(*others) if others else None)
