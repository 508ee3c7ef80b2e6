"""Functions have one name each, also those of namespaces."""

from __future__ import annotations

import pytest

from fastovms.api.conversation.tool_targets import ToolTarget, flat_name


@pytest.mark.parametrize(
    ("name", "namespace", "flat"),
    [
        ("add", None, "add"),
        ("add", "", "add"),
        ("add", "add", "add"),
        ("add", "mcp__sums", "mcp__sums__add"),
        ("add", "mcp__sums__", "mcp__sums__add"),
        ("_add", "sums", "sums_add"),
    ],
)
def test_flat_names(name, namespace, flat):
    assert flat_name(name, namespace) == ToolTarget(name, namespace).function == flat
