from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.aliases import ALIASES, normalize
from fastovms.cli.flags import FLAGS, add_flags, read_flags
from fastovms.cli.model_flags import REASONING_PARSERS_OF_VLLM, TOOL_PARSERS_OF_VLLM
from fastovms.cli.unused_flags import FOREIGN_FLAGS, add_foreign_flags, unused_flags
from fastovms.config import (
    ApiConfig,
    EngineConfig,
    HttpConfig,
    MediaConfig,
    RepositoryConfig,
    SecurityConfig,
    ServiceConfig,
)
from fastovms.settings import (
    CHAT,
    ENGINE,
    FILES,
    HTTP,
    MODEL_SECTIONS,
    SECURITY,
    SERVICE,
    Fields,
    Settings,
)


def arguments_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("command")
    add_flags(parser)
    add_foreign_flags(parser)
    return parser.parse_args(normalize(["serve", *arguments]))


def parse(*arguments: str):
    return read_flags(arguments_of(*arguments))


def test_nothing_given_is_the_defaults():
    given = parse()
    assert given == Settings()
    assert given.section(HttpConfig) == HttpConfig()


@pytest.mark.parametrize("config", [EngineConfig, HttpConfig, SecurityConfig, ServiceConfig])
def test_every_field_has_a_flag(config):
    assert set(vars(Fields(config)).values()) <= {flag.field for flag in FLAGS}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_defaults_can_be_written_as_flags(flag):
    """Defaults pass their own parsers."""
    default = flag.field.default
    is_whole = not flag.repeats and not flag.member
    if flag.parse is not None and default not in (None, ()) and is_whole:
        shown = "{}" if default == {} else flag.show(default)
        assert flag.parse(shown) == default


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--max-body", "2 MiB"], HTTP.max_body, 2 * 1024 * 1024),
        (["--max-body=100"], HTTP.max_body, 100),
        (["--max-head", "8k"], HTTP.max_head, 8192),
        (["--uds-mode", "0666"], HTTP.unix_mode, 0o666),
        (["--head-timeout", "0.5"], HTTP.head_timeout, 0.5),
        (["--ping-interval", "0"], HTTP.ping_interval, 0),
        (["--max-queued-requests", "7"], ENGINE.max_num_queued_requests, 7),
        (["--root-path", "/v2/abc/openai/"], HTTP.root_path, "/v2/abc/openai"),
        (["--root-path", "/"], HTTP.root_path, ""),
        (["--max-model-len", "8192"], ENGINE.max_model_len, 8192),
        (["--max-model-len", "8k"], ENGINE.max_model_len, 8000),
        (["--max-model-len", "1.5K"], ENGINE.max_model_len, 1536),
        (["--max-model-len", "auto"], ENGINE.max_model_len, None),
        (["--max-model-len=-1"], ENGINE.max_model_len, None),
        (["--no-enable-prefix-caching"], ENGINE.enable_prefix_caching, False),
        (["--access-log", "JSON"], SERVICE.access_log, "json"),
        (["--log-level", "DEBUG"], SERVICE.log_level, "debug"),
        (["--api-key-file", "keys"], SECURITY.api_key_file, Path("keys")),
        # Other servers' spellings
        (["--api_key_file", "keys"], SECURITY.api_key_file, Path("keys")),
        (["--allowed_origins=a_b"], SECURITY.allowed_origins, "a_b"),
        (
            ["--allowed-origins", '["http://a", "null"]'],
            SECURITY.allowed_origins,
            "http://a,null",
        ),
        (["--allowed-origins", "*"], SECURITY.allowed_origins, "*"),
        (["--allowed-hosts", "a, b.c"], SECURITY.allowed_hosts, "a,b.c"),
        (["--allow_credentials", "true"], SECURITY.allow_credentials, True),
        (["--allow_credentials=TRUE"], SECURITY.allow_credentials, True),
        (["--allow_credentials", "--port", "1"], SECURITY.allow_credentials, True),
        (["--enable_prefix_caching", "false"], ENGINE.enable_prefix_caching, False),
        (["--rest_port", "9"], HTTP.port, 9),
        (["--rest_bind_address", "::"], HTTP.host, "::"),
        (["--target_device", "GPU"], ENGINE.device, "GPU"),
        (["--tool-call-parser", "hermes"], CHAT.tool_parser, "hermes3"),
        (["--tool_parser", "hermes3"], CHAT.tool_parser, "hermes3"),
        (["--reasoning-parser", "openai_gptoss"], CHAT.reasoning_parser, "gptoss"),
        (["--chat-template", "a.jinja"], CHAT.chat_template, Path("a.jinja")),
        (["--chat-template", "{{ x }}"], CHAT.chat_template, "{{ x }}"),
    ],
)
def test_values(arguments, field, value):
    settings = parse(*arguments)
    assert getattr(settings.section(field.section), field.name) == value
    of_models = {field: value} if field.section in MODEL_SECTIONS else {}
    assert settings.only(*MODEL_SECTIONS) == Settings(of_models)


