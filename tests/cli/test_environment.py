"""Tests of `fastovms/cli/environment.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.cli.environment import (
    VARIABLES,
    extra_arguments,
    read_config_file,
    read_environment,
    set_variables,
)
from fastovms.errors import ConfigurationError
from fastovms.server_config import (
    CHAT,
    ENGINE,
    FILES,
    HTTP,
    MEDIA,
    REPOSITORY,
    SECURITY,
    SOURCE,
    STATE,
)

# The flags of vLLM 0.27.1 that variables of Runpod's worker set, as the worker lists them
# (worker-vllm of 2026-08-20): switches, flags with a value, and those that vLLM has removed.
SWITCHES, VALUES, REMOVED = (
    part.split() for part in (Path(__file__).parent / "worker_flags.txt").read_text().split("\n\n")
)


def test_only_variables_with_an_effect_are_listed():
    environ = {
        "API_KEY": "secret", "TASK": "embeddings", "MAX_MODEL_LEN": "8k", "HOME": "/", "SEED": "1",
        "DTYPE": "auto", "REVISION": " ", "OVMS_MODEL_REPOSITORY_PATH": "/m",
        "VLLM_EXTRA_ARGS": "--port 1",
    }  # fmt: skip
    assert set(set_variables(environ)) == {
        "API_KEY", "TASK", "MAX_MODEL_LEN", "OVMS_MODEL_REPOSITORY_PATH", "VLLM_EXTRA_ARGS",
    }  # fmt: skip


def test_blank_variables_set_nothing():
    environ = {"MAX_NUM_SEQS": "  ", "MODEL_NAME": ""}
    assert read_environment(environ) == read_environment({})
    assert read_environment({"MAX_NUM_SEQS": " 16 "}) == read_environment({"MAX_NUM_SEQS": "16"})


def test_runpod_variables_become_settings():
    environ = {
        "MODEL_NAME": "org/model",
        "MODEL_REVISION": "v2",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "a, b",
        "MAX_MODEL_LEN": "8k",
        "MAX_NUM_SEQS": "16",
        "MAX_NUM_BATCHED_TOKENS": "0",
        "ENABLE_PREFIX_CACHING": "No",
        "TRUST_REQUEST_CHAT_TEMPLATE": "on",
        "BASE_PATH": "/runpod-volume",
        "RAW_OPENAI_OUTPUT": "1",
        "ROOT_PATH": "/v2/abc/openai",
        "MAX_LOGPROBS": "",
        "TOOL_CALL_PARSER": "hermes",
        "REASONING_PARSER": "qwen3",
        "OPENAI_RESPONSE_ROLE": "model",
        "CUSTOM_CHAT_TEMPLATE": "{{ messages }}",
        "DISABLE_FASTAPI_DOCS": "true",
        "ENABLE_LORA": "false",
        "DEFAULT_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
        "OVERRIDE_GENERATION_CONFIG": '{"temperature": 0.5}',
        "SPECULATIVE_CONFIG": '{"model": "/draft", "num_speculative_tokens": 3}',
        "GPU_MEMORY_UTILIZATION": "0.95",
        "SEED": "0",
        "DTYPE": "auto",
        "ENFORCE_EAGER": "false",
        "ENABLE_EXPERT_PARALLEL": "true",
        "FASTOVMS_STATE_URL": "postgresql://db/state",
        "OVMS_MEDIA_URL_ALLOW_REDIRECTS": "1",
        "HF_TOKEN": "secret",
        "HOST": "me",
        "PORT": "1",
        "API_KEY": "k",
        "PATH": "/bin",
    }
    found = read_environment(environ)
    assert found.settings.given == {
        SOURCE.location: "org/model",
        SOURCE.names: ("a", "b"),
        ENGINE.max_model_len: 8000,
        ENGINE.max_num_seqs: 16,
        ENGINE.enable_lora: False,
        ENGINE.enable_prefix_caching: False,
        ENGINE.draft_model: Path("/draft"),
        REPOSITORY.path: Path("/runpod-volume"),
        REPOSITORY.revision: "v2",
        HTTP.root_path: "/v2/abc/openai",
        SECURITY.enable_docs: False,
        CHAT.tool_parser: "hermes3",
        CHAT.reasoning_parser: "qwen3",
        CHAT.response_role: "model",
        CHAT.chat_template: "{{ messages }}",
        CHAT.trust_request_chat_template: True,
        CHAT.default_chat_template_kwargs: {"enable_thinking": False},
        FILES.override_generation_config: {"temperature": 0.5},
        STATE.state_url: "postgresql://db/state",
        MEDIA.allow_media_redirects: True,
    }
    assert sorted(line.split(" in the environment is not used: ")[0] for line in found.unused) == [
        "ENABLE_EXPERT_PARALLEL",
        "GPU_MEMORY_UTILIZATION",
        "RAW_OPENAI_OUTPUT",
        "SEED",
    ]


def test_name_override_precedes_the_name():
    environ = {"SERVED_MODEL_NAME": "a", "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "b"}
    assert read_environment(environ).settings.given == {SOURCE.names: ("b",)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_MODEL_LEN", "long", "must be a number of tokens from 1 to 2147483647"),
        ("MAX_NUM_SEQS", "0", "must be an integer at least 1, not '0'"),
        ("ENABLE_PREFIX_CACHING", "maybe", "must be true or false, not 'maybe'"),
        ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "a,,b", "must be names between commas"),
        ("TOOL_CALL_PARSER", "mine", "must be auto, none, "),
        ("ROOT_PATH", "v2", "must be a path that begins with /"),
        ("DTYPE", "int2", "must be auto, half, "),
        ("ENABLE_LORA", "perhaps", "must be true or false, not 'perhaps'"),
        ("LORA_MODULES", "a", "must be NAME=PATH, or JSON such as"),
        ("LORA_MODULES", '{"name": "a"}', "must be NAME=PATH, or JSON such as"),
        ("LORA_MODULES", "a=/b,a=/c", "has a twice"),
        ("MAX_LORAS", "0", "must be an integer at least 1, not '0'"),
        ("MAX_LORA_RANK", "513", "must be an integer from 1 to 512, not '513'"),
        ("MIDDLEWARE", "a.b", "is not supported: code of others"),
        ("LOGPROBS_MODE", "processed_logprobs", "must be raw_logprobs, not"),
        ("SPECULATIVE_CONFIG", '{"method": "dflash"}', 'must have a "model" that drafts'),
        ("SPECULATIVE_CONFIG", "ngram", "must be a JSON object, not 'ngram'"),
    ],
)
def test_wrong_variable_is_refused_by_name(name, value, message):
    with pytest.raises(ConfigurationError) as caught:
        read_environment({name: value})
    assert str(caught.value).startswith(f"{name} in the environment {message}")


NEUTRAL = frozenset(("LOGPROBS_MODE", "SSL_CERT_REQS"))
"""Variables with a single accepted value, which is the server's behaviour anyway."""


