from __future__ import annotations

import pytest

from fastovms.backends.paged.context_window import fit_length, fit_window, sliding_window
from fastovms.engine.model.graph.paging import ExactLength
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 0}, None),
        ({"sliding_window": "4096"}, None),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}, 512),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 2}, None),
        ({"text_config": {"sliding_window": 512}}, 512),
        ({"window_size": 256, "attention_layers": ["global", "local"]}, 256),
        ({"window_size": 256, "attention_layers": ["global"]}, None),
        ({"attention_chunk_size": 512, "layer_types": ["chunked_attention"]}, 512),
        ({"sliding_window": 9, "text_config": {}}, None),
    ],
)
def test_what_config_json_says_of_a_window(config: dict[str, object], expected: int | None) -> None:
    assert sliding_window(config) == expected


@pytest.mark.parametrize(
    ("window", "is_applied", "expected"),
    [(100, False, 100), (100, True, 1000), (2000, False, 1000), (None, False, 1000)],
)
def test_a_window_that_the_graph_does_not_apply_limits_the_context(
    caplog: pytest.LogCaptureFixture, window: int | None, is_applied: bool, expected: int
) -> None:
    config = {"sliding_window": window}
    model = ModelInfo("m", 0, 1000, 100, frozenset(), config=config)
    assert fit_window(model, is_applied=is_applied).max_model_len == expected
    assert ("context length reduced from 1000 to its 100" in caplog.text) is (expected == 100)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(16, 16), (999, 999), (1000, 1000), (5000, 1000)]
)
def test_the_context_shrinks_to_what_is_exact(
    caplog: pytest.LogCaptureFixture, num_tokens: int, expected: int
) -> None:
    model = ModelInfo("m", 0, 1000, 100, frozenset())
    assert fit_length(model, None) is model
    assert fit_length(model, ExactLength(num_tokens, "so it is")).max_model_len == expected
    assert ("as so it is: context length reduced" in caplog.text) is (expected < 1000)


def test_a_model_for_hardly_any_text_is_refused() -> None:
    model = ModelInfo("m", 0, 1000, 100, frozenset())
    with pytest.raises(ConfigurationError, match="m cannot be served: so it is"):
        fit_length(model, ExactLength(15, "so it is"))
