"""What shortens a model's context, and who is told why."""

from __future__ import annotations

import pytest

from fastovms.api.request.prompting.prompts import context_exceeded
from fastovms.backends.model_files.context_length import fit_cache, limit_context
from fastovms.errors import ConfigurationError
from tests.fakes import model_info

MODEL = model_info(max_model_len=500)


def test_the_operator_may_offer_less_context() -> None:
    assert limit_context(MODEL, None) is MODEL
    assert limit_context(MODEL, 7).max_model_len == 7
    with pytest.raises(ConfigurationError, match=r"at most 500, .* not 10000000"):
        limit_context(MODEL, 10_000_000)


@pytest.mark.parametrize("num_tokens", [500, 10_000])
def test_a_cache_that_holds_all_changes_nothing(num_tokens: int) -> None:
    assert fit_cache(MODEL, num_tokens) is MODEL


def test_a_small_cache_is_told_to_operators_and_clients(caplog: pytest.LogCaptureFixture) -> None:
    model = fit_cache(MODEL, 40)
    assert model.max_model_len == 40
    assert "context length reduced from 500 to the 40 tokens that the KV cache" in caplog.text
    assert context_exceeded("the prompt has 60 tokens", model, "prompt").message == (
        "This model's maximum context length is 40 tokens, but the prompt has 60 tokens. "
        "The KV cache of this server holds no more; without that limit it would be 500 tokens."
    )
    told = context_exceeded("the prompt has 900 tokens", MODEL, "prompt").message
    assert told.endswith("500 tokens, but the prompt has 900 tokens.")
