"""MiniCPM 5."""

from __future__ import annotations

import pytest

from fastovms.text.scanning.output import Content
from fastovms.text.tools.xml_formats.minicpm5 import MINICPM5
from tests.text.tools.checks import SHOP, call, check_sample

SAMPLES = {
    "one": (
        '<function name="search"><param name="query">tea</param>'
        '<param name="limit">3</param></function>',
        call(0, "search", '{"query":"tea","limit":3}'),
    ),
    "several, indented, content around": (
        'A <function name="now"></function>\n<function name="search">\n'
        '  <param name="query">a</param>\n</function> B',
        [
            Content("A"),
            *call(0, "now", "{}"),
            *call(1, "search", '{"query":"a"}'),
            Content(" \n B"),
        ],
    ),
    "line breaks around a value": (
        '<function name="search"><param name="query">\ntea\n</param></function>',
        call(0, "search", '{"query":"tea"}'),
    ),
    "CDATA": (
        '<function name="search"><param name="query"><![CDATA[<a>\n</param>&]]></param></function>',
        call(0, "search", r'{"query":"<a>\n</param>&"}'),
    ),
    "an unclosed function": (
        '<function name="search"><param name="query">te',
        call(0, "search", '{"query":"te', complete=False),
    ),
    "other markup": ('<function id="x">', [Content('<function id="x">')]),
    "CDATA that does not end with the value": (
        '<function name="search"><param name="query"><![CDATA[a]]>b</param></function>',
        [
            *call(0, "search", '{"query":"a', complete=False),
            Content("b</param></function>"),
        ],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    check_sample(MINICPM5, *SAMPLES[name], SHOP)
