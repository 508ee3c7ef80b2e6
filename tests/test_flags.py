from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from fastovms import flags
from fastovms.config import EngineConfig, HttpConfig, SecurityConfig, ServiceConfig
from fastovms.flags import GROUPS, add_flags, given, normalize, sections


def arguments_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    return parser.parse_args(normalize(arguments))


def parse(*arguments: str):
    return sections(arguments_of(*arguments))


FLAGS = [flag for group in GROUPS.values() for flag in group]


def test_nothing_given_is_the_defaults():
    given = parse()
    assert given["http"] == HttpConfig()
    assert all(section == type(section)() for section in given.values())
    assert "engine" not in given, "each model has its own"


@pytest.mark.parametrize("config", [EngineConfig, HttpConfig, SecurityConfig, ServiceConfig])
def test_every_field_has_a_flag(config):
    name = config.__name__.removesuffix("Config").lower()
    fields = {f"{name}.{field.name}" for field in dataclasses.fields(config)}
    assert fields <= {flag.field for flag in FLAGS}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_defaults_can_be_written_as_flags(flag):
    """Defaults pass their own parsers."""
    if flag.parse is not None and flag.default not in (None, ()) and not flag.repeats:
        shown = "{}" if flag.default == {} else flag.show(flag.default)
        assert flag.parse(shown) == flag.default


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--max-body", "2 MiB"], "http.max_body", 2 * 1024 * 1024),
        (["--max-body=100"], "http.max_body", 100),
        (["--max-head", "8k"], "http.max_head", 8192),
        (["--uds-mode", "0666"], "http.unix_mode", 0o666),
        (["--head-timeout", "0.5"], "http.head_timeout", 0.5),
        (["--ping-interval", "0"], "http.ping_interval", 0),
        (["--max-queued-requests", "7"], "engine.max_num_queued_requests", 7),
        (["--root-path", "/v2/abc/openai/"], "http.root_path", "/v2/abc/openai"),
        (["--root-path", "/"], "http.root_path", ""),
        (["--max-model-len", "8192"], "engine.max_model_len", 8192),
        (["--max-model-len", "8k"], "engine.max_model_len", 8000),
        (["--max-model-len", "1.5K"], "engine.max_model_len", 1536),
        (["--max-model-len", "auto"], "engine.max_model_len", None),
        (["--max-model-len=-1"], "engine.max_model_len", None),
        (["--no-enable-prefix-caching"], "engine.enable_prefix_caching", False),
        (["--access-log", "JSON"], "service.access_log", "json"),
        (["--log-level", "DEBUG"], "service.log_level", "debug"),
        (["--api-key-file", "keys"], "security.api_key_file", Path("keys")),
        # Other servers' spellings
        (["--api_key_file", "keys"], "security.api_key_file", Path("keys")),
        (["--allowed_origins=a_b"], "security.allowed_origins", "a_b"),
        (["--allow_credentials", "true"], "security.allow_credentials", True),
        (["--allow_credentials=TRUE"], "security.allow_credentials", True),
        (["--allow_credentials", "--port", "1"], "security.allow_credentials", True),
        (["--enable_prefix_caching", "false"], "engine.enable_prefix_caching", False),
        (["--rest_port", "9"], "http.port", 9),
        (["--rest_bind_address", "::"], "http.host", "::"),
        (["--target_device", "GPU"], "engine.device", "GPU"),
    ],
)
def test_values(arguments, field, value):
    section, _, name = field.partition(".")
    found = arguments_of(*arguments)
    assert given(found, section)[name] == value
    if section != "engine":
        assert getattr(sections(found)[section], name) == value


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
    http = parse(*arguments)["http"]
    assert (http.host, http.port, http.listen) == (host, port, listen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-body", "0"], "of bytes above 0, such as 65536, 64K or 1G, not '0'"),
        (["--max-body", "1.5M"], "not '1.5M'"),
        (["--max-body", "-1"], "not '-1'"),
        (["--head-timeout", "0"], "must be a number of seconds, more than 0, not '0'"),
        (["--drain-timeout", "-1"], "must be a number of seconds, 0 or more, not '-1'"),
        (["--drain-timeout", "inf"], "not 'inf'"),
        (["--uds-mode", "rw"], "must be three octal digits, such as 660, not 'rw'"),
        (["--uds-mode", "888"], "not '888'"),
        (["--access-log", "yes"], "must be off, text or json, not 'yes'"),
        (["--log-level", "7"], "must be debug, info, warning or error, not '7'"),
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


def test_aliases_name_flags():
    names = {flag.name for flag in FLAGS}
    assert set(flags.ALIASES.values()) <= names | {"--model-name"}
    assert not names & set(flags.ALIASES)