@pytest.mark.parametrize(
    ("arguments", "host", "port", "listen"),
    [
        ([], "127.0.0.1", 8000, ()),
        (["--port", "1"], "127.0.0.1", 1, ()),
        (["--host", "::1"], "::1", 8000, ()),
        (["--host", "a", "--host=::1", "--host", "b", "--port=1"], "a", 1, ("[::1]:1", "b:1")),
        (["--uds", "/s"], None, 8000, ("unix:/s",)),
        (["--listen", "[::]:1", "--uds", "/s"], None, 8000, ("[::]:1", "unix:/s")),
        (["--uds", "/s", "--port", "1"], "127.0.0.1", 1, ("unix:/s",)),
        (["--uds", "/s", "--host", "h"], "h", 8000, ("unix:/s",)),
    ],
)  # fmt: skip
def test_addresses(arguments, host, port, listen):
    http = parse(*arguments).section(HttpConfig)
    assert (http.host, http.port, http.listen) == (host, port, listen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-body", "0"], "of bytes above 0, such as 65536, 64K or 1G, not '0'"),
        (["--max-body", "1.5M"], "not '1.5M'"),
        (["--allowed-hosts", "a,,b"], "must be names separated by commas, not 'a,,b'"),
        (["--allowed-origins", "[]"], "must be names separated by commas, not '[]'"),
        (["--allowed-origins", '["a", 5]'], "must be names separated by commas"),
        (["--allowed-origins", '["a"'], "must be names separated by commas"),
        (["--max-body", "-1"], "not '-1'"),
        (["--head-timeout", "0"], "must be a number of seconds, more than 0, not '0'"),
        (["--drain-timeout", "-1"], "must be a number of seconds, 0 or more, not '-1'"),
        (["--drain-timeout", "inf"], "not 'inf'"),
        (["--uds-mode", "rw"], "must be three octal digits, such as 660, not 'rw'"),
        (["--uds-mode", "888"], "not '888'"),
        (["--access-log", "yes"], "must be off, text or json, not 'yes'"),
        (["--log-level", "7"], "must be trace, debug, info, warning or error, not '7'"),
        (["--max-connections", "0"], "must be an integer at least 1, not '0'"),
        (["--uds", ""], "must not be empty"),
        (["--root-path", "v2"], "must be a path that begins with /, not 'v2'"),
        (["--root-path", "/a?b"], "not '/a?b'"),
        (["--max-model-len", "0"], "of tokens above 0, such as 8192 or 8k, or auto, not '0'"),
        (["--max-model-len", "1.0001k"], "not '1.0001k'"),
        (["--max-model-len", "8kB"], "not '8kB'"),
    ],
)  # fmt: skip
def test_wrong_values(arguments, message):
    with pytest.raises(argparse.ArgumentError, match=rf"argument {arguments[0]}: .*") as caught:
        parse(*arguments)
    assert message in str(caught.value)


def test_values_are_left_alone():
    assert normalize(["serve", "my_model", "--model_name", "a_b", "true"]) == [
        "serve", "my_model", "--model-name", "a_b", "true",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("", ""),
        ("pull org/a_b", "pull org/a_b"),
        ("--help", "--help"),
        ("-h", "-h"),
        ("--version", "--version"),
        ("--port 1", "serve --port 1"),
        ("serve --port 1", "serve --port 1"),
        ("--pull true --source_model a/b", "serve --pull --source-model a/b"),
        ("--dynamic_split_fuse=false", "serve --no-dynamic-split-fuse"),
        # In OVMS's lines --port is for gRPC, wherever it stands, and the default address any.
        ("--port 9000 --rest_port 8000",
         "serve --grpc-port 9000 --port 8000 --host 0.0.0.0"),
        ("--rest_port=8000 --port=9000", "serve --port=8000 --grpc-port=9000 --host 0.0.0.0"),
        ("serve --rest-port 8000 --rest_bind_address ::1", "serve --port 8000 --host ::1"),
        ("--rest_port 8000 --uds /s", "serve --port 8000 --uds /s"),
    ],
)  # fmt: skip
def test_lines_of_other_servers(line, normal):
    assert normalize(line.split()) == normal.split()


def test_aliases_name_flags():
    names = {flag.name for flag in FLAGS}
    assert set(ALIASES.values()) <= names
    assert not names & set(ALIASES)


