from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.flags import FLAGS, add_flags, read_flags
from fastovms.cli.foreign_flags import add_foreign_flags, normalize_serve
from fastovms.config import EngineConfig, HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.server_config import (
    CHAT,
    ENGINE,
    HTTP,
    MODEL_SECTIONS,
    SECURITY,
    SERVICE,
    Fields,
    SecurityConfig,
    ServiceConfig,
    Settings,
)
from fastovms.text.reasoning import REASONING_FORMAT_ALIASES
from fastovms.text.tools import TOOL_FORMAT_ALIASES


def arguments_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    add_foreign_flags(parser)
    return parser.parse_args(normalize_serve(arguments))


def parse(*arguments: str):
    return read_flags(arguments_of(*arguments))


def test_empty_command_line_gives_the_defaults():
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
    is_whole = not flag.repeats and not flag.merges and not flag.member
    if flag.kind.parse is not None and default not in (None, ()) and is_whole:
        shown = "{}" if default == {} else flag.kind.show(default)
        assert flag.kind.parse(shown) == default


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
        (["--max-model-len", "1.000001m"], ENGINE.max_model_len, 1_000_001),
        (["--max-model-len", "2147483647"], ENGINE.max_model_len, 2**31 - 1),
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
def test_flag_sets_the_field_of_its_section(arguments, field, value):
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
def test_host_port_and_socket_flags_become_addresses(arguments, host, port, listen):
    http = parse(*arguments).section(HttpConfig)
    assert (http.host, http.port, http.listen) == (host, port, listen)


@pytest.mark.parametrize(
    ("field", "aliases"),
    [(CHAT.tool_parser, TOOL_FORMAT_ALIASES),
     (CHAT.reasoning_parser, REASONING_FORMAT_ALIASES)],
)  # fmt: skip
def test_vllms_names_of_parsers_are_names_of_ours(field, aliases):
    [flag] = [flag for flag in FLAGS if flag.field == field]
    for alias, name in aliases.items():
        assert flag.kind.parse(alias) == flag.kind.parse(name) == name


CACHE_OF_U8 = ["--plugin-config", '{"KV_CACHE_PRECISION": "u8"}']


def test_two_flags_with_the_same_value_are_accepted():
    given = parse("--kv-cache-precision", "u8", *CACHE_OF_U8).given
    assert given[ENGINE.plugin_config] == {"KV_CACHE_PRECISION": "u8"}


def test_flags_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match=r"-precision f16 contradicts .* u8"):
        parse("--kv-cache-precision", "f16", *CACHE_OF_U8)