@pytest.mark.parametrize("name", sorted({*VALUES, *SWITCHES, *REMOVED}))
def test_every_flag_of_the_worker_has_an_effect_or_a_reason(name):
    """Each variable sets something, or is named in the log or in an error with a reason."""
    variable = name.replace("-", "_").upper()
    if variable in ("HOST", "PORT", "API_KEY", "MODEL", "CONFIG", "HF_TOKEN"):
        assert variable not in VARIABLES  # the worker does not read them either
        return
    values = ["true", "false"] if name in (*SWITCHES, *REMOVED) else []
    values += ["1", "2", "a=b", '{"a": 1}', "/", "half", "fcfs", "http://a/b", "openai", "qwen3"]
    values += ["hermes", "embed"]
    values += ['{"model": "a"}', "ngram"]
    named = 0
    for value in values:
        try:
            found = read_environment({variable: value})
        except ConfigurationError as error:
            told = str(error)
            named += told.startswith(f"{variable} in the environment is not supported: ")
        else:
            told = "".join(found.unused)
            named += bool(found.settings.given) or told.startswith(
                f"{variable} in the environment is not used: "
            )
        assert not told or told.startswith(f"{variable} in the environment ")
        if named:  # each reading builds the parser of all flags anew
            break
    assert named or variable in NEUTRAL, variable


