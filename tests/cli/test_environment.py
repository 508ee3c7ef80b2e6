from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.cli.environment import (
    IGNORED,
    VARIABLES,
    extra_arguments,
    read_environment,
    unused_variables,
)
from fastovms.cli.flags import FLAGS
from fastovms.config import CHAT, ENGINE, HTTP, REPOSITORY, SOURCE, STATE
from fastovms.errors import ConfigurationError


def test_runpods_variables():
    environ = {
        "MODEL_NAME": "org/model",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "a, b",
        "MAX_MODEL_LEN": "8k",
        "MAX_NUM_SEQS": "16",
        "MAX_NUM_BATCHED_TOKENS": "0",
        "ENABLE_PREFIX_CACHING": "No",
        "BASE_PATH": "/runpod-volume",
        "RAW_OPENAI_OUTPUT": "1",
        "ROOT_PATH": "/v2/abc/openai",
        "MAX_LOGPROBS": "",
        "TOOL_CALL_PARSER": "hermes",
        "REASONING_PARSER": "qwen3",
        "OPENAI_RESPONSE_ROLE": "model",
        "CUSTOM_CHAT_TEMPLATE": "{{ messages }}",
        "FASTOVMS_STATE_URL": "postgresql://db/state",
        "PATH": "/bin",
    }
    assert read_environment(environ).given == {
        SOURCE.location: "org/model",
        SOURCE.names: ("a", "b"),
        ENGINE.max_model_len: 8000,
        ENGINE.max_num_seqs: 16,
        ENGINE.enable_prefix_caching: False,
        REPOSITORY.path: Path("/runpod-volume"),
        HTTP.root_path: "/v2/abc/openai",
        CHAT.tool_parser: "hermes3",
        CHAT.reasoning_parser: "qwen3",
        CHAT.response_role: "model",
        CHAT.chat_template: "{{ messages }}",
        STATE.state_url: "postgresql://db/state",
    }
    assert [line.split()[0] for line in unused_variables(environ)] == ["RAW_OPENAI_OUTPUT"]


def test_the_override_goes_before_the_name():
    environ = {"SERVED_MODEL_NAME": "a", "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "b"}
    assert read_environment(environ).given == {SOURCE.names: ("b",)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_MODEL_LEN", "long", "must be a number of tokens from 1 to 2147483647"),
        ("MAX_NUM_SEQS", "0", "must be an integer at least 1, not '0'"),
        ("ENABLE_PREFIX_CACHING", "maybe", "must be true or false, not 'maybe'"),
        ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "a,,b", "must be names between commas"),
        ("TOOL_CALL_PARSER", "mine", "must be auto, none, "),
        ("ROOT_PATH", "v2", "must be a path that begins with /"),
    ],
)
def test_a_wrong_variable_is_named(name, value, message):
    with pytest.raises(ConfigurationError) as caught:
        read_environment({name: value})
    assert str(caught.value).startswith(f"{name} in the environment {message}")


def test_extra_arguments():
    assert extra_arguments({}) == []
    assert extra_arguments({"VLLM_EXTRA_ARGS": "--a 'b c'"}) == ["--a", "b c"]
    with pytest.raises(ConfigurationError, match="VLLM_EXTRA_ARGS in the environment: No closing"):
        extra_arguments({"VLLM_EXTRA_ARGS": "'"})


def test_variables_set_what_flags_set():
    fields = {flag.field for flag in FLAGS}
    targets = {variable.field for variable in VARIABLES}
    assert targets <= fields | {SOURCE.location, SOURCE.names}
    assert not {variable.name for variable in VARIABLES} & set(IGNORED)
