"""Sealed reasoning and summaries are read again, and only ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.conversation.sealed_text import (
    seal,
    seal_summary,
    told_summary,
    unseal,
    unseal_summary,
)


@given(st.text())
def test_sealed_reasoning_is_read_again(text):
    assert unseal(seal(text)) == text
    assert unseal_summary(seal_summary(text)) == text
    assert told_summary(seal_summary(text)).endswith(f":\n{text}")


@pytest.mark.parametrize("content", ["gAAAAAB_other", "/+8=", "ü"])
def test_what_another_server_has_sealed_is_nothing(content):
    assert unseal(content) == unseal_summary(content) == ""


def test_reasoning_is_no_summary():
    assert unseal_summary(seal("hm")) == ""