def test_vllm_extra_args_are_split_like_a_shell_line():
    assert extra_arguments({}) == []
    assert extra_arguments({"VLLM_EXTRA_ARGS": "--a 'b c'"}) == ["--a", "b c"]
    with pytest.raises(ConfigurationError, match="VLLM_EXTRA_ARGS in the environment: No closing"):
        extra_arguments({"VLLM_EXTRA_ARGS": "'"})


@pytest.mark.parametrize(
    "value",
    [
        "a=/x,b=/y",
        '[{"name": "a", "path": "/x"}, {"name": "b", "path": "/y", "base_model_name": "m"}]',
    ],
)
def test_adapters_are_read_from_variables(value):
    found = read_environment({"LORA_MODULES": value, "MAX_LORAS": "2", "ENABLE_LORA": "true"})
    assert found.settings.given == {
        ENGINE.enable_lora: True,
        ENGINE.lora_modules: {"a": Path("/x"), "b": Path("/y")},
        ENGINE.max_loras: 2,
    }


@pytest.mark.parametrize("form", ["a=/x", '{"name": "a", "path": "/x"}', "[a=/x, b=/y]"])
def test_adapters_are_read_from_a_file(tmp_path: Path, form: str):
    path = tmp_path / "config.yaml"
    path.write_text(f"lora-modules: {form}")
    expected = {"a": Path("/x")} | ({"b": Path("/y")} if "b=" in form else {})
    assert read_config_file(path).settings.given == {ENGINE.lora_modules: expected}


def test_config_file_of_vllm_becomes_settings(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(
        """
        model: org/model
        served-model-name: [a, b]
        port: 8100
        uvicorn-log-level: info
        max_num_seqs: 16
        enable-prefix-caching: false
        allowed-origins: ["https://a", "https://b"]
        default-chat-template-kwargs: {enable_thinking: false}
        api-key: [k1, k2]
        enable-lora: false
        tensor-parallel-size: 2
        cache-size: 1.5
        max-logprobs: null
        """
    )
    found = read_config_file(path)
    assert found.settings.given == {
        SOURCE.location: "org/model",
        SOURCE.names: ("a", "b"),
        HTTP.port: 8100,
        ENGINE.max_num_seqs: 16,
        ENGINE.enable_lora: False,
        ENGINE.cache_size: 1.5,
        ENGINE.enable_prefix_caching: False,
        SECURITY.allowed_origins: "https://a,https://b",
        SECURITY.api_keys: ("k1", "k2"),
        CHAT.default_chat_template_kwargs: {"enable_thinking": False},
    }
    assert [line.split(" is not used: ")[0] for line in found.unused] == [
        f"uvicorn-log-level in {path}",
        f"tensor-parallel-size in {path}",
    ]
    path.write_text("# nothing")
    assert not read_config_file(path).settings.given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "cannot be read: mapping values are not allowed here"),
        ("[1]", "must be a YAML object"),
        ("1: 2", "must be a YAML object"),
        ("max-num-seqs: 0", "max-num-seqs in {path} must be an integer at least 1, not '0'"),
        (
            "enable-prefix-caching: 5",
            "enable-prefix-caching in {path} must be true or false, not 5",
        ),
        ("no-such: 5", "no-such in {path} is not a flag that a file or a variable may set"),
        ("config: a", "config in {path} is not a flag that a file or a variable may set"),
        ("lora-modules: [a]", "lora-modules in {path} must be NAME=PATH"),
        ("lora-modules: [' =b']", "lora-modules in {path} must be NAME=PATH"),
        (
            'lora-modules: ["a\\tb=c"]',
            "lora-modules in {path} has a name that must be at most 256 printable characters, not "
            "'a\\tb'",
        ),
        ("lora-modules: [a=b, a=c]", "lora-modules in {path}: --lora-modules has a twice: b and c"),
        ("!!python/object/apply:os.system [ls]", "cannot be read: could not determine a constr"),
    ],
)
def test_wrong_config_file_is_refused_by_name(tmp_path: Path, text: str, message: str):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_config_file(path)
    expected = message if "{path}" in message else f"{{path}} {message}"
    assert str(caught.value).startswith(expected.format(path=path))


def test_missing_config_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_config_file(tmp_path / "none.yaml")
