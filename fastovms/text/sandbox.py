"""A sandbox for Jinja templates: no access to anything outside, and a budget for work and
memory."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, update_wrapper
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import (
    MAX_RANGE,
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace
from markupsafe import Markup

from fastovms.text.budget import Budget, LimitExceeded

MAX_LENGTH: Final = 64 * 1024 * 1024
"""The maximum number of characters of a string, including the prompt."""

_MAX_BITS: Final = 16_384
"""The maximum number of bits of an integer, a little more than Python writes in decimal."""

_MAX_WIDTH: Final = 9_999
"""The maximum width, precision or number that a filter or a format may be given."""

_MAX_LINKED: Final = 10_000
"""The maximum number of characters that `urlize` searches, because its time may be quadratic."""

_CHARS_AN_ITEM: Final = 8
_ITEMS_A_PASS: Final = 4
_CHARS_A_PASS: Final = 1024
"""The number of items and of characters that an operation reads in the time of one pass."""

_MAX_SPACED: Final = 100_000
"""The number of characters of JSON, times the indent, from which the nesting depth is measured."""

_SQUARE_A_PASS: Final = 2**14
"""The squared length of a text, divided by the width, that `wordwrap` processes in the time of one
pass."""

_NODES_A_PASS: Final = 256
"""The number of nodes in a loop's body that count as one more pass; few of them are computed in
each pass."""

_ESCAPED: Final = 6
"""The maximum number of characters of an escaped character."""


class _Generator(CodeGenerator):
    """Generates code that creates output strings with the environment's `text` method, and calls
    the environment's own methods without checking them."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
            self.write("environment.compared(")
        else:
            self.write("environment.text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            self.write(")")
        super()._output_child_post(node, frame, finalize)


_TEXTS: Final = (str, bytes)
_LISTS: Final = (list, tuple)
_SEQUENCES: Final = (str, bytes, list, tuple)
_CONTAINERS: Final = (list, tuple, dict)
_COUNTED: Final = (list, tuple, dict, range)
_NUMBERS: Final = (int, float, type(None))
_BOUND: Final = (BuiltinMethodType, MethodType)

_CHANGES: dict[type[Any], tuple[str, ...]] = {list: ("append", "pop"), dict: ("update",)}
"""Methods by which templates change values."""

