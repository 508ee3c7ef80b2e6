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
def test_default_of_a_flag_passes_its_own_parser(flag):
    default = flag.field.default
    is_whole = not flag.repeats and not flag.merges and not flag.member
    if flag.kind.parse is not None and default not in (None, ()) and is_whole:
        shown = "{}" if default == {} else flag.kind.show(default)
        assert flag.kind.parse(shown) == default


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--max-body", "2 MiB"], HTTP.max_body, 2 * 1024 * 1024),
        (["--max-body", "1g"], HTTP.max_body, 1024**3),
        (["--drain-timeout", "1.5H"], HTTP.drain_timeout, 5400.0),
        (["--drain-timeout", "500 ms"], HTTP.drain_timeout, 0.5),
        (["--drain-timeout", "1e3"], HTTP.drain_timeout, 1000.0),
        (["--forwarded-allow-ips", "10.0.0.0/8, ::1,*"], HTTP.forwarded_allow_ips,
         "10.0.0.0/8,::1,*"),
        (["--max-head", "8k"], HTTP.max_head, 8192),
        (["--uds-mode", "0666"], HTTP.unix_mode, 0o666),
        (["--ping-interval", "0"], HTTP.ping_interval, 0),
        (["--root-path", "/v2/abc/openai/"], HTTP.root_path, "/v2/abc/openai"),
        (["--root-path", "/"], HTTP.root_path, ""),
        (["--max-model-len", "8k"], ENGINE.max_model_len, 8000),
        (["--max-model-len", "1.000001m"], ENGINE.max_model_len, 1_000_001),
        (["--max-model-len", "1.5K"], ENGINE.max_model_len, 1536),
        (["--max-model-len", "auto"], ENGINE.max_model_len, None),
        (["--max-model-len=-1"], ENGINE.max_model_len, None),
        (["--no-enable-prefix-caching"], ENGINE.enable_prefix_caching, False),
        (["--access-log", "JSON"], SERVICE.access_log, "json"),
        # Other servers' spellings
        (["--api_key_file", "keys"], SECURITY.api_key_file, Path("keys")),
        (["--allowed-origins", '["http://a", "null"]'], SECURITY.allowed_origins, "http://a,null"),
        (["--allowed-hosts", "a, b.c"], SECURITY.allowed_hosts, "a,b.c"),
        (["--allow_credentials=TRUE"], SECURITY.allow_credentials, True),
        (["--allow_credentials", "--port", "1"], SECURITY.allow_credentials, True),
        (["--enable_prefix_caching", "false"], ENGINE.enable_prefix_caching, False),
        (["--rest_port", "9"], HTTP.port, 9),
        (["--rest_bind_address", "::"], HTTP.host, "::"),
        (["--target_device", "GPU"], ENGINE.device, "GPU"),
        (["--tool_parser", "hermes3"], CHAT.tool_parser, "hermes3"),
        (["--chat-template", "a.jinja"], CHAT.chat_template, Path("a.jinja")),
        (["--chat-template", "{{ x }}"], CHAT.chat_template, "{{ x }}"),
    ],
)  # fmt: skip
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
def test_parser_names_of_vllm_are_aliases(field, aliases):
    [flag] = [flag for flag in FLAGS if flag.field == field]
    for alias, name in aliases.items():
        assert flag.kind.parse(alias) == flag.kind.parse(name) == name


def test_flags_of_one_property_must_agree():
    of_u8 = ["--plugin-config", '{"KV_CACHE_PRECISION": "u8"}']
    given = parse("--kv-cache-precision", "u8", *of_u8).given
    assert given[ENGINE.plugin_config] == {"KV_CACHE_PRECISION": "u8"}
    with pytest.raises(ConfigurationError, match=r"-precision f16 contradicts .* u8"):
        parse("--kv-cache-precision", "f16", *of_u8)
