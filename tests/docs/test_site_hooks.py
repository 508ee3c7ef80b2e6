"""Tests of the escaping of pipes in the code of tables."""

from __future__ import annotations

import pytest

from docs.site_hooks import on_page_content


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        (r"<td><code>&lt;\|a\|&gt;</code></td>", "<td><code>&lt;|a|&gt;</code></td>"),
        (r"<td>a \| b</td>", r"<td>a \| b</td>"),
        (r"<pre><code><span>grep 'a\|b'</span></code></pre>",) * 2,
    ],
)
def test_escapes_are_taken_off_in_code_alone(html: str, shown: str):
    assert on_page_content(html, page=None) == shown
