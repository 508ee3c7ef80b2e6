"""What no exported graph has is said in the log."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.backends.model_files.export_gaps import log_gaps
from fastovms.params import ModelInfo


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ""),
        ({"attn_logit_softcapping": None}, ""),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping (50), the soft cap"),
        ({"text_config": {"attn_logit_softcapping": 30.5}}, "attn_logit_softcapping (30.5)"),
        ({"rope_scaling": None}, ""),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ""),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "no dynamic scaling"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "no dynamic scaling"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ""),
    ],
)
def test_gaps(config: dict[str, Any], expected: str, caplog: pytest.LogCaptureFixture) -> None:
    log_gaps(ModelInfo("m", 0, 1000, 100, frozenset(), config=config))
    assert expected in caplog.text
    assert bool(caplog.text) is bool(expected)
