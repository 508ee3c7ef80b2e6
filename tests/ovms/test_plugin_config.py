from __future__ import annotations

import pytest

from fastovms.errors import ConfigurationError
from fastovms.ovms.plugin_config import parse_plugin_config, read_plugin_config


def test_text():
    assert parse_plugin_config("") == parse_plugin_config(" \n") == {}
    assert parse_plugin_config('{"NUM_STREAMS": "1"}') == {"NUM_STREAMS": "1"}
    for text in ("{", "[]", "1", "NUM_STREAMS=1"):
        with pytest.raises(ConfigurationError, match="must be a JSON object"):
            parse_plugin_config(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(True, True), (False, False), ("true", True), ("False", False), (None, None)],
)
def test_prompt_lookup_is_not_for_the_device(given, expected):
    config = read_plugin_config({"prompt_lookup": given, "CACHE_DIR": "/c", "NUM_STREAMS": 1})
    assert config == ({"CACHE_DIR": "/c", "NUM_STREAMS": 1}, expected, [])


def test_what_is_for_other_pipelines_is_told():
    config = read_plugin_config({"MAX_PROMPT_LEN": 1024, "ATTENTION_BACKEND": "SDPA"})
    assert config.properties == {}
    assert config.unused == [
        "plugin_config MAX_PROMPT_LEN is not used: it is for NPUs",
        "plugin_config ATTENTION_BACKEND is not used: attention is always paged",
    ]


@pytest.mark.parametrize(
    "config", [{"prompt_lookup": 1}, {"prompt_lookup": "yes"}, {"A": None}, {"A": [1]}, {"A": {}}]
)
def test_values_that_none_can_have(config):
    with pytest.raises(ConfigurationError, match=f"plugin_config {next(iter(config))} must be"):
        read_plugin_config(config)