OVMS_LINE = """
--port 9000 --rest_port 8000 --grpc_bind_address 0.0.0.0 --rest_bind_address 127.0.0.1
--rest_workers 4 --grpc_workers 1 --task text_generation --target_device CPU --log_level TRACE
--log_path log --cache_size 2 --max_num_seqs 16 --max_num_batched_tokens 512
--enable_prefix_caching true --dynamic_split_fuse true --pipeline_type LM_CB
--kv_cache_precision u8 --draft_source_model org/draft --max_prompt_len 1024
--model_distribution_policy TENSOR_PARALLEL --enable_tool_guided_generation true
--cache_interval_multiplier 8 --file_system_poll_wait_seconds 0 --metrics_enable
--metrics_list ovms_requests_success,ovms_streams --api_key_file keys --verbose_response false
--allowed_local_media_path /media --allowed_media_domains all --allow_credentials false
--allowed_headers * --allowed_methods * --allowed_origins * --weight-format int8
--model_repository_path /models --overwrite_models
--plugin_config {"PERFORMANCE_HINT":"LATENCY"}
"""


def test_a_line_of_ovms():
    arguments = arguments_of(*OVMS_LINE.split())
    settings = read_flags(arguments)
    http = settings.section(HttpConfig)
    assert (http.host, http.port) == ("127.0.0.1", 8000)
    assert settings.section(ServiceConfig).log_file == Path("log")
    assert settings.section(ServiceConfig).ovms_metrics is True
    assert settings.section(RepositoryConfig).path == Path("/models")
    assert settings.section(MediaConfig).allowed_media_domains == "all"
    assert settings.section(MediaConfig).allowed_local_media_path == Path("/media")
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.device: "CPU",
        ENGINE.cache_size: 2.0,
        ENGINE.max_num_seqs: 16,
        ENGINE.max_num_batched_tokens: 512,
        ENGINE.enable_prefix_caching: True,
        ENGINE.draft_model: Path("org/draft"),
        ENGINE.plugin_config: {"PERFORMANCE_HINT": "LATENCY", "KV_CACHE_PRECISION": "u8"},
    }
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {
        "--grpc-port", "--grpc-bind-address", "--grpc-workers", "--rest-workers",
        "--max-prompt-len", "--model-distribution-policy", "--enable-tool-guided-generation",
        "--cache-interval-multiplier", "--metrics-list", "--weight-format",
    }  # fmt: skip


VLLM_LINE = """
--host 0.0.0.0 --port 8000 --api-key a --api-key b --max-model-len 4k --max-num-seqs 8 --dtype auto
--gpu-memory-utilization 0.9 --tensor-parallel-size 1 --enable-prefix-caching
--enable-chunked-prefill --root-path /x --generation-config vllm --enable-auto-tool-choice
--disable-log-requests --no-enable-log-requests --trust-remote-code --max-logprobs 5
--uvicorn-log-level info --swap-space 0
"""


def test_a_line_of_vllm():
    arguments = arguments_of(*VLLM_LINE.split())
    settings = read_flags(arguments)
    assert settings.section(SecurityConfig).api_keys == ("a", "b")
    assert settings.section(HttpConfig).root_path == "/x"
    assert settings.section(ApiConfig).max_logprobs == 5
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.max_model_len: 4000,
        ENGINE.max_num_seqs: 8,
        ENGINE.enable_prefix_caching: True,
        FILES.generation_config: Path("vllm"),
    }
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {"--gpu-memory-utilization", "--trust-remote-code", "--uvicorn-log-level"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rest_workers", "0"], "must be an integer at least 1, not '0'"),
        (["--task", "embeddings"], "must be text_generation, not 'embeddings'"),
        (["--pipeline_type", "cb"], "must be AUTO, LM, VLM, LM_CB, VLM_CB or OMNI, not 'cb'"),
        (["--model_distribution_policy", "X"], "must be TENSOR_PARALLEL or PIPELINE_PARALLEL"),
        (["--kv_cache_precision", "u9"], "must be u8, f16, bf16 or f32, not 'u9'"),
        (["--gpu-memory-utilization", "much"], "must be a number of shares"),
        (["--dtype", "int1"], "not 'int1'"),
        (["--file_system_poll_wait_seconds", "-1"], "must be an integer at least 0"),
    ],
)
def test_wrong_values_of_flags_without_use(arguments, message):
    with pytest.raises(argparse.ArgumentError) as caught:
        arguments_of(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "aliases"),
    [(CHAT.tool_parser, TOOL_PARSERS_OF_VLLM),
     (CHAT.reasoning_parser, REASONING_PARSERS_OF_VLLM)],
)  # fmt: skip
def test_vllms_names_of_parsers_are_names_of_ours(field, aliases):
    [flag] = [flag for flag in FLAGS if flag.field == field]
    for alias, name in aliases.items():
        assert flag.parse(alias) == flag.parse(name) == name


def test_flags_without_use_are_not_those_with_one():
    names = [flag.name for flag in (*FLAGS, *FOREIGN_FLAGS)]
    assert len(names) == len(set(names))
    assert not set(names) & set(ALIASES)
    for flag in FOREIGN_FLAGS:
        assert flag.reason or flag.neutral
