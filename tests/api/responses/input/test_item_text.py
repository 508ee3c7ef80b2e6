"""Sealed reasoning is read again, and only ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.responses.input.item_text import seal, unseal


@given(st.text())
def test_sealed_reasoning_is_read_again(text):
    assert unseal(seal(text)) == text


@pytest.mark.parametrize("content", ["gAAAAAB_other", "/+8=", "ü"])
def test_what_another_server_has_sealed_is_nothing(content):
    assert unseal(content) == ""
