"""MiniMax M3."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content, Piece
from fastovms.text.tools import Tool
from fastovms.text.tools.xml_formats.minimax_m3 import MINIMAX_M3
from tests.text.tools.checks import call, check_sample

NS = "]<]minimax[>["
ORDER = Tool(
    "create_order",
    {
        "properties": {
            "user_id": {"type": "integer"},
            "urgent": {"type": "boolean"},
            "note": {"type": "string"},
            "shipping": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            },
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}},
                },
            },
            "more": {"type": "object"},
        }
    },
)


def element(name: str, *children: str) -> str:
    return f"{NS}<{name}>{''.join(children)}{NS}</{name}>"


def invoke(*children: str) -> str:
    return f'{NS}<invoke name="create_order">{"".join(children)}{NS}</invoke>'


def section(*invokes: str) -> str:
    return "\n".join([f"{NS}<tool_call>", *invokes, f"{NS}</tool_call>"])


NESTED = invoke(
    element("user_id", "42"),
    element("urgent", "true"),
    element("note", "At the \"desk\"."),
    element("shipping", element("city", "5"), element("zip", "018956")),
    element("items", element("item", element("sku", "b-1"), element("qty", "2")),
            element("item", element("sku", "7"))),
    element("more", element("tag", "a"), element("tag", "b"), element("x", "y")),
)  # fmt: skip
ONE = invoke(element("user_id", "1"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            f"I do.\n{section(NESTED)}",
            [
                Content("I do."),
                *call(
                    0,
                    "create_order",
                    r'{"user_id":42,"urgent":true,"note":"At the \"desk\".",'
                    '"shipping":{"city":"5","zip":18956},'
                    '"items":[{"sku":"b-1","qty":2},{"sku":"7"}],'
                    '"more":{"tag":["a","b"],"x":"y"}}',
                ),
            ],
        ),
        (section(ONE, ONE),
         call(0, "create_order", '{"user_id":1}') + call(1, "create_order", '{"user_id":1}')),
        (section(invoke()), call(0, "create_order", "{}")),
        (f"plain {NS}<tool_ca", [Content("plain ")]),
        (f"{NS}<tool_call>\n{NS}</user_id>", [Content(f"{NS}<tool_call>\n{NS}</user_id>")]),
        (
            f"{NS}<tool_call>\n{ONE}\n{NS}<invoke name=\"create_order\">{NS}<note>x",
            call(0, "create_order", '{"user_id":1}')
            + call(1, "create_order", '{"note":"x', complete=False),
        ),
    ],
)  # fmt: skip
def test_samples(text: str, pieces: list[Piece]) -> None:
    check_sample(MINIMAX_M3, text, pieces, [ORDER])