_MANY_DIGITS: Final = re.compile(r"\d{5}")
_DIGITS: Final = re.compile(r"\d+")
_STARRED: Final = re.compile(r"%[^a-zA-Z%]*\*")


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for untrusted templates: no access to Python internals, and a budget of
    work and memory. Templates may change lists and objects with the methods in `_CHANGES`, so copy
    shared values before rendering. Templates of one environment may be rendered in several
    threads."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    code_generator_class = _Generator

    def __init__(self, budget: Budget, **options: Any) -> None:
        super().__init__(**options)
        self._budget = budget
        own: dict[str, Callable[..., int]] = {
            "center": self._of_width, "format": self._of_filter_format, "indent": self._of_indent,
            "wordwrap": self._of_wordwrap, "replace": self._of_replace, "batch": self._of_number,
            "slice": self._of_number, "round": self._of_number, "int": self._of_int,
            "tojson": self._of_json, "urlize": self._of_urlize, "truncate": self._of_truncate,
            "from_json": self._of_parsed, "fromjson": self._of_parsed,
        }  # fmt: skip
        own |= dict.fromkeys(_ESCAPING, self._of_escaped)
        own |= dict.fromkeys(_OF_PRINTED, self._of_printed)
        self.filters |= {"tojson": _to_json, "from_json": json.loads, "fromjson": json.loads}
        self.filters |= {"join": self._join, "sum": self._sum}
        functions: dict[str, Any] = self.filters
        for name in functions.keys() - _CHEAP_FILTERS:
            weight = 1 if name in _SLOW_FILTERS else _ITEMS_A_PASS
            functions[name] = self._bounded(functions[name], own.get(name), weight)
        functions = cast(dict[str, Any], self.tests)
        for name, test in functions.items():
            if name in ("in", "lower", "upper") or test in _COMPARISONS:
                functions[name] = self._bounded(test, self._of_compared)
        functions = cast(dict[str, Any], self.globals)
        functions["range"] = _range
        functions["lipsum"] = self._bounded(functions["lipsum"], self._of_lipsum)
        for name in ("dict", "namespace"):
            functions[name] = self._bounded(functions[name])

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        """Renders a template.

        Raises:
            TemplateError: the template refuses the variables.
            LimitExceeded: it exceeds a limit of the request.
            NeedsProcess: it exceeds a limit that a process for templates does not have.
            Exception: any other error of its Jinja expressions.
        """
        pieces: list[str] = []
        length = 0
        try:
            for piece in template.generate(variables):
                length += len(piece)
                if length > MAX_LENGTH:
                    raise LimitExceeded(f"renders more than {MAX_LENGTH} characters")
                pieces.append(piece)
            return "".join(pieces)
        except RecursionError as error:
            raise LimitExceeded("nests its macros or values too deeply") from error

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Returns whether a template may use an attribute. Some templates change their own lists
        and objects (Kimi K2, Hunyuan)."""
        if attr in _CHANGES.get(type(obj), ()):
            return True
        return super().is_safe_attribute(obj, attr, value)

    # Called by the code that Jinja generates from templates

    def count_pass(self, passes: int, chars: int) -> bool:
        """Counts an iteration of a loop, or a run of a macro or block."""
        budget = self._budget
        budget.passes -= passes
        budget.chars -= chars
        if budget.passes < 0 or budget.chars < 0:
            budget.refuse(chars)
        return True

    def text(self, value: Any) -> str:
        """Returns the output text of a value."""
        if type(value) is not str:
            self._printed(value)
            value = str(value)
        budget = self._budget
        budget.chars -= len(value)
        if budget.chars < 0:
            budget.refuse(len(value))
        text: str = value
        return text

    def join(self, *values: Any) -> str:
        """Concatenates values as strings; the operator `~`."""
        texts = [value if type(value) is str else self.text(value) for value in values]
        self._made(sum(map(len, texts)))
        return "".join(texts)

    def compared(self, value: Any) -> Any:
        """Counts the cost of searching or comparing a value, and returns the value."""
        self._of_compared(value)
        return value

    def nested(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Counts the cost of hashing a tuple, including tuples in it, and returns the tuple."""
        if tuple in map(type, value):
            self._printed(value)
        return value

    def cut(self, value: Any) -> Any:
        """Counts the size of a slice of a value, and returns the slice."""
        self._made(_length(value))
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str and type(right) is str:
            size = len(left) + len(right)
            if size > _CHARS_A_PASS:
                self._made(size)
            return left + right
        match operator:
            case "*":
                for sized, count in ((left, right), (right, left)):
                    if isinstance(sized, _SEQUENCES) and isinstance(count, int):
                        self._made(_length(sized) * max(0, count))
                if isinstance(left, int) and isinstance(right, int):
                    _check_bits(left.bit_length() + right.bit_length())
            case "**" if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * right)
            case "+" if isinstance(left, _SEQUENCES):
                is_escaped = isinstance(left, Markup) or isinstance(right, Markup)
                size = _length(left) + _length(right)
                self._made(size * _ESCAPED if is_escaped else size)
            case "%" if isinstance(left, _TEXTS):
                self._of_percent(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        """Returns a limited function that replaces a method of a value; None = the method itself is
        used (a hook of Jinja for every attribute)."""
        if not isinstance(value, _BOUND):
            return None
        owner, name = value.__self__, value.__name__
        if name.startswith("_"):
            return None
        if isinstance(owner, str) and name in ("format", "format_map"):
            return self._format_method(owner, is_map=name == "format_map")
        if isinstance(owner, _TEXTS) and name == "join":
            return self._join_method(owner)
        if name in _METHODS and (isinstance(owner, str | bytes | int) or owner is int):
            size = _METHODS[name]
            return self._bounded(value, size if owner is int else partial(size, owner))
        if isinstance(owner, _TEXTS) and len(owner) > _CHARS_A_PASS:
            return self._bounded(value, lambda *_, **__: len(owner))
        if name in ("count", "index", "changed") and not isinstance(owner, _TEXTS):
            return self._bounded(value, partial(self._of_compared, owner))
        is_changed = isinstance(owner, list | dict) or owner is dict
        if is_changed and name in _COPIES and self.is_safe_attribute(owner, name, value):
            return self._bounded(value, partial(_COPIES[name], owner))
        return None

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        """Inserts the checks into a parsed template and generates its code (a hook of Jinja)."""
        _insert_checks(source)
        kinds = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
        for repeated in list(source.find_all(kinds)):
            assert isinstance(repeated, kinds)
            count = _call("count_pass", [*map(nodes.Const, _cost(repeated))])
            repeated.body.insert(0, nodes.ExprStmt(count))
            if isinstance(repeated, nodes.For) and repeated.test is not None:
                each: list[nodes.Expr] = [nodes.Const(1), nodes.Const(0)]
                repeated.test = nodes.And(_call("count_pass", each), repeated.test)
        return super()._generate(source, name, filename, defer_init)

    # Limits on the size of results

    def _made(self, chars: int) -> None:
        """Counts the size of a value before an operation creates it."""
        budget = self._budget
        budget.chars -= chars
        if chars > _CHARS_A_PASS or budget.chars < 0:
            if chars > MAX_LENGTH:
                raise LimitExceeded(f"makes a text or list of {chars} characters")
            budget.spend(chars // _CHARS_A_PASS, 0)

    def _bounded(
        self,
        function: Callable[..., Any],
        size: Callable[..., int] | None = None,
        items_a_pass: int = _ITEMS_A_PASS,
    ) -> Callable[..., Any]:
        """Returns a function whose work and result are counted.

        Args:
            size: returns at least the number of characters of the result, given the function's
                arguments.
            items_a_pass: the number of items of the first argument that the function reads in the
                time of one pass.
        """
        position = 1 if hasattr(function, "jinja_pass_arg") else 0

        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[position:] if position else args
            self._budget.spend(1 + _num_steps(given[0], items_a_pass) if given else 1, 0)
            if size is not None:
                self._made(size(*given, **kwargs))
            result = function(*args, **kwargs)
            kind = type(result)
            if kind in _SIZED and (kind is not str or len(result) > _CHARS_A_PASS):
                self._made(_length(result))
            return result

        # Methods of built-in types need no copied attributes: a template cannot read them.
        return call if isinstance(function, BuiltinMethodType) else update_wrapper(call, function)

    def _printed(self, value: Any) -> int:
        """Returns about how many characters the text of a value has. A list that occurs several
        times within another is printed as often, so it is counted before it is printed."""
        if type(value) is str:
            return len(value)
        budget = self._budget
        most = min(budget.chars, MAX_LENGTH)
        waiting, num_chars, num_values = [value], 0, 0
        while waiting:
            value = waiting.pop()
            kind = type(value)
            num_values += 1
            if kind is str:
                num_chars += len(value)
            elif isinstance(value, dict):
                waiting += value.values()
                waiting += value
                num_chars += 6 * len(value)
            elif isinstance(value, _LISTS) or kind in _VIEWS:
                waiting += value
                num_chars += 2 * len(value)
            elif kind is int:
                num_chars += value.bit_length()
            elif kind is Namespace:
                waiting.append(value._Namespace__attrs)
            else:
                num_chars += len(value) if isinstance(value, _TEXTS) else 24
            if num_chars > most or num_values > _ITEMS_A_PASS * budget.passes:
                budget.spend(num_values // _ITEMS_A_PASS + 1, 0)
                self._made(num_chars)
        budget.spend(num_values // _ITEMS_A_PASS, 0)
        return num_chars

    def _of_printed(self, value: Any, *_: Any, **__: Any) -> int:
        self._printed(value)
        return 0

    def _of_compared(self, value: Any, *others: Any) -> int:
        for each in (value, *others):
            if isinstance(each, str):
                if len(each) > _CHARS_A_PASS:
                    self._budget.spend(len(each) // _CHARS_A_PASS, 0)
            elif not isinstance(each, _NUMBERS):
                self._printed(each)
        return 0

    def _of_width(self, value: Any, width: int = 80, *_: Any) -> int:
        return max(self._printed(value), _checked(width))

    def _of_number(self, value: Any, number: Any = 0, *_: Any, **named: Any) -> int:
        for each in (number, *named.values()):
            if isinstance(each, int | float):
                _checked(int(each))
        return 0

    def _of_int(self, value: Any, *_: Any, **__: Any) -> int:
        if isinstance(value, _TEXTS):
            _check_bits(3 * len(value))
        return 0

    def _of_indent(self, value: str, width: int | str = 4, *_: Any, **__: Any) -> int:
        each = len(width) if isinstance(width, str) else _checked(width)
        return len(value) + each * (value.count("\n") + len(value.splitlines()) + 1)

    def _of_wordwrap(
        self, value: str, width: int = 79, _: Any = True, wrapstring: str | None = None, *__: Any,
        **___: Any,
    ) -> int:  # fmt: skip
        num_lines = 1 + value.count("\n") + len(value) // max(1, width // 2)
        self._budget.spend(len(value) ** 2 // max(1, width) // _SQUARE_A_PASS, 0)
        return len(value) + num_lines * len(wrapstring or "\n")

    def _of_replace(self, value: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
        self._printed(value), self._printed(old), self._printed(new)
        size = _replaced_length(str(value), str(old), str(new))
        return size * _ESCAPED if any(isinstance(v, Markup) for v in (value, old, new)) else size

    def _of_filter_format(self, value: Any, *args: Any, **kwargs: Any) -> int:
        return self._of_percent(str(value), kwargs or args)

    def _of_percent(self, form: str | bytes, values: Any) -> int:
        """Counts the result of `form % values`. Returns 0."""
        form = form if isinstance(form, str) else form.decode("latin-1")
        if _STARRED.search(form) or _MANY_DIGITS.search(form):
            raise _too_wide()
        size = len(form) + sum(map(int, _DIGITS.findall(form)))
        num_repeated = form.count("%") if isinstance(values, Mapping) else 1
        size += num_repeated * self._printed(values)
        self._made(size)
        return 0

    def _of_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> int:
        each = len(indent) if isinstance(indent, str) else indent or 0
        each += sum(map(len, separators or ()))
        size = self._printed(value)
        is_large = size * each > _MAX_SPACED
        return size + size * each * _depth(value) if is_large else size

    def _of_urlize(self, value: Any, *_: Any, **__: Any) -> int:
        if self._printed(value) > _MAX_LINKED:
            raise LimitExceeded(f"searches links in more than {_MAX_LINKED} characters")
        return 0

    def _of_truncate(self, value: Any, _: Any = 0, __: Any = False, end: str = "", *___: Any,
                     **____: Any) -> int:  # fmt: skip
        return len(value) + len(end)

    def _of_escaped(self, value: Any, *_: Any, **__: Any) -> int:
        return _ESCAPED * self._printed(value)

    def _of_parsed(self, value: Any, *_: Any, **__: Any) -> int:
        return 16 * _length(value)

    def _of_lipsum(self, n: int = 5, _: Any = True, most: int = 20, *__: Any, **named: int) -> int:
        for each in (n, most, *named.values()):
            _checked(100 * each)
        return 0

    def _join(self, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
        """Joins values as strings, as Jinja's filter does without escaping."""
        if attribute is not None:
            value = [self._attribute(item, attribute) for item in value]
        separator = self.text(d)
        texts = [self.text(item) for item in value]
        self._made(sum(map(len, texts)) + len(separator) * len(texts))
        return separator.join(texts)

    def _sum(self, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        """Adds values, as Jinja's filter does."""
        for value in iterable:
            self.count_pass(1, 0)
            value = value if attribute is None else self._attribute(value, attribute)
            start = self.call_binop(None, "+", start, value)
        return start

    def _attribute(self, value: Any, attribute: Any) -> Any:
        for name in str(attribute).split("."):
            value = self.getitem(value, int(name) if name.isdigit() else name)
        return value

    def _join_method(self, separator: Any) -> Callable[..., Any]:
        """Returns a limited version of `separator.join`."""

        def call(values: Iterable[Any]) -> Any:
            given = []
            for value in values:
                self.count_pass(0, _CHARS_AN_ITEM)
                given.append(value)
            texts = [value for value in given if isinstance(value, _TEXTS)]
            size = sum(map(len, texts)) + len(separator) * len(texts)
            is_escaped = any(isinstance(text, Markup) for text in (separator, *texts))
            self._made(_ESCAPED * size if is_escaped else size)
            return separator.join(given)

        return call

    def _format_method(self, form: str, *, is_map: bool) -> Callable[..., str]:
        """Returns a limited version of `form.format` or `form.format_map`."""
        formatter: _Formatter = _Formatter(self)
        if isinstance(form, Markup):
            formatter = _EscapeFormatter(self, escape=form.escape)

        def call(*args: Any, **kwargs: Any) -> str:
            if is_map:
                args, kwargs = (), dict(*args, **kwargs)
            self._made(len(form))
            return type(form)(formatter.vformat(form, args, kwargs))

        return call


class _Formatter(SandboxedFormatter):
    """Formats strings with limited widths."""

    _env: Sandbox

    def format_field(self, value: Any, format_spec: str) -> str:
        if _MANY_DIGITS.search(format_spec):
            raise _too_wide()
        self._env._printed(value)
        text = str(super().format_field(value, format_spec))
        self._env.count_pass(1, len(text))
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is not None:
            self._env._made(self._env._printed(value))
        return super().convert_field(value, conversion)


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    """Formats escaped strings with limited widths."""


_VIEWS: Final = frozenset(map(type, ({}.keys(), {}.values(), {}.items())))
_COMPARISONS: Final = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
)


def _checked(width: int) -> int:
    """Returns the width or number given to a filter. Raises LimitExceeded if it is too large."""
    if abs(width) > _MAX_WIDTH:
        raise _too_wide()
    return max(0, width)


def _too_wide() -> LimitExceeded:
    return LimitExceeded(f"pads, repeats or rounds by more than {_MAX_WIDTH}")


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise LimitExceeded(f"counts over more than {MAX_RANGE} numbers")
    return numbers


def _check_bits(count: int) -> None:
    if count > _MAX_BITS:
        raise LimitExceeded(f"computes an integer of more than {_MAX_BITS} bits")


def _length(value: Any) -> int:
    """Returns a value's length in characters."""
    if isinstance(value, _TEXTS):
        return len(value)
    return _CHARS_AN_ITEM * len(value) if isinstance(value, _CONTAINERS) else 0


def _num_steps(value: Any, items_a_pass: int) -> int:
    """Returns the number of passes that reading a value costs."""
    if isinstance(value, _TEXTS):
        return len(value) // _CHARS_A_PASS
    return len(value) // items_a_pass if isinstance(value, _COUNTED) else 0


def _depth(value: Any) -> int:
    """Returns the number of nesting levels of lists and objects in a value."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            item
            for each in level
            if isinstance(each, _CONTAINERS)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _replaced_length(text: Any, old: Any, new: Any, count: int = -1) -> int:
    growth = len(new) - len(old)
    return len(text) + text.count(old) * growth if growth > 0 else len(text)


def _translated_length(text: str, table: Any) -> int:
    longest = 1
    if isinstance(table, Mapping):
        longest = max((len(v) for v in table.values() if isinstance(v, str)), default=1)
    return len(text) * max(1, longest)


def _tabs_length(text: Any, tabsize: int = 8) -> int:
    num_tabs: int = text.count("\t" if isinstance(text, str) else b"\t")
    return len(text) + num_tabs * _checked(tabsize)


def _width(text: Any, width: int, *_: Any) -> int:
    return max(len(text), _checked(width))


def _bytes_length(_: int, length: int = 1, *__: Any, **___: Any) -> int:
    return _checked(length)


def _integer_length(data: Any, *_: Any, **__: Any) -> int:
    _check_bits(8 * len(data))
    return 0


_METHODS: Final[Mapping[str, Callable[..., int]]] = {
    "center": _width, "ljust": _width, "rjust": _width, "zfill": _width,
    "expandtabs": _tabs_length, "replace": _replaced_length, "translate": _translated_length,
    "to_bytes": _bytes_length, "from_bytes": _integer_length,
}  # fmt: skip
"""Functions that return an upper bound of the size of a method's result, given the value and
arguments. Other methods' results are about as long as their value."""

_COPIES: Final[Mapping[str, Callable[..., int]]] = {
    "append": lambda *_: _CHARS_AN_ITEM, "copy": _length,
    "fromkeys": lambda _, keys, *__: _length(keys),
    "update": lambda _, *given, **named: sum(map(_length, given)) + _length(named),
}  # fmt: skip
"""The same for methods of lists and objects."""

_SIZED: Final = frozenset((str, list, Markup, bytes, dict))
_CHEAP_FILTERS: Final = frozenset(
    ("length", "count", "first", "last", "default", "d", "safe", "attr", "items", "abs", "float")
)
_ESCAPING: Final = ("escape", "e", "forceescape", "xmlattr", "urlencode")
_OF_PRINTED: Final = (
    "pprint", "string", "sort", "unique", "min", "max", "groupby", "dictsort", "trim", "upper",
    "lower", "title", "capitalize", "wordcount", "striptags",
)  # fmt: skip
"""The filters that convert values to strings, or compare them."""

_SLOW_FILTERS: Final = frozenset(
    ("map", "select", "reject", "selectattr", "rejectattr", "groupby", "sort", "unique")
)
"""The filters that call functions for each item."""


def _cost(repeated: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> tuple[int, int]:
    """Returns the passes and the characters that one run of a body costs, without those of inner
    loops, which are counted separately."""
    num_nodes = num_chars = 0
    for each in repeated.find_all(nodes.Node):
        num_nodes += 1
        if isinstance(each, nodes.TemplateData):
            num_chars += len(each.data)
    return 1 + num_nodes // _NODES_A_PASS, num_chars


def _insert_checks(node: nodes.Node) -> None:
    """Replaces Jinja expressions below a node that have no hook of their own by calls of checking
    methods."""
    for child in node.iter_child_nodes():
        _insert_checks(child)
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Expr):
            setattr(node, field, _with_check(value))
        elif isinstance(value, list):
            value[:] = [_with_check(v) if isinstance(v, nodes.Expr) else v for v in value]


def _with_check(value: nodes.Expr) -> nodes.Expr:
    match value:
        case nodes.Concat():
            return _call("join", value.nodes)
        case nodes.Getitem(arg=nodes.Slice(), ctx="load"):
            return _call("cut", [value])
        case nodes.Getitem(ctx="load") if not isinstance(value.arg, nodes.Const):
            # The error of a missing key contains the key's text.
            value.arg = _call("compared", [value.arg])
        case nodes.Tuple(ctx="load") if not _is_constant(value):
            return _call("nested", [value])
        case nodes.Name(name="varargs", ctx="load"):
            return _call("nested", [value])
        case nodes.Compare():
            first, *others = value.ops
            if first.op in ("in", "notin"):
                if not _is_constant(first.expr):
                    first.expr = _call("compared", [first.expr])
            elif others or not any(
                isinstance(side, nodes.Const) for side in (value.expr, first.expr)
            ):
                value.expr = _call("compared", [value.expr])
    return value


def _is_constant(value: nodes.Expr) -> bool:
    items = value.items if isinstance(value, nodes.List | nodes.Tuple) else [value]
    return all(isinstance(item, nodes.Const) for item in items)


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """Returns a Jinja expression that calls a method of the environment."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


class GenerationTag(Extension):
    """Parses `{% generation %}`, which marks the model's text for training. It is replaced by its
    body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the statements within the tag, which itself has no effect."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment(budget: Budget, now: Callable[[], datetime]) -> Sandbox:
    """Returns the environment in which templates are compiled.

    Args:
        budget: the budget that renderings spend.
        now: returns the local time, for `strftime_now`.
    """
    environment = Sandbox(
        budget,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )

    def refuse(message: object) -> NoReturn:
        raise TemplateError(environment.text(message))

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form[:_CHARS_A_PASS])
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns a value as JSON. Jinja's own filter would escape for HTML and sort keys."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
