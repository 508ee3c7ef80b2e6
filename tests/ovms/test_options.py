"""Tests of the table of OVMS's options, which all readers use."""

from __future__ import annotations

from collections import Counter

import pytest

from fastovms.cli.environment import read_environment
from fastovms.cli.flags import FLAGS
from fastovms.cli.foreign_flags import ALIASES
from fastovms.cli.foreign_tables import OVMS_FLAGS
from fastovms.parts.ovms.options import OVMS_OPTIONS

PLACES = ("flag", "graph", "device_property", "pipeline_property", "member", "variable")


def names_of(option) -> list[str]:
    return [name for place in PLACES if (name := getattr(option, place))]


@pytest.mark.parametrize("option", OVMS_OPTIONS, ids=lambda option: names_of(option)[0])
def test_every_option_has_a_use_or_a_reason(option):
    assert (option.field is None) != (option.unused is None)


@pytest.mark.parametrize("place", PLACES)
def test_names_of_options_are_unique(place):
    names = Counter(name for option in OVMS_OPTIONS if (name := getattr(option, place)))
    assert max(names.values()) == 1


def test_every_flag_of_the_table_is_accepted():
    """By its name, or as another name of a flag of the same field, or as an unused flag."""
    ours = {flag.name: flag.field for flag in FLAGS}
    unused = {flag.name for flag in OVMS_FLAGS}
    for option in OVMS_OPTIONS:
        if option.flag and option.field is not None:
            assert ours[ALIASES.get(option.flag, option.flag)] == option.field
        elif option.flag:
            assert option.flag in unused


def test_every_variable_of_the_table_is_read():
    for option in OVMS_OPTIONS:
        if option.variable and option.field is not None:
            value = "1" if option.kind is bool else "/a"
            assert option.field in read_environment({option.variable: value}).settings.given
