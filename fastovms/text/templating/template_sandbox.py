"""Renders templates in a sandbox: they reach nothing outside and do not run away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import local
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_PRODUCT = 1_000_000
"""The most items of a repeated string or list, and bits of a power."""

MAX_LENGTH = 64 * 1024 * 1024
"""The most characters of a text, the prompt among them."""

MAX_PASSES = 10_000_000
"""The most passes through loops and macros while one prompt is rendered. Some templates look at
every message for each of them."""


_CHANGES: dict[type[Any], tuple[str, ...]] = {list: ("append", "pop"), dict: ("update",)}
"""Methods by which templates change values."""

CHANGES = re.compile(r"\.(?:append|pop|update)\b")
"""Finds such a method in a template's source."""

_WIDE = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which nothing outside is reached, no operator makes something huge, and no
    loop goes on for ever. Templates may change lists and objects in the ways of `CHANGES`, so that
    those that outlive a rendering have to be copied before. Templates of one environment may be
    rendered in several threads."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._thread = local()

    def render(self, template: Template, variables: Mapping[str, Any]) -> str:
        """Renders a template.

        Raises:
            TemplateError: the template refuses the variables, or does too much.
            Exception: whatever else its expressions raise.
        """
        self._thread.num_passes = 0
        pieces: list[str] = []
        length = 0
        for piece in template.generate(variables):
            length += len(piece)
            _check("the prompt", length, MAX_LENGTH)
            pieces.append(piece)
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Returns whether a template may use an attribute. Some keep lists and objects of their own
        (Kimi K2, Hunyuan)."""
        if attr in _CHANGES.get(type(obj), ()):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def count_pass(self) -> None:
        """Counts a pass through a loop or a macro; templates call it at each."""
        self._thread.num_passes += 1
        if self._thread.num_passes > MAX_PASSES:
            raise SecurityError(f"the template takes more than {MAX_PASSES} operations")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "*":
                for sized, count in ((left, right), (right, left)):
                    if isinstance(sized, str | list | tuple) and isinstance(count, int):
                        _check("a product", len(sized) * count, MAX_PRODUCT)
            case "**" if isinstance(left, int) and isinstance(right, int):
                _check("a power", left.bit_length() * right, MAX_PRODUCT)
            case "+" if isinstance(left, str) and isinstance(right, str):
                _check("a text", len(left) + len(right), MAX_LENGTH)
            case "%" if isinstance(left, str) and _WIDE.search(left):
                raise SecurityError("the template pads a text too much")
        return super().call_binop(context, operator, left, right)

    def join(self, *values: Any) -> str:
        """Joins texts, as the operator `~` does."""
        texts = [str(value) for value in values]
        _check("a text", sum(map(len, texts)), MAX_LENGTH)
        return "".join(texts)

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        """Makes code of a parsed template (a hook of Jinja's), once the checks are put into it."""
        for repeated in source.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(repeated, nodes.For | nodes.Macro | nodes.CallBlock)
            repeated.body.insert(0, nodes.ExprStmt(_call("count_pass", [])))
        _replace_joins(source)
        return super()._generate(source, name, filename, defer_init)


def _replace_joins(node: nodes.Node) -> None:
    for child in node.iter_child_nodes():
        _replace_joins(child)
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(node, field, _call("join", value.nodes))
        elif isinstance(value, list):
            value[:] = [
                _call("join", item.nodes) if isinstance(item, nodes.Concat) else item
                for item in value
            ]


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """Returns the expression of a call to a method of the environment."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _check(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise SecurityError(f"{what} of the template is too large: {size} > {limit}")
