"""Tests of `fastovms/text/sandbox.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from jinja2 import TemplateError

from fastovms.text.budget import FULL, Budget, LimitExceeded, Limits, NeedsProcess
from fastovms.text.sandbox import make_environment

SMALL = Limits(20_000, 2_000_000)

NESTED = (
    "{% set n = namespace(l=[1], m=[1]) %}{% for i in range(100) %}"
    "{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}"
)
"""Makes two lists, each of which has 2 ** 100 texts."""

TUPLES = (
    "{% set n = namespace(t=(1,)) %}{% for i in range(100) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
)


def render(source: str, limits: Limits = SMALL, *, is_small: bool = False, **variables: Any) -> str:
    budget = Budget()
    environment = make_environment(budget, lambda: datetime(2026, 7, 26))
    template = environment.from_string(source)
    with budget.of(limits, is_small=is_small):
        return environment.render(template, variables)


WIDE = [
    "{{ '{0:>3000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=3000000000) }}",
    "{{ '{a:>3000000000}'.format_map({'a': 1}) }}",
    "{{ ('{0:>300000000}' | safe).format(1) }}",
    "{{ ('{0}' * 3000).format('x' * 100000) }}",
    "{{ 'x' | attr('center')(3000000000) }}",
    "{{ 'x'['center'](3000000000) }}",
    "{{ ['x'] | map('center', 3000000000) | list }}",
    "{{ 'x'.center(3000000000) }}",
    "{{ 'x'.ljust(3000000000) }}",
    "{{ 'x'.rjust(3000000000) }}",
    "{{ 'x'.zfill(3000000000) }}",
    "{{ ('x' | safe).center(3000000000) }}",
    "{{ 'x'.encode().center(3000000000) }}",
    "{{ 'x' | center(3000000000) }}",
    "{% filter center(3000000000) %}a{% endfilter %}",
    "{{ '\\t'.expandtabs(3000000000) }}",
    "{{ 'a\\nb' | indent(3000000000) }}",
    "{{ ('a\\n' * 5000) | indent('x' * 9000) }}",
    "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
    "{{ ('a' * 10000) | replace('a', 'b' * 10000) }}",
    "{{ (['a' * 10000] * 10000) | join }}",
    "{{ ''.join(['a' * 10000] * 10000) }}",
    "{{ ('x' * 10000).join(['a'] * 10000) }}",
    "{{ (['a'] * 10000) | join('x' * 10000) }}",
    "{{ '%3000000000d' % 1 }}",
    "{{ '%*d' % (3000000000, 1) }}",
    "{{ '%3000000000d' | format(1) }}",
    "{{ '%.3000000000f' | format(1.0) }}",
    "{{ '%999999999d'.encode() % 1 }}",
    "{{ ('%9999d' * 1000) % (range(1000) | list) }}",
    "{{ ('%(a)s' * 2000) % {'a': 'x' * 10000} }}",
    "{{ [1] * 1000000000 }}",
    "{{ ([1] * 10000) * 10000 }}",
    "{{ ('a' | safe) * 3000000000 }}",
    "{{ 'x'.encode() * 900000000 }}",
    "{{ 9 ** 1000000000 }}",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}",
    "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='a') %}"
    "{% for i in range(60) %}{% set n.x = m(n.x) %}{% endfor %}",
    "{{ range(99999) | batch(3000000000, 'x') | list }}",
    "{{ range(99999) | slice(3000000000) | list }}",
    "{{ 1.5 | round(1000000000, 'ceil') }}",
    "{{ 1.5 | round(precision=1000000000, method='floor') }}",
    "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "{{ lipsum(n=1000000000) }}",
    "{{ (1).to_bytes(3000000000, 'big') }}",
    "{{ (1).from_bytes(('x' * 100000).encode(), 'big') }}",
    "{{ ('f' * 100000) | int(0, 16) }}",
    "{{ ('a' * 10000).translate({97: 'b' * 10000}) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ ([1] * 10000) | tojson(separators=('x' * 10000, 'y')) }}",
    "{{ ('a ' * 10000) | wordwrap(1, wrapstring='x' * 10000) }}",
    "{{ ('a' * 100000) | wordwrap(1) }}",
    "{{ ('((' * 10000) | urlize }}",
    "{{ ('[[],' * 100000) | from_json }}",
    "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    "{% for i in range(1000000000) %}{% endfor %}",
]

LONG = [
    "{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    "{% for i in range(999) %}{% for j in range(999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "{% for i in range(999) %}{% set x = range(99999) | list | sort | join %}{% endfor %}",
    "{% set a = 'a' * 1000000 %}{% for i in range(9999) %}{% set x = 'b' in a %}{% endfor %}",
    "{% set a = 'a' * 1000000 %}{% for i in range(9999) %}{% set x = a[1:] %}{% endfor %}",
    "{% set a = 'a' * 1000000 %}{% for i in range(9999) %}{% set x = a.count('b') %}{% endfor %}",
    "{% set a = 'a' * 1000000 %}{% for i in range(9999) %}{% set x = a | upper %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% block a %}{{ self.b() }}{{ self.b() }}{% endblock %}"
    "{% block b %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for x in [[1], [2]] recursive %}{{ loop([[1], [2]]) }}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% set x = n.l.append(n.l) %}{{ n.l.append(n.l) }}{{ n.l }}",
    *(
        f"{NESTED}{use}"
        for use in (
            "{{ n.l }}", "{{ n }}", "{{ n.l ~ '' }}", "{{ n.l | string }}", "{{ n.l | tojson }}",
            "{{ '%s' % n.l }}", "{{ '{}'.format(n.l) }}", "{{ '{!r:.5}'.format(n.l) }}",
            "{{ n.l == n.m }}", "{{ n.l in [n.m] }}", "{{ n.l is eq n.m }}",
            "{{ [n.l, n.m] | sort }}", "{{ [n.l].index(n.m) }}", "{{ [n.l].count(n.m) }}",
            "{{ {'a': n.l}.items() }}", "{{ n.l | pprint }}", "{{ n.l | join }}",
            "{% autoescape true %}{{ n.l }}{% endautoescape %}", "{{ n.l | e }}",
            "{{ n.l | trim }}", "{{ n.l | upper }}", "{{ n.l is lower }}", "{{ n.l | wordcount }}",
            "{{ n.l | replace('a', 'b') }}", "{{ {'a': n.l} | xmlattr }}",
            "{{ raise_exception(n.l) }}", "{{ {}[n.l] }}",
            "{% for x in [n.l, n.m] %}{{ loop.changed(x) }}{% endfor %}",
        )
    ),
    *(
        f"{TUPLES}{use}"
        for use in ("{{ {n.t: 1} }}", "{{ {}.get(n.t) }}", "{{ [n.t] | unique | list }}")
    ),
]  # fmt: skip


@pytest.mark.parametrize("source", WIDE + LONG)
def test_huge_values_and_endless_work_are_refused(source):
    with pytest.raises(LimitExceeded):
        render(source)


@pytest.mark.parametrize("source", LONG[:4])
def test_work_beyond_the_small_limit_needs_a_process(source):
    with pytest.raises(NeedsProcess):
        render(source, is_small=True)


def test_text_beyond_every_limit_is_refused_at_once():
    with pytest.raises(LimitExceeded, match="makes a text or list of 3000000000 characters"):
        render("{{ 'a' * 3000000000 }}", is_small=True)


def test_renderings_share_a_budget():
    budget = Budget()
    environment = make_environment(budget, datetime.now)
    template = environment.from_string("{% for i in range(600) %}{% endfor %}")
    with budget.of(Limits(1000, 1000)):
        environment.render(template, {})
        with pytest.raises(LimitExceeded), budget.of(FULL):  # the outer one counts
            environment.render(template, {})
    with budget.of(Limits(1000, 1000)):
        environment.render(template, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
        "{{ ''.__mul__(2) }}",
        "{{ '' | attr('__mul__')(2) }}",
        "{{ ''.join.__self__.x }}",
        "{{ 'x'.center.__wrapped__(2) }}",
        "{{ [].clear() }}",
        "{{ [].extend([1]) }}",
        "{{ {}.setdefault(1, 2) }}",
    ],
)
def test_internals_of_python_are_refused(source):
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '{:>5}|{a!r}|{0[0]}'.format('xy', a='z') }}", "   xy|'z'|x"),
        ("{{ '{a}{b}'.format_map({'a': 1, 'b': [2]}) }}", "1[2]"),
        ("{{ 'a'.center(5) }}|{{ 'a' | center(5) }}|{{ '7'.zfill(3) }}", "  a  |  a  |007"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '+') }}", "a+ba+b"),
        ("{{ ','.join(['a', 'b'] | map('upper')) }}{{ [1, 2] | join('-') }}", "A,B1-2"),
        ("{{ [{'n': 'a'}, {'n': 'b'}] | join('+', attribute='n') }}", "a+b"),
        ("{{ [1, 2, 3] | sum }}{{ [{'n': 2}] | sum('n', 1) }}", "63"),
        ("{{ 'a\\nb' | indent(2) }}{{ 'a b' | wordwrap(1) }}", "a\n  ba\nb"),
        ("{{ '%s-%03d' | format('x', 7) }}{{ '%(a)s' % {'a': 1} }}", "x-0071"),
        ("{{ 'abc'[::-1] }}{{ [1, 2, 3][1:] }}{{ (1, 2)[0] }}", "cba[2, 3]1"),
        ("{{ 1 in [1] }}{{ 'a' in 'abc' }}{{ (1, 2) == (1, 2) }}", "TrueTrueTrue"),
        ("{{ [[1, 2], [3]] | batch(1) | list | length }}{{ 1.25 | round(1) }}", "21.2"),
        ("{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}", "1223"),
        ("{% macro m(a) %}<{{ a }}{{ varargs }}>{% endmacro %}{{ m(1, 2) }}", "<1(2,)>"),
        ("{% set l = [1] %}{% set x = l.append(2) %}{{ l }}", "[1, 2]"),
        ("{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}{{ '5' | int + 1 }}", "[1, 3][1]6"),
        ("{% autoescape true %}{{ '<' }}{{ '<' | safe }}{% endautoescape %}{{ '<' }}", "&lt;<<"),
        ("{{ none }}{{ 1.5 }}{{ missing }}{{ true }}{{ (1).bit_length() }}", "None1.5True1"),
        ("{{ dict(a=1).a }}{{ namespace(b=2).b }}{{ 'a b'.split() }}", "12['a', 'b']"),
    ],
)  # fmt: skip
def test_bounded_operations_keep_their_results(source, text):
    assert render(source) == text
