"""Templates reach nothing outside, and come to an end."""

from __future__ import annotations

import pytest

from fastovms.errors import RequestError
from tests.text.templating.test_chat_template import HELLO, template


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ messages.clear() }}", "access to attribute 'clear'"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 1000000000 }}", "too large"),
        ("{{ 9 ** 1000000000 }}", "too large"),
        ("{{ '%99999d' % 1 }}", "pads a text too much"),
        (
            "{% set n = namespace(t='xxxx') %}{% for i in range(40) %}"
            "{% set n.t = n.t + n.t %}{% endfor %}",
            "a text of the template is too large",
        ),
        (
            "{% set n = namespace(t='xxxx') %}{% for i in range(40) %}"
            "{% set n.t = n.t ~ n.t %}{% endfor %}",
            "a text of the template is too large",
        ),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "the prompt of the template"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_what_a_template_refuses(source, reason):
    with pytest.raises(RequestError, match="the chat template cannot render") as error:
        template(source).render(HELLO)
    assert reason in error.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99) %}{% for j in range(99) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(30) }}",
    ],
)
def test_a_template_ends(source, monkeypatch):
    monkeypatch.setattr("fastovms.text.templating.template_sandbox.MAX_PASSES", 1000)
    with pytest.raises(RequestError, match="more than 1000 operations"):
        template(source).render(HELLO)
    assert template("{% for i in range(999) %}{% endfor %}x").render(HELLO) == "x"


def test_operators_do_what_they_always_do():
    source = (
        "{{ 1 + 2 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 'x' ~ 1 ~ none ~ [2] }}{{ 'ab' * 2 }}"
        "{{ 2 ** 3 }}{{ 7 % 4 }}{{ '%02d %s' % (1, 'y') }}{% set t = 'c' ~ 'd' ~ 1 %}{{ t ~ t }}"
        "{% if 'a' ~ 'b' == 'ab' %}!{% endif %}{{ {'k': 'p' ~ 'q'}.k }}{{ ['r' ~ 's'][0] }}"
    )
    assert template(source).render(HELLO) == ("3ab[1, 2]x1None[2]abab8301 ycd1cd1!pqrs")
