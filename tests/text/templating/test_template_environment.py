"""Templates have what Hugging Face's have."""

from __future__ import annotations

import pytest

from tests.text.templating.test_chat_template import HELLO, template


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2026"),
        ("{{ {'b': 'ü<', 'a': 1} | tojson }}", '{"b": "ü<", "a": 1}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahellob"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ missing }}{{ messages[0].name }}", ""),
        ("{{ kind }}{{ add_generation_prompt }}", "fooTrue"),
        ('{{ ("[1]" | from_json)[0] }}', "1"),
    ],
)
def test_hugging_face_extensions(source, text):
    assert template(source).render(HELLO, kwargs={"kind": "foo"}) == text
