from __future__ import annotations

import pytest

from fastovms.ovms.calculators import CALCULATORS


@pytest.mark.parametrize("name", CALCULATORS)
def test_every_option_sets_something_or_says_why_not(name):
    calculator = CALCULATORS[name]
    assert calculator.group.required == ("models_path",)
    assert set(calculator.group.options) == set(calculator.options)
    for option in calculator.options.values():
        is_used = option.field is not None or option.unused is not None
        assert is_used or option.neutral
