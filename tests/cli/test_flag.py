"""Tests of `fastovms/cli/flag.py` and `fastovms/setting.py`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from fastovms import setting
from fastovms.cli import flag as cli_flag
from fastovms.cli.flag import Flag
from fastovms.cli.foreign_tables import reader_of
from fastovms.parts.ovms.options import Integer
from fastovms.server_config import ENGINE, HTTP, SECURITY, Settings, http_url
from fastovms.setting import SIZE, SWITCH, TEXT, Kind, show_size
from tests.adapters import BAD_NAMES
from tests.cli.test_flags import parse


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
@pytest.mark.parametrize("form", ["{}=/a", "b=/b,{}=/a", "json"])
def test_adapters_have_names_that_the_api_takes(name: str, form: str) -> None:
    text = json.dumps({"name": name, "path": "/a"}) if form == "json" else form.format(name)
    with pytest.raises(argparse.ArgumentTypeError, match=r"has a name that must|must be NAME=PATH"):
        setting.adapters(text)


def test_adapters_have_paths_that_the_api_takes() -> None:
    longest = f"/{'a' * 4095}"
    assert setting.adapters(f"{'x' * 256}={longest}") == {"x" * 256: Path(longest)}
    for path in (f"{longest}a", "/a\0", "/a\nb"):
        with pytest.raises(argparse.ArgumentTypeError, match="has a path that must"):
            setting.adapters(f"x={path}")


# What values of flags are read as, and what is said of wrong ones.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-body", "0"], "of bytes above 0, such as 65536, 64K or 1G, not '0'"),
        (["--max-body", "1.5M"], "not '1.5M'"),
        (["--allowed-hosts", "a,,b"], "must be names separated by commas, not 'a,,b'"),
        (["--forwarded-allow-ips", "10.0.0.0/8,me"], "such as 10.0.0.0/8, separated by commas"),
        (["--forwarded-allow-ips", "10.0.0.1/8"], "or *, not '10.0.0.1/8'"),
        (["--allowed-origins", "[]"], "must be names separated by commas, not '[]'"),
        (["--allowed-origins", '["a", 5]'], "must be names separated by commas"),
        (["--allowed-origins", '["a"'], "must be names separated by commas"),
        (["--max-body", "-1"], "not '-1'"),
        (["--head-timeout", "0"], "must be a time of more than 0, not '0'"),
        (["--drain-timeout", "-1"], "a time of 0 or more, such as 90s, 15m or 2h, not '-1'"),
        (["--drain-timeout", "inf"], "not 'inf'"),
        (["--drain-timeout", "1e999"], "not '1e999'"),
        (["--drain-timeout", "3 weeks"], "not '3 weeks'"),
        (["--max-files", "0k"], "must be an integer at least 1, not '0'"),
        (["--max-files", "1.0001k"], "must be an integer at least 1, not '1.0001k'"),
        (["--uds-mode", "rw"], "must be three octal digits, such as 660, not 'rw'"),
        (["--uds-mode", "888"], "not '888'"),
        (["--access-log", "yes"], "must be off, text or json, not 'yes'"),
        (["--log-level", "7"], "must be trace, debug, info, warning or error, not '7'"),
        (["--max-connections", "0"], "must be an integer at least 1, not '0'"),
        (["--uds", ""], "must not be empty"),
        (["--root-path", "v2"], "must be a path that begins with /, not 'v2'"),
        (["--root-path", "/a?b"], "not '/a?b'"),
        (["--otlp-traces-endpoint", "collector:4318"], "must be an http:// or https:// address"),
        (["--otlp-traces-endpoint", "http://"], "address, not 'http://'"),
        (["--otlp-traces-endpoint", "http://a:99999"], "not 'http://a:99999'"),
        (["--max-model-len", "0"], "from 1 to 2147483647, such as 8192 or 8k, or auto, not '0'"),
        (["--max-model-len", "1.0001k"], "not '1.0001k'"),
        (["--max-model-len", "8kB"], "not '8kB'"),
        (["--max-model-len", "9" * 20], f"not '{'9' * 20}'"),
    ],
)  # fmt: skip
def test_invalid_value_of_a_flag_is_refused(arguments, message):
    with pytest.raises(argparse.ArgumentError, match=rf"argument {arguments[0]}: .*") as caught:
        parse(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (setting.size, "64 MiB", 64 * 1024**2),
        (setting.size, "1g", 1024**3),
        (setting.duration, "30d", 30 * 86400.0),
        (setting.duration, "1.5H", 5400.0),
        (setting.duration, "500 ms", 0.5),
        (setting.duration, ".5", 0.5),
        (setting.duration, "1e3", 1000.0),
        (setting.count(1), "8k", 8000),
        (setting.count(1), "1.5K", 1536),
        (setting.count(-1), "-1", -1),
        (setting.names, " a ,b", "a,b"),
        (setting.networks, "10.0.0.0/8, ::1,*", "10.0.0.0/8,::1,*"),
        (setting.mode, "0660", 0o660),
        (http_url, "https://[::1]:4318/v1/traces", "https://[::1]:4318/v1/traces"),
        (setting.template, "{% if x %}", "{% if x %}"),
        (setting.template, "a.jinja", Path("a.jinja")),
        (cli_flag.boolean, "ON", True),
        (cli_flag.boolean, "no", False),
        (setting.json_object, '{"a": 1}', {"a": 1}),
        (setting.choice("a", "b", aliases={"c": "b"}), "C", "b"),
        (setting.name_of("A"), "A", "A"),
        (reader_of(Integer(1, 2)), "2", 2),
        (reader_of(bool), "true", True),
        (reader_of(Path), "p", Path("p")),
        (reader_of(str), "s", "s"),
    ],
)
def test_valid_value_of_a_flag_is_converted(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (cli_flag.boolean, "maybe", "must be true or false, not 'maybe'"),
        (setting.json_object, "[1]", "must be a JSON object, not '[1]'"),
        (setting.json_object, "[" * 100_000, "must be a JSON object"),
        (setting.name_of("A", "B"), "a", "must be A or B, not 'a'"),
        (reader_of(Integer(1, 2)), "3", "must be an integer from 1 to 2, not '3'"),
        (setting.path, "", "must not be empty"),
    ],
)
def test_wrong_values_alone(read, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(("size", "shown"), [(2048, "2K"), (1024**3, "1G"), (1000, "1000")])
def test_sizes_are_shown_as_they_are_read(size, shown):
    assert setting.show_size(size) == shown
    assert setting.size(shown) == size


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2592000.0, "30d"), (900.0, "15m"), (3600.0, "1h"), (75.0, "75s"), (0.5, "0.5s"), (0.0, "0")],
)
def test_durations_are_shown_as_they_are_read(seconds, shown):
    assert setting.show_duration(seconds) == shown
    assert setting.duration(shown) == seconds


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1024**2, "1M"), (10**6, "1m"), (16384, "16K"), (10_000, "10k"), (0, "0"), (1, "1")],
)
def test_counts_are_shown_as_they_are_read(number, shown):
    assert setting.show_count(number) == shown
    assert setting.count(0)(shown) == number


# A flag in the help, on a command line, and in the settings.


PORT = Flag(Kind("N", int), "100% a port", "--p", field=HTTP.port)
CACHING = Flag(SWITCH, "caches", "--caching", field=ENGINE.enable_prefix_caching)
KEYS = Flag(TEXT, "a key", "--key", repeats=True, field=SECURITY.api_keys)
MEMBER = Flag(TEXT, "type", "--kv", member="KV", field=ENGINE.plugin_config)


def parser(*flags: Flag) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    for flag in flags:
        flag.add_to(made.add_argument_group("g"))
    return made


@pytest.mark.parametrize(
    ("flag", "line", "settings"),
    [
        (PORT, "", {}),
        (PORT, "--p 5", {HTTP.port: 5}),
        (CACHING, "--caching", {ENGINE.enable_prefix_caching: True}),
        (CACHING, "--no-caching", {ENGINE.enable_prefix_caching: False}),
        (KEYS, "--key a --key b", {SECURITY.api_keys: ("a", "b")}),
        (MEMBER, "--kv u8", {ENGINE.plugin_config: {"KV": "u8"}}),
    ],
)
def test_flag_sets_its_settings(flag, line, settings) -> None:
    assert flag.settings_of(parser(flag).parse_args(line.split())) == Settings(settings)


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        (PORT, "8000"),
        (CACHING, "yes"),
        (KEYS, ""),
        (Flag(SIZE, "", "--m", field=HTTP.max_body), show_size(HTTP.max_body.default)),
        (Flag(TEXT, "", "--d", field=ENGINE.draft_model), ""),
        (Flag(TEXT, "a device (default: any)", "--d", field=ENGINE.device), ""),
    ],
)
def test_its_default_in_words(flag, shown) -> None:
    assert flag.shown_default == shown


def test_a_percent_sign_in_the_help() -> None:
    assert "100% a port (default: 8000)" in parser(PORT).format_help()
